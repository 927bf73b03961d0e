"""All formats of logs with a writer: what a file of each tells, and what it cannot tell.

Enters: nothing. Leaves: `FORMATS`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

from tests.logs.runs import LoggedRun
from tests.logs.writers.composer import write_composer, write_composer_jsonl
from tests.logs.writers.consoles import TEMPLATES, write_console
from tests.logs.writers.deepspeed import write_deepspeed
from tests.logs.writers.huggingface import write_accelerate, write_trainer, write_trainer_state
from tests.logs.writers.lightning import write_bar, write_metrics_csv, write_rich_bar
from tests.logs.writers.maxtext import write_maxtext
from tests.logs.writers.megatron import write_megatron
from tests.logs.writers.nanogpt import write_llm_c, write_modded_nanogpt, write_nanogpt
from tests.logs.writers.nemo import write_nemo
from tests.logs.writers.olmo import write_olmo
from tests.logs.writers.tables import write_csv, write_jsonl, write_mlflow, write_tensorboard_csv, write_wandb_csv
from tests.logs.writers.torchtitan import write_torchtitan
from tests.logs.writers.torchtune import write_disk_log, write_torchtune
from tests.logs.writers.verl import write_verl
from tests.logs.writers.vision import write_imagenet, write_open_clip, write_timm, write_torchvision


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A format: what writes it, how its file is called, and the shapes that no run of it has."""

    write: Callable[[LoggedRun], bytes]
    file: str = "job.out"
    never: tuple[str, ...] = ()


FORMATS: dict[str, Written] = {
    # Its sequences are of one length, which it prints.
    "Megatron-LM": Written(write_megatron, never=("sequence",)),
    "Megatron-DeepSpeed": Written(lambda run: write_megatron(run, deepspeed=True)),
    "BigScience": Written(lambda run: write_megatron(run, seconds=True, stamped=False)),
    "DeepSpeed": Written(write_deepspeed),
    "NeMo": Written(write_nemo),
    "NeMo, bar": Written(lambda run: write_nemo(run, bar=True)),
    "OLMo": Written(write_olmo),
    "OLMo-core": Written(lambda run: write_olmo(run, core=True)),
    "MaxText": Written(write_maxtext),
    "nanoGPT": Written(write_nanogpt),
    "llama2.c": Written(lambda run: write_nanogpt(run, llama=True)),
    "llm.c": Written(write_llm_c),
    "modded-nanogpt": Written(write_modded_nanogpt),
    "torchtitan": Written(write_torchtitan),
    "HF Trainer": Written(write_trainer),
    "HF Trainer, no bar": Written(lambda run: write_trainer(run, bars=False, strings=True, trl=True)),
    "trainer_state.json": Written(lambda run: write_trainer_state(run, trl=True), "trainer_state.json"),
    "Accelerate": Written(write_accelerate),
    "Lightning, bar": Written(write_bar),
    "Lightning, rich": Written(lambda run: write_rich_bar(run, epoch=300)),
    "Lightning, metrics.csv": Written(write_metrics_csv, "metrics.csv"),
    "torchtune": Written(write_torchtune),
    "torchtune, rates": Written(write_disk_log),
    "Composer": Written(write_composer),
    "Composer, JSON Lines": Written(write_composer_jsonl, "metrics.jsonl"),
    "verl": Written(write_verl),
    "open_clip": Written(write_open_clip),
    "ImageNet example": Written(write_imagenet),
    "timm": Written(write_timm),
    "torchvision": Written(write_torchvision),
    "CSV": Written(write_csv, "m.csv"),
    "JSON Lines, tokens": Written(write_jsonl, "m.jsonl"),
    "W&B export": Written(write_wandb_csv, "history.csv"),
    "TensorBoard export": Written(write_tensorboard_csv, "loss.csv"),
    "MLflow": Written(write_mlflow, "loss"),
    **{name: Written(partial(write_console, template), never=template.never) for name, template in TEMPLATES.items()},
}
