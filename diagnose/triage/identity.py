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
    """What judges all jobs of a triage run: version, digests of rules and classifier, and the speedup asked for."""

    version: str
    rules: str
    classifier: str | None
    min_speedup: float

    def identify(self, content: str) -> str:
        """Give the identity of the diagnosis of a job with this content.

        >>> judge = Judge("0.1.0", "d22ad82788ab", None, 1.02)
        >>> judge.identify("00") == judge.identify("00"), judge.identify("00") == judge.identify("01")
        (True, False)
        """
        made_from = repr((content, self.version, self.rules, self.classifier, float(self.min_speedup)))
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
