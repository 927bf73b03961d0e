"""Makes text from users safe to show: job ids, hosts and warnings may hold anything."""

import unicodedata

#: Unicode categories that a terminal may obey instead of showing: control, format (bidi overrides), surrogates,
#: private use, unassigned, and the line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str) -> str:
    r"""Write every character that a terminal would obey as an escape.

    >>> print(escape("gpu\x1b[31m-7\n"))
    gpu\x1b[31m-7\x0a
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_one(char) if unicodedata.category(char) in _UNSAFE else char for char in text)


#: A name that is longer than this is nobody's to read; nor is a word, which may hold a name cut before, or a sentence.
MAX_NAME = 100
MAX_WORD = 150
MAX_PROSE = 2000


def shorten(text: str, most: int = MAX_NAME) -> str:
    """Cut what is too long to read, and say how much is left out.

    >>> shorten("gpu-7"), shorten("x" * 10_000, 4)
    ('gpu-7', 'xxxx… (9,996 more characters)')
    """
    left = len(text) - most
    return f"{text[:most]}… ({left:,} more characters)" if left > 0 else text


def name(text: str) -> str:
    r"""Make a name from a trace safe: a job, a host, a type.

    >>> name("gpu\x1b[31m-7"), name("")
    ('gpu\\x1b[31m-7', '')
    """
    return shorten(escape(text))


def prose(text: str) -> str:
    r"""Make a sentence from a rule or a warning safe, with its line ends as blanks.

    >>> prose("first line\n  second\x1b\n")
    'first line second\\x1b'
    """
    return shorten(" ".join(shorten(escape(word), MAX_WORD) for word in text.split()), MAX_PROSE)


#: What stands for each character of a report where the encoding has none of them: bars, heights, heat, marks.
_ASCII = str.maketrans("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇·░▒▓•—─…", "---====#1234567:=+**--~")


def to_encoding(text: str, encoding: str) -> str:
    """Draw a report in ASCII where an encoding cannot carry it; names keep the characters that have no stand-in.

    >>> to_encoding("█▌ — ok", "ascii"), to_encoding("█▌ — ok", "utf-8")
    ('#= - ok', '█▌ — ok')
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text


def _escape_one(char: str) -> str:
    """Write one character by its number."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
