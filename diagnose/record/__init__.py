"""Record a running torch job: the trace of `diagnose`, one Parquet file a rank.

Enters: a training loop, three lines longer than before. Leaves: `rank-00003.parquet` and its like in one folder, which
`diagnose FOLDER` reads as one job. Importing this needs no torch; recording does.

    from diagnose.record import Recorder

    with Recorder("traces/job-7") as recorder:
        for batch in loader:
            with recorder.step():
                train(batch)
"""

from diagnose.record.recorder import Recorder

__all__ = ["Recorder"]
