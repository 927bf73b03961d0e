"""The operation types of a trace, as small integers.

`TRACE.md` names them; everything after the loader works with the codes below.
"""

import enum
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Op(enum.IntEnum):
    """Code of an operation type; simulated types first, evidence types last."""

    FORWARD = 0
    BACKWARD = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    ALL_GATHER = 6
    REDUCE_SCATTER = 7
    SEPARATE = 8
    LAYERNORM = 9
    EMBEDDING = 10
    CLIP = 11
    OPTIMIZER = 12
    WEIGHT = 13
    GC = 14
    CUDA_MALLOC = 15
    DATA_LOAD = 16
    CHECKPOINT = 17
    EVAL = 18
    LOG = 19


NAMES: dict[Op, str] = {
    Op.FORWARD: "forward-compute",
    Op.BACKWARD: "backward-compute",
    Op.FORWARD_SEND: "forward-send",
    Op.FORWARD_RECV: "forward-recv",
    Op.BACKWARD_SEND: "backward-send",
    Op.BACKWARD_RECV: "backward-recv",
    Op.ALL_GATHER: "params-all-gather",
    Op.REDUCE_SCATTER: "grads-reduce-scatter",
    Op.SEPARATE: "separate-grads-all-reduce",
    Op.LAYERNORM: "layernorm-grads-all-reduce",
    Op.EMBEDDING: "embedding-grads-all-reduce",
    Op.CLIP: "optimizer-clip-main-grad",
    Op.OPTIMIZER: "optimizer",
    Op.WEIGHT: "backward-weight",
    Op.GC: "gc",
    Op.CUDA_MALLOC: "cuda-malloc",
    Op.DATA_LOAD: "data-load",
    Op.CHECKPOINT: "checkpoint",
    Op.EVAL: "eval",
    Op.LOG: "log",
}
#: Where a schedule splits the backward, `backward-compute` is the input's gradient, whichever of the two names it has.
BY_NAME: dict[str, Op] = {name: op for op, name in NAMES.items()} | {"backward-input": Op.BACKWARD}

#: Own time is the duration; ideal is the mean. Every other simulated type is communication, ideal the median.
COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.WEIGHT, Op.GC, Op.OPTIMIZER})
#: What a worker computes of a microbatch; the place of each is its direction in the arrays of `Breakdown`.
DIRECTIONS = (Op.FORWARD, Op.BACKWARD, Op.WEIGHT)
#: Forwards, backwards and weight gradients: what `DIRECTIONS` are called in sentences.
DIRECTION_NAMES = ("forward", "backward", "weight gradient")
#: Point-to-point operations: one stream each on a worker.
P2P = (Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV)
#: `RECV_OF`, `SEND_OF`: what brings a compute its input, and what takes its output away.
RECV_OF = {Op.FORWARD: Op.FORWARD_RECV, Op.BACKWARD: Op.BACKWARD_RECV}
SEND_OF = {Op.FORWARD: Op.FORWARD_SEND, Op.BACKWARD: Op.BACKWARD_SEND}
RECEIVES, SENDS = tuple(RECV_OF.values()), tuple(SEND_OF.values())
#: Collectives over all dp ranks of a stage.
DP_COLLECTIVES = (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.SEPARATE)
#: Rows that explain other rows; `eval` and `log` are planned work. `gc` is simulated where it follows a worker's last compute.
EVIDENCE = (Op.GC, Op.CUDA_MALLOC, Op.DATA_LOAD, Op.CHECKPOINT, Op.EVAL, Op.LOG)


def of_types(op: NDArray[np.integer], types: Iterable[int]) -> NDArray[np.bool_]:
    """Mark the operations of some types, a few: `numpy.isin` takes five times as long.

    >>> of_types(np.array([0, 2, 7]), (Op.FORWARD, Op.REDUCE_SCATTER)).tolist()
    [True, False, True]
    """
    found = np.zeros(op.shape, dtype=bool)
    for one in types:
        found |= op == int(one)
    return found
