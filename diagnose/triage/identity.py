"""Say what a result was made from: the content of the job and what judged it.

Enters: files and digests. Leaves: short hexadecimal digests. Equal identities mean equal diagnoses, byte for byte.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

#: Bytes read at a time.
CHUNK_BYTES = 1 << 20
#: A file that was changed so recently may change again without another time stamp.
SETTLED_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Judge:
    """What judges all jobs of a triage run: version, digests of rules and classifier, the speedup and the telemetry asked for.

    Of telemetry it is the path or address, and not what is there: that grows, and stays as it is for a job that is over.
    """

    version: str
    rules: str
    classifier: str | None
    min_speedup: float
    telemetry: str | None = None

    def identify(self, content: str) -> str:
        """Give the identity of the diagnosis of a job with this content.

        >>> judge = Judge("0.1.0", "d22ad82788ab", None, 1.02)
        >>> judge.identify("00") == judge.identify("00"), judge.identify("00") == judge.identify("01")
        (True, False)
        """
        asked = (float(self.min_speedup), *(() if self.telemetry is None else (self.telemetry,)))
        made_from = repr((content, self.version, self.rules, self.classifier, *asked))
        return hashlib.blake2b(made_from.encode(), digest_size=16).hexdigest()


def digest_files(paths: Sequence[Path], *, names_all: bool = False) -> str:
    """Digest the contents of a job's files and of the metadata files beside it, reading a chunk at a time.

    The trace comes first. Gives 32 hexadecimal digits that depend on the contents, their order and the names of all files but
    the trace; with `names_all` on its name too: it is one of several, and may tell its rank.
    """
    digest = hashlib.blake2b(digest_size=16)
    for i, path in enumerate(paths):
        part = hashlib.blake2b(digest_size=16)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                part.update(chunk)
        digest.update(part.digest() + (path.name.encode("utf-8", "surrogateescape") if i or names_all else b""))
    return digest.hexdigest()
