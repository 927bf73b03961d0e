"""One line into what people watch: the verdict of a job in the experiment tracker that it already uses.

Enters: a diagnosis, as its JSON. Leaves: a summary in Weights & Biases, MLflow and TensorBoard, each where the job has logged to
it. Nothing is imported here, and what goes wrong there is nothing to the job.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.record.hooks import Hooks
from diagnose.record.log import Log

LOGGER = logging.getLogger("diagnose.record")

#: What writes for TensorBoard, and MLflow's client, by the modules that have them: when they are imported they are in use.
_TENSORBOARD = ("torch.utils.tensorboard", "tensorboardX")
_MLFLOW = "mlflow.tracking.client"


class Trackers:
    """Notes where the job logs to, and logs its diagnosis there when it has ended.

    By then the frameworks' own callbacks may have closed what they wrote with: what is noted is where they wrote.
    """

    def __init__(self) -> None:
        #: Kind of the writer, by the folder that it writes to.
        self._folders: dict[str, Any] = {}
        #: The client, by the run that it logs to.
        self._runs: dict[str, Any] = {}
        #: What hooks a tracker, by the module that says that it is used.
        self.frameworks: dict[str, tuple[Any, ...]] = {name: (self._hook_tensorboard, name) for name in _TENSORBOARD}
        self.frameworks[_MLFLOW] = (self._hook_mlflow,)

    def _hook_tensorboard(self, hooks: Hooks, log: Log, name: str) -> None:
        """Note the folders that figures are written to."""
        kind = sys.modules[name].SummaryWriter

        def before(writer: Any, *_args: Any, **_kwargs: Any) -> None:
            self._folders[str(writer.log_dir)] = kind

        for function in ("add_scalar", "add_scalars"):
            hooks.around(kind, function, log.always, before)

    def _hook_mlflow(self, hooks: Hooks, log: Log) -> None:
        """Note the runs that figures are logged to."""

        def before(client: Any, run_id: str, *_args: Any, **_kwargs: Any) -> None:
            self._runs[run_id] = client

        for function in ("log_metric", "log_batch"):
            hooks.around(sys.modules[_MLFLOW].MlflowClient, function, log.always, before)

    def tell(self, diagnosis: dict[str, Any], page: Path) -> None:
        """Log the verdict, the share of the lost time that is each cause's, what mending it gives, and where the page is.

        Parameters
        ----------
        diagnosis : dict
            What `diagnose JOB --format json` prints.
        page : Path
            The page for a browser.
        """
        found = {"diagnose/slowdown": diagnosis["slowdown"]}
        for cause in diagnosis["causes"]:
            found[f"diagnose/{cause['cause']}/share"] = cause["share"]
            found[f"diagnose/{cause['cause']}/recoverable"] = cause["recoverable"]
        figures = {name: float(value) for name, value in found.items() if value is not None}
        texts = {"diagnose/summary": str(diagnosis["summary"]), "diagnose/page": str(page)}
        tellers: tuple[Callable[[dict[str, float], dict[str, str]], None], ...]
        tellers = (self._tell_tensorboard, self._tell_mlflow, _tell_wandb)
        for tell in tellers:
            try:
                tell(figures, texts)
            except Exception:  # a tracker that has ended, or is not reached
                LOGGER.debug("diagnose could not log its summary (%s)", tell.__name__, exc_info=True)

    def _tell_tensorboard(self, figures: dict[str, float], texts: dict[str, str]) -> None:
        """Write a file beside those of the job."""
        for folder, kind in self._folders.items():
            writer = kind(folder)
            for name, text in texts.items():
                writer.add_text(name, text)
            for name, value in figures.items():
                writer.add_scalar(name, value)
            writer.close()

    def _tell_mlflow(self, figures: dict[str, float], texts: dict[str, str]) -> None:
        """Log metrics and tags of the run, which may have ended."""
        for run, client in self._runs.items():
            for name, value in figures.items():
                client.log_metric(run, name, value)
            for name, text in texts.items():
                client.set_tag(run, name, text)


def _tell_wandb(figures: dict[str, float], texts: dict[str, str]) -> None:
    """Write into the summary of the run, which is shown beside it; a run that has ended takes nothing more."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.summary.update(figures | texts)
