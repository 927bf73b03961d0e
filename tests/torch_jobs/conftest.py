"""Programs, not tests: they are run by tests, and need torch."""

collect_ignore_glob = ["*.py"]
