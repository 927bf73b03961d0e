"""The version of the program, where everything can read it."""

__version__ = "0.1.0"
