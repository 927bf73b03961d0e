"""Mutants that no test can kill, because nobody could see them: by file, line and change, with the reason."""

SET_ASIDE: dict[tuple[str, str, str], str] = {}
