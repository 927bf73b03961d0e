"""What keeps the recorder out of the capture of CUDA graphs, and out of what `torch.compile` compiles.

Enters: captures as they begin and end. Leaves: a recorder that touches no stream and asks no event meanwhile: either would
make the capture fail. The step it happens in is not recorded.
"""

import types
from typing import Any

from diagnose.record.hooks import Hooks
from diagnose.record.log import Log


def hook_captures(hooks: Hooks, log: Log, graph: Any) -> None:
    """Pause while this class (`torch.cuda.CUDAGraph`) captures."""

    def begin(*_args: Any, **_kwargs: Any) -> None:
        log.close_switches()
        log.step = log.current = None
        log.pending.clear()
        log.clock.pause()

    def end(_token: None, _result: Any) -> None:
        log.clock.resume()

    hooks.around(graph, "capture_begin", log.always, begin, raised=log.clock.resume)
    hooks.around(graph, "capture_end", log.always, lambda *_args, **_kwargs: None, end, log.clock.resume)


def keep_out_compiler(hooks: Hooks, torch: Any) -> None:
    """Have `torch.compile` see through the hooks and compile nothing of the recorder, where this version can be told."""
    hooks.is_compiling = torch.compiler.is_dynamo_compiling  # of its like the one that costs least
    frames = torch._C._dynamo.eval_frame  # noqa: SLF001 - what `torch.compiler.disable` sets, without importing the compiler
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT  # noqa: SLF001

    def keep_out(code: types.CodeType, is_all: bool) -> None:  # noqa: FBT001 - as it is called
        strategy = frames._FrameExecStrategy(skip, skip if is_all else default)  # noqa: SLF001
        frames.set_code_exec_strategy(code, strategy)

    hooks.keep_out = keep_out
