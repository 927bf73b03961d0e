"""What kind of software and hardware a job runs on, as far as advice depends on it.

Enters: the free text of the job's metadata. Leaves: names that fixes know.
"""

import re
from collections.abc import Mapping

from diagnose.model.trace import Job

#: Frameworks that fixes have advice for, by what their names look like; the first that fits.
_FRAMEWORKS = {
    "megatron": r"megatron|nemo|vescale|primus",
    "torchtitan": r"titan",
    "deepspeed": r"deep\s*speed",
    "pytorch": r"torch|fsdp|ddp|accelerate|lightning",
}
_TITLES = {"megatron": "Megatron-LM", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed", "pytorch": "PyTorch"}
#: Generations of GPUs, by what their names look like.
_GENERATIONS = {
    "Blackwell": r"\b(GB|B)(100|200|300)\b|blackwell|\bB40\b",
    "Hopper": r"\b(GH|H)(20|100|200|800)\b|hopper",
    "Ada": r"\bL(4|20|40S?)\b|\bada\b|rtx\s*(40\d\d|6000 ada)",
    "Ampere": r"\bA(10|16|30|40|100|800)\b|ampere|\bA6000\b|rtx\s*30\d\d",
}


def identify_framework(job: Job) -> str | None:
    """Name the framework that a job runs on: `megatron`, `torchtitan`, `deepspeed`, `pytorch`, or None where nothing says it."""
    text = job.framework or ""
    return next((name for name, look in _FRAMEWORKS.items() if re.search(look, text, re.IGNORECASE)), None)


def identify_generation(job: Job) -> str | None:
    """Name the generation of a job's GPUs, or None where it is not known."""
    text = (job.gpu_type or "").replace("_", " ").replace("-", " ")
    return next((name for name, look in _GENERATIONS.items() if re.search(look, text, re.IGNORECASE)), None)


def choose_how(how: Mapping[str, str], job: Job) -> str:
    """Say how to do something on a job's framework, or on all that are known where nothing says which it is.

    `how` is by framework; its entry `any` is for everybody. Of a framework that has no entry only that is said.
    """
    framework = identify_framework(job)
    if framework in ("torchtitan", "deepspeed") and framework not in how:
        framework = "pytorch"  # they are made of it
    chosen = [name for name in _TITLES if name in how and framework in (name, None)]
    recipes = [f"{_TITLES[name]}: {how[name]}" for name in chosen]
    return " ".join(part.rstrip(". ") + "." for part in [*([how["any"]] if "any" in how else []), *recipes])
