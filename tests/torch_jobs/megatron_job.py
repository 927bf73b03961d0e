"""A real job of Megatron-Core's own schedules, of a few processes on this machine (gloo), with a fault if asked.

Megatron-Core asks CUDA for a device here and there; `stand_in_for_cuda` answers for it. Layers sleep, as those of `pipeline.py` do.
A program, which runs one job after the other: `python tests/torch_jobs/megatron_job.py OUT --faults none slow-link`. Needs torch
and megatron-core.

Leaves `OUT/none/rank-*.parquet` and its like, and beside them `calls-*.json`: what Megatron-Core was truly asked to do, noted below
the recorder.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from links import make_posts, slow_down
from pipeline import FORWARD_S, WIDTH, Layers
from ranks import joined, start_ranks

from tests.record.megatron_on_cpu import stand_in_for_cuda

SCHEDULES = ("1f1b", "interleaved")
FAULTS = ("none", "slow-stage", "slow-worker", "slow-link")
PP = DP = 2
N_CHUNKS = 2
ROWS = 4
#: How much longer the slow stage and the slow worker take, and how many forwards a message takes on the slow link.
SLOW = 3.0
LATE = 3.0


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--overlap", action="store_true", help="overlap point-to-point (interleaved alone can)")
    parser.add_argument("--warm-up", action="store_true", help="with --overlap: in warm-up and flush, too")
    parser.add_argument("--batch", action="store_true", help="point-to-point in batches")
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=["none"])
    parser.add_argument(
        "--place", type=int, default=1, help="stage of slow-stage, rank of slow-worker, replica of slow-link"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=6)
    parser.add_argument("--forward-s", type=float, default=FORWARD_S)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run one job a fault: start one process a rank and wait for all."""
    options = parse(arguments)
    warnings.simplefilter("ignore")  # Megatron-Core misses its faster libraries
    import megatron.core.distributed  # once, before the processes are forked: it takes seconds
    import megatron.core.pipeline_parallel.schedules  # noqa: F401

    for fault in options.faults:
        (options.out / fault).mkdir(parents=True, exist_ok=True)
        job = argparse.Namespace(**vars(options) | {"fault": fault, "out": options.out / fault})
        start_ranks(run_rank, PP * DP, job, make_posts(), method="fork")


def run_rank(rank, port, options, posts):
    """Train on one rank."""
    stand_in_for_cuda()
    with joined(rank, port, PP * DP):
        if options.fault == "slow-link":
            # Data-parallel ranks lie side by side: rank = stage * dp + dp_rank.
            slow_down(LATE * options.forward_s, (options.place, DP + options.place), posts)
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=PP,
            virtual_pipeline_model_parallel_size=N_CHUNKS if options.schedule == "interleaved" else None,
            create_gloo_process_groups=False,
        )
        train(rank, options)


def train(rank, options):
    """Run the steps of one rank."""
    from megatron.core import distributed, parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    calls = note_calls(schedules, p2p_communication)
    from diagnose.record import Recorder

    class Chunk(MegatronModule):
        """The layers of one model chunk."""

        def __init__(self, config, seconds):
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.pre_process, self.share_embeddings_and_output_weights = False, False
            self.layers = Layers(seconds, lambda: False)
            self.received = None

        def set_input_tensor(self, tensors):
            """Take what the stage before sent."""
            self.received = tensors[0]

        def forward(self, batch):
            """Work on one microbatch."""
            return self.layers(batch if self.received is None else self.received)

    n_chunks = N_CHUNKS if options.schedule == "interleaved" else 1
    stage = parallel_state.get_pipeline_model_parallel_rank()
    seconds = options.forward_s / n_chunks
    if options.place == {"slow-stage": stage, "slow-worker": rank}.get(options.fault, -1):
        seconds *= SLOW
    config = TransformerConfig(
        num_layers=4,
        hidden_size=WIDTH,
        num_attention_heads=2,
        pipeline_model_parallel_size=PP,
        virtual_pipeline_model_parallel_size=n_chunks if n_chunks > 1 else None,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=options.overlap,
        overlap_p2p_comm_warmup_flush=options.warm_up,
        batch_p2p_comm=options.batch,
        deallocate_pipeline_outputs=not options.overlap,  # gloo may still be sending them,
        use_cpu_initialization=True,
    )
    chunks = [
        DistributedDataParallel(config, DistributedDataParallelConfig(), Chunk(config, seconds))
        for _ in range(n_chunks)
    ]
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)

    def forward_step(batches, model):
        output = model(next(batches))
        return output, lambda found: ((found**2).mean(), {"loss": 0.0})

    def batches():
        while True:
            yield torch.randn(ROWS, 1, WIDTH)

    forward_backward = schedules.get_forward_backward_func()
    with Recorder(options.out, sample=1.0) as recorder:
        config.finalize_model_grads_func = distributed.finalize_model_grads
        for _ in range(options.steps):
            calls.append([])
            with recorder.step():
                for chunk in chunks:
                    chunk.zero_grad_buffer()
                forward_backward(
                    forward_step_func=forward_step,
                    data_iterator=[batches() for _ in chunks],
                    model=chunks,
                    num_microbatches=options.microbatches,
                    seq_length=ROWS,
                    micro_batch_size=1,
                )
                for p in parameters:
                    p.grad = p.main_grad
                norm = torch.nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
                dist.all_reduce(norm)
                torch.nn.utils.clip_grads_with_norm_(parameters, 10.0, norm**0.5)
                optimizer.step()
    (options.out / f"calls-{rank}.json").write_text(json.dumps(calls))


def note_calls(schedules, p2p_communication):
    """Note by step what is computed and communicated: `forward chunk microbatch`, `backward`, `send_next`, `recv_prev`, ..."""
    calls = []
    forward, backward = schedules.forward_step, schedules.backward_step
    communicate = p2p_communication.P2PCommunicator._communicate

    def forward_step(*args, **kwargs):
        calls[-1].append(f"forward {kwargs.get('vp_stage') or 0} {kwargs['current_microbatch']}")
        return forward(*args, **kwargs)

    def backward_step(*args, **kwargs):
        calls[-1].append("backward")
        return backward(*args, **kwargs)

    def noted(self, **kwargs):
        sends = [name for name in ("send_next", "send_prev") if kwargs[f"tensor_{name}"] is not None]
        calls[-1].extend(sends + [name for name in ("recv_next", "recv_prev") if kwargs[name]])
        return communicate(self, **kwargs)

    schedules.forward_step, schedules.backward_step = forward_step, backward_step
    p2p_communication.P2PCommunicator._communicate = noted
    return calls


if __name__ == "__main__":
    main(sys.argv[1:])
