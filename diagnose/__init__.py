"""Says why a large training job is slow, where, since when, and what to change."""

__version__ = "0.1.0"
