"""Megatron-Core as Megatron-LM trains with it: 1F1B of two stages, two times data-parallel, with its own DDP and optimizer.

All is imported by name before the recorder is made, and a `train_step` is as Megatron-LM has it.
"""

import dataclasses

from tests.record.table.framework import Framework
from tests.record.table.jobs import pipeline_1f1b

FRAMEWORK = dataclasses.replace(
    pipeline_1f1b.FRAMEWORK, title="Megatron-Core 1F1B, pp 2 x dp 2", needs=("torch", "megatron.core")
)


def main(framework: Framework = FRAMEWORK) -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist

    from tests.record.megatron_on_cpu import stand_in_for_cuda
    from tests.record.table.job import BATCH, WIDTH, Job
    from tests.record.table.shown import run_lines

    stand_in_for_cuda()
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.enums import ModelType
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    job = Job.from_command_line(framework)

    def pretrain() -> None:
        """Make the process group, the model and the optimizer, and train."""
        dist.init_process_group("gloo")
        chunks = framework.chunks if framework.chunks > 1 else None
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=framework.n_stages,
            virtual_pipeline_model_parallel_size=chunks,
            create_gloo_process_groups=False,
        )

        class Chunk(MegatronModule):
            """The layers of one model chunk."""

            def __init__(self, config, number):
                super().__init__(config)
                self.model_type = ModelType.encoder_or_decoder
                self.pre_process = self.share_embeddings_and_output_weights = False
                self.layers = job.model(number)
                self.received = None

            def set_input_tensor(self, tensors):
                """Take what the stage before sent."""
                self.received = tensors[0]

            def forward(self, batch):
                """Work on one microbatch."""
                return self.layers(batch if self.received is None else self.received)

        config = TransformerConfig(
            num_layers=2 * framework.n_stages,
            hidden_size=WIDTH,
            num_attention_heads=2,
            pipeline_model_parallel_size=framework.n_stages,
            virtual_pipeline_model_parallel_size=chunks,
            pipeline_dtype=torch.float32,
            use_cpu_initialization=True,
        )
        ddp = DistributedDataParallelConfig()
        model = [DistributedDataParallel(config, ddp, Chunk(config, number)) for number in range(framework.chunks)]
        optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3), model, use_gloo_process_groups=False)
        config.finalize_model_grads_func = finalize_model_grads
        config.grad_scale_func = optimizer.scale_loss
        forward_backward = get_forward_backward_func()

        def forward_step(batches, chunk):
            batch = next(batches) if batches is not None else None
            return chunk(batch), lambda output: (job.loss(output, torch.zeros(())), {"loss": 0.0})

        def microbatches(loader):
            for batch in loader:
                yield from (part.view(BATCH, 1, WIDTH) for part in batch.chunk(framework.microbatches))

        def run(batches, *, forward_only=False):
            """Run a schedule; the first stage alone reads, for its first chunk."""
            forward_backward(
                forward_step_func=forward_step,
                data_iterator=[batches, *[None] * (framework.chunks - 1)],
                model=model,
                num_microbatches=framework.microbatches,
                seq_length=BATCH,
                micro_batch_size=1,
                forward_only=forward_only,
            )

        def reading(loader):
            return microbatches(loader) if job.stage == 0 else None

        batches = reading(job.loader())
        for step in range(job.n_steps):
            for chunk in model:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            run(batches)
            optimizer.step()
            if job.evaluates_after(step):
                with torch.no_grad():
                    loader = torch.utils.data.DataLoader(job.evaluation_dataset(), **job.loader_options)
                    run(reading(loader), forward_only=True)
            if job.saves_after(step) and job.dp_rank == 0:
                job.save([chunk.state_dict() for chunk in model])

    run_lines("megatron", job.trace, pretrain=pretrain)
    job.finish()


if __name__ == "__main__":
    main()
