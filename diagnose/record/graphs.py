"""Hooks that keep the recorder out of the capture of CUDA graphs.

Enters: captures as they begin and end. Leaves: a recorder that touches no stream and asks no event meanwhile: either would
make the capture fail. The step it happens in is not recorded.
"""

from typing import Any

from diagnose.record.hooks import Hooks
from diagnose.record.log import Log


def hook_captures(hooks: Hooks, log: Log, graph: Any) -> None:
    """Pause while this class (`torch.cuda.CUDAGraph`) captures."""

    def begin(*_args: Any, **_kwargs: Any) -> None:
        log.inside.on = log.beside.on = False
        log.step = log.current = None
        log.pending.clear()
        log.clock.pause()

    def end(_token: None, _result: Any) -> None:
        log.clock.resume()

    hooks.around(graph, "capture_begin", log.always, begin)
    hooks.around(graph, "capture_end", log.always, lambda *_args, **_kwargs: None, end)
