"""Hooks for what the loops of other people's frameworks do beside training: evaluations, saves and logging.

Enters: frameworks that the job has imported. Leaves: rows. Events of their callbacks often tell where such work ends, and not
where it begins.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from diagnose.record.hooks import Hooks
from diagnose.record.log import Log

_LIGHTNING = {
    "trainer.trainer": {"Trainer.save_checkpoint": "checkpoint"},
    # A validation within a training: before its first event it makes its loaders and their workers.
    "loops.evaluation_loop": {"_EvaluationLoop.run": "eval"},
    "trainer.connectors.logger_connector.logger_connector": {"_LoggerConnector.log_metrics": "log"},
}
_FABRIC = {"Fabric.save": "checkpoint", "Fabric.log_dict": "log"}
#: By module: functions that are no training, and which operation each is. Lightning is one package, or several by older names.
OPERATIONS = {
    "transformers.trainer": {
        "Trainer.evaluate": "eval",
        "Trainer.predict": "eval",
        "Trainer._save_checkpoint": "checkpoint",
        "Trainer.save_model": "checkpoint",
        "Trainer.log": "log",
    },
    "accelerate.accelerator": {
        "Accelerator.save_state": "checkpoint",
        "Accelerator.save_model": "checkpoint",
        "Accelerator.save": "checkpoint",
        "Accelerator.log": "log",
    },
    **{
        f"{package}.{module}": _LIGHTNING[module]
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module in _LIGHTNING
    },
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
}


def hook_operations(
    hooks: Hooks, log: Log, module: str, begin: Callable[[str], Any], end: Callable[[Any], None]
) -> None:
    """Take each call of these functions of a module, on the training's thread, for an operation."""
    for path, optype in OPERATIONS[module].items():
        owner, _, name = path.partition(".")
        _hook_operation(hooks, log, (getattr(sys.modules[module], owner, None), name), partial(begin, optype), end)


def _hook_operation(
    hooks: Hooks, log: Log, function: tuple[Any, str], begin: Callable[[], Any], end: Callable[[Any], None]
) -> None:
    """Hook one function; where it raises, it has ended, too."""
    running: list[Any] = []

    def before(*_args: Any, **_kwargs: Any) -> None:
        if log.is_training_thread():
            running.append(begin())

    def after(*_args: Any) -> None:
        if running and log.is_training_thread():
            end(running.pop())

    hooks.around(*function, log.always, before, after, after)
