"""Scenarios side by side: in threads where there are cores for them, and in none where the environment says that there is one."""

import threading
import types

import numpy as np
import pytest

from diagnose.whatif import replay


@pytest.mark.parametrize(("cores", "in_threads"), [("1", False), ("2", True), ("2,1", True), (None, True)])
def test_a_process_with_one_core_starts_no_threads(
    cores: str | None, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a night have one core each; what is found is the same."""
    if cores is None:
        monkeypatch.delenv(replay.THREADS, raising=False)
    else:
        monkeypatch.setenv(replay.THREADS, cores)
    blocks = [types.SimpleNamespace(start_s=np.zeros((1, 1 + replay.FEW_LANES, 1)))]
    ran_in: list[bool] = []

    def square(number: int) -> int:
        ran_in.append(threading.current_thread() is not threading.main_thread())
        return number**2

    assert replay.side_by_side(square, range(5), blocks) == [0, 1, 4, 9, 16]
    assert ran_in == [in_threads] * 5
