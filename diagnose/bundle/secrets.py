"""What nobody may give away: tokens, keys and passwords in text, put out of sight and counted by kind.

Enters: bytes of a text, cut between lines. Leaves: the same without what opens a door.
"""

import dataclasses
import re
from collections import Counter

#: What stands where a secret stood.
MASK = b"***"
#: What stands around a private key, and its longest text.
_KEY_BEGINS, _KEY_ENDS = b"PRIVATE KEY-----", b"-----END"
_LONGEST_KEY = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True)
class _Secret:
    """One kind of secret: what a text has, in small letters, that may have one, and the pattern with the value as group 1."""

    kind: str
    marks: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _secret(kind: str, marks: tuple[bytes, ...], pattern: bytes) -> _Secret:
    return _Secret(kind, marks, re.compile(pattern))


#: Between the name of a setting and its value; what says that there is none is passed over.
_SET = (
    rb"\\?[\"']?\s{0,3}(?:=>|[=:])\s{0,3}"
    rb"(?!\\?[\"']\\?[\"'])(?!\\?[\"']?(?:(?:none|null|true|false|yes|no)\b|[<$*]))"
)
#: A value, in quotes or up to what ends a word.
_VALUE = rb"(?:\\?[\"'])?([^\s\"'\\,;&}\])]{4,400})"
#: The most telling first: what an earlier kind took, no later one sees.
_KINDS = (
    _secret("password in a URL", (b"://",), rb"[A-Za-z][A-Za-z0-9+.-]{1,20}://([^\s/@\"'<>:]{0,200}:[^\s/@\"'<>]{1,400})@"),
    _secret("Hugging Face token", (b"hf_",), rb"\b(hf_[A-Za-z0-9]{16,200})\b"),
    _secret("W&B key", (b"wandb",), rb"\b(wandb_v\d_[A-Za-z0-9_-]{16,400})"),
    _secret("W&B key", (b"wandb",), rb"(?i)wandb[ \w:.,='\"/-]{0,80}?\b([0-9a-f]{40})\b"),
    _secret("GitHub token", (b"gh", b"github_pat_"), rb"\b(gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255})"),
    _secret("GitLab token", (b"glpat-",), rb"\b(glpat-[A-Za-z0-9_-]{16,255})"),
    _secret("Slack token", (b"xox",), rb"\b(xox[abeoprs]-[A-Za-z0-9-]{8,255})"),
    _secret("API key", (b"sk-",), rb"(?<![\w-])(sk-[A-Za-z0-9_-]{20,255})"),
    _secret("Google key", (b"aiza", b"ya29."), rb"\b(AIza[A-Za-z0-9_-]{30,60}|ya29\.[A-Za-z0-9_-]{20,400})"),
    _secret("AWS key", (b"akia", b"asia"), rb"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    _secret("JSON Web Token", (b"eyj",), rb"\b(eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,4000}(?:\.[A-Za-z0-9_-]{0,4000})?)"),
    _secret(
        "signature in a URL",
        (b"signature=", b"sig=", b"x-amz-credential=", b"x-goog-credential="),
        rb"(?i)[?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|signature|sig)"
        rb"=([^\s&\"'<>]{8,4000})",
    ),
    _secret("credentials of a request", (b"bearer",), rb"(?i)\bbearer\s{1,3}([A-Za-z0-9._~+/=-]{8,4000})"),
    _secret(
        "credentials of a request",
        (b"authorization",),
        rb"(?i)\bauthorization\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?:basic|token|digest)\s{1,3}([A-Za-z0-9._~+/=-]{4,4000})",
    ),
    _secret("password", (b"password",), rb"(?i)\blogin\s{1,3}\S{1,200}\s{1,3}password\s{1,3}(\S{4,400})"),
    _secret(
        "password",
        (b"password", b"passwd", b"passphrase", b"secret", b"credential"),
        rb"(?i)(?:password|passwd|passphrase|(?<![a-z])secret|credentials?)" + _SET + _VALUE,
    ),
    _secret(
        "key",
        (b"key",),
        rb"(?i)(?:api|access|secret|private|account|auth|encryption|signing)[_-]?(?:access[_-]?)?key(?:[_-]?id)?" + _SET + _VALUE,
    ),
    _secret("token", (b"token",), rb"(?i)(?:auth|access|refresh|session|security|bearer|api)[_-]?token" + _SET + _VALUE),
    # Tokens of a vocabulary are short, have no digits or stand in brackets: <|end|>, </s>, [PAD].
    _secret(
        "token",
        (b"_token",),
        rb"(?i)[a-z]_token" + _SET + rb"(?:\\?[\"'])?((?=[A-Za-z_.~+/=-]{0,40}[0-9])[A-Za-z0-9_.~+/=-]{16,400})",
    ),
)  # fmt: skip


class Secrets:
    """Masks secrets, and counts them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def mask(self, text: bytes) -> bytes:
        """Put all secrets of a text out of sight; the same bytes where it has none."""
        if _KEY_BEGINS in text:
            text = self._mask_keys(text)
        small = text.lower()
        for secret in _KINDS:
            if any(mark in small for mark in secret.marks):
                text = secret.pattern.sub(lambda found, kind=secret.kind: self._mask_one(found, kind), text)  # type: ignore[misc]  # a default for each turn
        return text

    def _mask_keys(self, text: bytes) -> bytes:
        """Mask private keys; one that does not end is taken to end with the text."""
        parts, at = [], 0
        while (begins := text.find(_KEY_BEGINS, at)) >= 0:
            begins += len(_KEY_BEGINS)
            ends = text.find(_KEY_ENDS, begins, begins + _LONGEST_KEY)
            ends = min(len(text), begins + _LONGEST_KEY) if ends < 0 else ends
            parts += [text[at:begins], MASK]
            self.counts["private key"] += not text.startswith(MASK, begins)
            at = text.find(b"-----", ends + len(_KEY_ENDS)) if text.startswith(_KEY_ENDS, ends) else ends
            at = ends if at < 0 else at
            parts.append(text[ends:at])
        return b"".join((*parts, text[at:]))

    def _mask_one(self, found: re.Match[bytes], kind: str) -> bytes:
        """Mask the value of one match, and keep what stands around it."""
        first, last = (at - found.start() for at in found.span(1))
        value = found[1]
        if value.startswith(MASK) or value.strip(b"*xX.") == b"":  # somebody did it before
            return found[0]
        self.counts[kind] += 1
        return found[0][:first] + MASK + found[0][last:]
