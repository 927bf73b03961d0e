"""Megatron-Core's interleaved 1F1B: two stages of two chunks, two times data-parallel."""

import dataclasses

from tests.record.table.jobs import megatron_1f1b

FRAMEWORK = dataclasses.replace(megatron_1f1b.FRAMEWORK, title="Megatron-Core interleaved, pp 2 x dp 2", chunks=2)

if __name__ == "__main__":
    megatron_1f1b.main(FRAMEWORK)
