"""Interleaved 1F1B of `torch.distributed.pipelining`: two stages of two chunks, two times data-parallel."""

import dataclasses

from tests.record.table.jobs import pipeline_1f1b

FRAMEWORK = dataclasses.replace(pipeline_1f1b.FRAMEWORK, title="interleaved, pp 2 x dp 2", chunks=2)

if __name__ == "__main__":
    pipeline_1f1b.main(FRAMEWORK)
