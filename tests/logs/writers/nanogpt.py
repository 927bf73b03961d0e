"""What nanoGPT, llama2.c, llm.c, build-nanogpt and modded-nanogpt print.

Nothing of restarts, dates or batches. In nanoGPT and llama2.c the time of an iteration has the evaluation before it.
Source: karpathy/nanoGPT, train.py; karpathy/llama2.c, train.py; karpathy/llm.c, train_gpt2.cu; karpathy/build-nanogpt,
train_gpt2.py; KellerJordan/modded-nanogpt, train_gpt.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, logged


def write_nanogpt(run: LoggedRun, *, llama: bool = False) -> bytes:
    """Write the console of nanoGPT, or of llama2.c."""
    lines = []
    for i, (iteration, step_s) in enumerate(zip(run.iteration.tolist(), run.step_s.tolist(), strict=True)):
        if attempt_at(run, i) is not None:
            lines += [f"tokens per iteration will be: {int(run.tokens[0]):,}", "number of parameters: 123.59M"]
        if iteration % run.interval == 0 and llama:
            lines.append(
                f"{iteration} | loss 2.{iteration % 9999:04d} | lr 4.900000e-05 | {step_s * 1e3:.2f}ms | mfu 30.12%"
            )
        elif iteration % run.interval == 0:
            lines.append(f"iter {iteration}: loss 2.{iteration % 9999:04d}, time {step_s * 1e3:.2f}ms, mfu 30.12%")
        if any(event.kind == "evaluation" for event in between_after(run, i)):
            lines += [f"step {iteration}: train loss 2.1000, val loss 2.2000", "saving checkpoint to out"]
    return "\n".join([*lines, ""]).encode()


def write_llm_c(run: LoggedRun) -> bytes:
    """Write the console of llm.c: every step."""
    lines = []
    for iteration, step_s, tokens in zip(run.iteration.tolist(), run.step_s.tolist(), run.tokens.tolist(), strict=True):
        said = f"step {iteration:4d}/{run.total} | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| lr 3.00e-04 | {step_s * 1e3:.2f} ms"
        lines.append(f"{said} | 45.1% bf16 MFU | {tokens / step_s:.0f} tok/s")
    return "\n".join([*lines, ""]).encode()


def write_build_nanogpt(run: LoggedRun, *, seconds: bool = False) -> bytes:
    """Write the console of build-nanogpt, or of one of its followers that prints seconds: every step."""
    lines = []
    for i, (iteration, step_s, tokens) in enumerate(
        zip(run.iteration.tolist(), run.step_s.tolist(), run.tokens.tolist(), strict=True)
    ):
        time = f"{step_s:.5f}s" if seconds else f"{step_s * 1e3:.2f}ms"
        begun = f"step {iteration:5d} | loss: 3.208939 | lr 3.0000e-04 | norm: 0.4000"
        lines.append(f"{begun} | dt: {time} | tok/sec: {tokens / step_s:.2f}")
        if any(event.kind == "evaluation" for event in between_after(run, i)):
            lines.append("validation loss: 3.2119")
    return "\n".join([*lines, ""]).encode()


def write_modded_nanogpt(run: LoggedRun) -> bytes:
    """Write the log of modded-nanogpt: the time runs on, without what lies between steps."""
    lines, passed_s = [], run.step_s.cumsum()
    for i in logged(run):
        begun = f"step:{run.iteration[i]}/{run.total}"
        end = f"train_time:{passed_s[i] * 1e3:.0f}ms step_avg:{passed_s[i] / (i + 1) * 1e3:.2f}ms"
        lines.append(f"{begun} train_loss:2.4323 {end}")
        if any(event.kind == "evaluation" for event in between_after(run, i)):
            lines.append(f"{begun} val_loss:2.1192 {end}")
    return "\n".join([*lines, ""]).encode()
