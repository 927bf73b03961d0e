"""Hooks for what the loops of other people's frameworks do beside training: evaluations, saves and logging.

Enters: frameworks that the job has imported. Leaves: rows. Events of their callbacks often tell where such work ends, and not
where it begins.
"""

import sys

from diagnose.model.optype import Op
from diagnose.record.hooks import Hooks
from diagnose.record.host import hook_pause
from diagnose.record.log import Log

_LIGHTNING = {
    "trainer.trainer": {"Trainer.save_checkpoint": Op.CHECKPOINT},
    # A validation within a training: before its first event it makes its loaders and their workers.
    "loops.evaluation_loop": {"_EvaluationLoop.run": Op.EVAL},
    "trainer.connectors.logger_connector.logger_connector": {"_LoggerConnector.log_metrics": Op.LOG},
}
_FABRIC = {"Fabric.save": Op.CHECKPOINT, "Fabric.log_dict": Op.LOG}
#: By module: functions that are no training, and which operation each is. Lightning is one package, or several by older names.
OPERATIONS = {
    "transformers.trainer": {
        "Trainer.evaluate": Op.EVAL,
        "Trainer.predict": Op.EVAL,
        "Trainer._save_checkpoint": Op.CHECKPOINT,
        "Trainer.save_model": Op.CHECKPOINT,
        "Trainer.log": Op.LOG,
    },
    "accelerate.accelerator": {
        "Accelerator.save_state": Op.CHECKPOINT,
        "Accelerator.save_model": Op.CHECKPOINT,
        "Accelerator.save": Op.CHECKPOINT,
        "Accelerator.log": Op.LOG,
    },
    **{
        f"{package}.{module}": _LIGHTNING[module]
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module in _LIGHTNING
    },
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
}


def hook_operations(hooks: Hooks, log: Log, module: str) -> None:
    """Note each call of these functions of a module as a row."""
    for path, kind in OPERATIONS[module].items():
        owner, _, name = path.partition(".")
        hook_pause(hooks, log, getattr(sys.modules[module], owner, None), name, kind)
