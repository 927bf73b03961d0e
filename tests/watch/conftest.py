"""What tests of the watch share with those of tickets: receivers."""

from tests.tickets.conftest import alertmanager, receiver

__all__ = ["alertmanager", "receiver"]
