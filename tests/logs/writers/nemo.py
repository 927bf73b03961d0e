"""What NeMo prints: a line a step, or Lightning's bar.

Source: NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py; nemo/utils/callbacks, nemo/utils/exp_manager.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, logged


def write_nemo(run: LoggedRun, *, bar: bool = False) -> bytes:
    """Write what rank 0 prints."""
    text: list[str] = []
    lines = set(logged(run))
    for i, (iteration, step_s) in enumerate(zip(run.iteration.tolist(), run.step_s.tolist(), strict=True)):
        if attempt_at(run, i) is not None:
            text.append("[NeMo I 2026-01-01 00:00:00 exp_manager:396] Experiments will be logged\n")
        if i in lines and bar:
            said = f"reduced_train_loss=2.340, global_step={iteration - 1:.2f}, train_step_timing in s={step_s:.5f}"[
                :99
            ]
            text.append(f"\rEpoch 0: :   1%|\u258f         | {iteration}/{run.total} [10:58<15:32:28, v_num=, {said}]")
        elif i in lines:
            said = [
                f"Training epoch 0, iteration {iteration}/{run.total}",
                f"lr: 3e-05 | global_batch_size: {run.batch_size[i]} | global_step: {iteration}",
                f"reduced_train_loss: 2.34 | train_step_timing in s: {step_s:.4g}",
            ]
            text.append(" | ".join(said) + "\n")
        for event in between_after(run, i):
            if event.kind == "evaluation":
                text.append(
                    "\rValidation DataLoader 0: :  50%|\u2588    | 5/10 [00:20<00:20,  2.53it/s]" if bar else ""
                )
            if event.kind == "save":
                text.append(
                    f"Epoch 0, global step {iteration}: 'val_loss' reached 2.1, saving model to '/ckpt' as top 3\n"
                )
    return "".join(text).encode()
