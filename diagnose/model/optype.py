"""The operation types of a trace, as small integers.

`TRACE.md` names them; everything after the loader works with the codes below.
"""

import enum


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
    GC = 13
    CUDA_MALLOC = 14
    DATA_LOAD = 15
    CHECKPOINT = 16
    EVAL = 17
    LOG = 18


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
    Op.GC: "gc",
    Op.CUDA_MALLOC: "cuda-malloc",
    Op.DATA_LOAD: "data-load",
    Op.CHECKPOINT: "checkpoint",
    Op.EVAL: "eval",
    Op.LOG: "log",
}
BY_NAME: dict[str, Op] = {name: op for op, name in NAMES.items()}

#: Own time is the duration; ideal is the mean. Every other simulated type is communication, ideal the median.
COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.GC, Op.OPTIMIZER})
#: Point-to-point operations: one stream each on a worker.
P2P = (Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV)
#: Collectives over all dp ranks of a stage.
DP_COLLECTIVES = (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.SEPARATE)
#: Rows that explain other rows; `eval` and `log` are planned work. `gc` is simulated where it follows a worker's last compute.
EVIDENCE = (Op.GC, Op.CUDA_MALLOC, Op.DATA_LOAD, Op.CHECKPOINT, Op.EVAL, Op.LOG)
