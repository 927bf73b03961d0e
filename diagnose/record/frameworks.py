"""What the loops of other people's frameworks do beside training: evaluations, saves and logging.

Enters: the frameworks that the job has imported. Leaves: their functions, marked as operations. Events of their callbacks often
tell where such work ends, and not where it begins.
"""

import sys
from collections.abc import Callable
from typing import Any

#: By module and class: the functions that are no training, and which operation each is.
OPERATIONS = {
    "transformers.trainer.Trainer": {
        "evaluate": "eval",
        "predict": "eval",
        "_save_checkpoint": "checkpoint",
        "save_model": "checkpoint",
        "log": "log",
    },
    "accelerate.accelerator.Accelerator": {
        "save_state": "checkpoint",
        "save_model": "checkpoint",
        "save": "checkpoint",
        "log": "log",
    },
    "lightning.pytorch.trainer.trainer.Trainer": {"save_checkpoint": "checkpoint"},
    # A validation within a training: before its first event it makes its loaders and their workers.
    "lightning.pytorch.loops.evaluation_loop._EvaluationLoop": {"run": "eval"},
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector._LoggerConnector": {"log_metrics": "log"},
    "lightning.fabric.fabric.Fabric": {"save": "checkpoint", "log_dict": "log"},
}
#: Parts of Lightning that are packages of their own as well, by older names.
OLDER_NAMES = {"lightning.pytorch": "pytorch_lightning", "lightning.fabric": "lightning_fabric"}


def mark_frameworks(mark: Callable[[Any, str, str], None]) -> None:
    """Call `mark(class, name of a function, operation)` for what the job has imported."""
    for path, functions in OPERATIONS.items():
        module, _, name = path.rpartition(".")
        older = [module.replace(part, package) for part, package in OLDER_NAMES.items() if module.startswith(part)]
        for known in (module, *older):
            owner = getattr(sys.modules.get(known), name, None)
            for function, optype in functions.items():
                mark(owner, function, optype)
