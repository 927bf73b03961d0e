"""Traces of torch.profiler (Kineto), as `diagnose.trace.producers.catalogue` asks for them."""

from diagnose.trace.producers.kineto.job import NAME, TITLE, read, recognise

__all__ = ["NAME", "TITLE", "read", "recognise"]
