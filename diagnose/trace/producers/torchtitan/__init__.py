"""Structured logs of torchtitan, as `diagnose.trace.producers.catalogue` asks for them."""

from diagnose.trace.producers.torchtitan.job import NAME, TITLE, read, recognise

__all__ = ["NAME", "TITLE", "read", "recognise"]
