"""One line into what people watch: the verdict of a job in the experiment tracker that it already uses.

Enters: a diagnosis, as its JSON. Leaves: a summary in Weights & Biases, MLflow and TensorBoard, each where the job has imported it
and is logging to it. Nothing is imported here, and what goes wrong there is nothing to the job.
"""

import gc
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

LOGGER = logging.getLogger("diagnose.record")


def tell_trackers(diagnosis: dict[str, Any], page: Path) -> None:
    """Log the verdict, the share of the step that each cause costs, and where the page is.

    Parameters
    ----------
    diagnosis : dict
        What `diagnose JOB --format json` prints.
    page : Path
        The page for a browser.
    """
    figures = {"diagnose/slowdown": diagnosis["slowdown"]}
    for cause in diagnosis["causes"]:
        figures[f"diagnose/{cause['cause']}/share"] = cause["share"]
        figures[f"diagnose/{cause['cause']}/recoverable"] = cause["recoverable"]
    figures = {name: float(value) for name, value in figures.items() if value is not None}
    texts = {"diagnose/summary": diagnosis["summary"], "diagnose/page": str(page)}
    for name, tell in _TRACKERS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            tell(module, figures, texts)
        except Exception:  # a tracker that has ended, or is not reached
            LOGGER.debug("diagnose could not log its summary with %s", name, exc_info=True)


def _tell_wandb(wandb: ModuleType, figures: dict[str, float], texts: dict[str, str]) -> None:
    """Write into the summary of the run, which is shown beside it."""
    if wandb.run is not None:
        wandb.run.summary.update(figures | texts)


def _tell_mlflow(mlflow: ModuleType, figures: dict[str, float], texts: dict[str, str]) -> None:
    """Log metrics and tags of the run."""
    if mlflow.active_run() is not None:
        mlflow.log_metrics(figures)
        mlflow.set_tags(texts)


def _tell_tensorboard(module: ModuleType, figures: dict[str, float], texts: dict[str, str]) -> None:
    """Write to where the job's writers write; nobody else knows of them."""
    kind = module.SummaryWriter
    writers = [found for found in gc.get_objects() if issubclass(type(found), kind)]
    for writer in {found.log_dir: found for found in writers}.values():
        for name, text in texts.items():
            writer.add_text(name, text)
        for name, value in figures.items():
            writer.add_scalar(name, value)
        writer.flush()


_TRACKERS = {
    "wandb": _tell_wandb,
    "mlflow": _tell_mlflow,
    "torch.utils.tensorboard": _tell_tensorboard,
    "tensorboardX": _tell_tensorboard,
}
