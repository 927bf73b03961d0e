"""What MaxText prints.

Source: AI-Hypercomputer/maxtext, src/MaxText/metric_logger.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after


def write_maxtext(run: LoggedRun) -> bytes:
    """Write every step."""
    lines: list[str] = []
    for i, (iteration, step_s) in enumerate(zip(run.iteration.tolist(), run.step_s.tolist(), strict=True)):
        if attempt_at(run, i) is not None:
            lines.append("I0811 21:54:44.943716 138304841739136 metric_logger.py:297] number parameters: 0.596 billion")
        said = f"completed step: {iteration}, seconds: {step_s:.3f}, TFLOP/s/device: {400 / step_s:.3f}"
        said += f", Tokens/s/device: {run.tokens[i] / run.world_size / step_s:.3f}, total_weights: {int(run.tokens[i])}"
        lines.append(f"I0811 21:54:55.531340 138304841739136 metric_logger.py:226] {said}")
        for event in between_after(run, i):
            if event.kind == "evaluation":
                lines.append(
                    f"I0811 21:54:56.000000 1 metric_logger.py:180] Completed eval after train step {iteration}, loss=2.3"
                )
            if event.kind == "save":
                lines.append(f"I0811 21:54:56.000000 1 checkpointing.py:80] saved a checkpoint at step {iteration}")
    return "\n".join([*lines, ""]).encode()
