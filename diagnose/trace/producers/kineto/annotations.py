"""What the names of annotations say: which operation, of which stage and microbatch.

Enters: the name of one annotation. Leaves: `NamedOperation`, one for each operation that it covers.
"""

import dataclasses
import re
from typing import Literal

from diagnose.model.optype import BY_NAME, Op

#: Who gave the name: the trace format's own types, torch.distributed.pipelining with stages, GPipe without stages, or the
#: job's own code ("forward").
Dialect = Literal["own", "staged", "unstaged", "phases"]


@dataclasses.dataclass(frozen=True, slots=True)
class NamedOperation:
    """An operation that an annotation names."""

    dialect: Dialect
    op: Op | None  # None for what has no place in a trace; `what` says what it is
    what: str
    stage: int | None = None  # of the model (virtual stage), where it is said
    microbatch: int | None = None
    chunk: int | None = None
    with_other: bool = False  # the annotation covers a forward and a backward, one after the other


_ACTIONS = {
    "F": Op.FORWARD,
    "B": Op.BACKWARD,
    "I": Op.BACKWARD,
    "W": Op.WEIGHT,
    "SEND_F": Op.FORWARD_SEND,
    "RECV_F": Op.FORWARD_RECV,
    "SEND_B": Op.BACKWARD_SEND,
    "RECV_B": Op.BACKWARD_RECV,
    "UNSHARD": Op.ALL_GATHER,
    "REDUCE_GRAD": Op.REDUCE_SCATTER,
}
_UNPLACED = {
    "RESHARD": "RESHARD (parameters freed)",
}
_ACTION = re.compile(
    r"(?:PP:)?(?P<stage>\d{1,6})(?P<action>SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|F|B|I|W)(?P<mb>\d{1,6})?"
)
_OVERLAP = re.compile(r"(?:PP:)?\((?P<parts>[^()]{1,200})\)OVERLAP_F_B")
_WHOLE = re.compile(r"(?P<direction>Forward|Backward) (?P<mb>\d{1,6})")
_OWN = re.compile(r"(?P<ops>[a-z]+(?:-[a-z]+)*(?:\+[a-z]+(?:-[a-z]+)*)*)(?P<tags>(?: [a-z_]{1,20}=-?\d{1,9})*)")
_TAG = re.compile(r"([a-z_]+)=(-?\d+)")
_PHASE = re.compile(r"[#\s]*(?P<phase>forward|backward)[#\s]*", re.IGNORECASE)
#: What the loaders of PyTorch, and of trainers that wrap them, call their waits for a batch.
_FETCH = re.compile(r"enumerate\(Data.*|(?:.*DataLoaderIter\.)?__next__|.*dataloader_next", re.DOTALL)
#: What training loops call their saves; and functions of Python that save, with the files and lines that they begin at.
_SAVE = re.compile(r"save[ _-]?checkpoint|checkpoint[ _-]?sav(?:e|ing)", re.IGNORECASE)
_SAVER = re.compile(
    r"(?:.*/)?torch/(?:serialization|distributed/checkpoint/state_dict_saver)\.py\(\d+\): save|.*\(\d+\): _?save_checkpoint"
)
_STEP = re.compile(r"ProfilerStep#(\d{1,15})\*?")


def parse_step(name: str) -> int | None:
    """Read the number of a step.

    >>> parse_step("ProfilerStep#12")
    12
    """
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def is_fetch(name: str) -> bool:
    """Say whether an annotation is a wait for input.

    >>> is_fetch("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), is_fetch("__next__"), is_fetch("Iterator")
    (True, True, False)
    """
    return _FETCH.fullmatch(name) is not None


def is_save(name: str) -> bool:
    """Say whether an annotation, or a function of Python, saves a checkpoint.

    >>> is_save("save_checkpoint"), is_save("torch/serialization.py(944): save"), is_save("torch/utils/checkpoint.py(3): forward")
    (True, True, False)
    """
    return bool(_SAVE.fullmatch(name) or _SAVER.fullmatch(name))


def parse_annotation(name: str) -> tuple[NamedOperation, ...]:
    """Say which operations an annotation names; none where it names none.

    >>> [(named.op.name, named.stage, named.microbatch) for named in parse_annotation("PP:3SEND_F1")]
    [('FORWARD_SEND', 3, 1)]
    >>> [named.op.name for named in parse_annotation("forward-send+backward-recv")]
    ['FORWARD_SEND', 'BACKWARD_RECV']
    >>> parse_annotation("aten::mm")
    ()
    """
    if found := _ACTION.fullmatch(name):
        return (_action(found),)
    if found := _OVERLAP.fullmatch(name):
        parts = [_ACTION.fullmatch(part.strip()) for part in found["parts"].split(";")]
        named = [_action(part) for part in parts if part]
        both = sorted(entry.op for entry in named if entry.op is not None) == [Op.FORWARD, Op.BACKWARD]
        return tuple(dataclasses.replace(entry, with_other=True) for entry in named) if both and all(parts) else ()
    if found := _WHOLE.fullmatch(name):
        op = Op.FORWARD if found["direction"] == "Forward" else Op.BACKWARD
        return (NamedOperation("unstaged", op, name, microbatch=int(found["mb"])),)
    if found := _PHASE.fullmatch(name):
        op = Op.FORWARD if found["phase"].lower() == "forward" else Op.BACKWARD
        return (NamedOperation("phases", op, name),)
    if found := _OWN.fullmatch(name):
        ops = [BY_NAME.get(part) for part in found["ops"].split("+")]
        if None in ops:
            return ()
        tags = {key: int(value) for key, value in _TAG.findall(found["tags"])}
        microbatch = tags.get("mb", tags.get("mb_id"))
        return tuple(
            NamedOperation("own", op, name, microbatch=_known(microbatch), chunk=_known(tags.get("mc")))
            for op in ops
            if op is not None
        )
    return ()


def _action(found: re.Match[str]) -> NamedOperation:
    """Read an action of torch.distributed.pipelining."""
    action = found["action"]
    return NamedOperation(
        "staged",
        _ACTIONS.get(action),
        _UNPLACED.get(action, action),
        stage=int(found["stage"]),
        microbatch=None if found["mb"] is None else int(found["mb"]),
    )


def _known(value: int | None) -> int | None:
    """Take a negative number for none."""
    return None if value is None or value < 0 else value
