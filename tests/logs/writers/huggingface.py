"""What the Trainer of Hugging Face transformers prints and keeps; TRL's trainers and Accelerate's scripts are alike.

Source: huggingface/transformers, src/transformers/trainer_callback.py (`ProgressCallback`, `PrinterCallback`), trainer.py;
huggingface/trl, trl/trainer/grpo_trainer.py (`step_time`, `num_tokens`); huggingface/accelerate, examples.
"""

import json

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, stamp, windows
from tests.logs.writers.tqdm_bars import SMOOTHING, Bar


def write_trainer(
    run: LoggedRun,
    *,
    bars: bool = True,
    strings: bool = False,
    trl: bool = False,
    banner: bool = True,
    returns: bool = True,
) -> bytes:
    """Write what the main process prints.

    `bars` are off under `disable_tqdm`; `strings` writes figures of dicts as transformers 5 does; `trl` adds `num_tokens` and
    `step_time`; `returns` keeps carriage returns, which people's terminals and pastes turn into ends of lines.
    """
    text: list[str] = []
    ends_s = run.ends_s()
    lines = {last: (first, seconds) for first, last, seconds in windows(run)}
    seen, bar = 0.0, Bar(run.total, run.began_s)
    for i, iteration in enumerate(run.iteration.tolist()):
        attempt = attempt_at(run, i)
        if attempt is not None:
            began_s = ends_s[i] - run.step_s[i]
            if i:
                text.append("\nTraceback (most recent call last):\nRuntimeError: NCCL communicator was aborted\n")
            if banner:
                text.append(_banner(run, began_s))
                if i:
                    text.append(
                        f"[INFO|trainer.py:2444] {stamp(began_s)} >>   Continuing training from global step {iteration - 1}\n"
                    )
            bar = Bar(run.total, began_s)
            if bars:
                text.append(bar.paint(began_s))
        seen += float(run.tokens[i])
        painted = bar.update(ends_s[i], 1 if bar.n or iteration == 1 else iteration)
        text.append(painted if bars else "")
        if i in lines:
            first, _ = lines[i]
            values: dict[str, object] = {
                "loss": round(12.0 / iteration**0.2, 4),
                "grad_norm": 1.2345678901234567,
                "learning_rate": 4.9e-05,
                "epoch": round(iteration / run.total, 2),
            }
            if trl:
                values |= {
                    "num_tokens": seen,
                    "step_time": float(run.step_s[first : i + 1].mean()),
                    "mean_token_accuracy": 0.61,
                }
            text.append(_say(values, bar, ends_s[i], bars=bars, strings=strings))
        at_s = ends_s[i]
        for event in between_after(run, i):
            if event.kind == "evaluation":
                text.append(_evaluate(bar, at_s, event.seconds, iteration, run, bars=bars, strings=strings))
            elif event.kind == "save":
                text.append(
                    f"[INFO|trainer.py:3910] {stamp(at_s)} >> Saving model checkpoint to out/checkpoint-{iteration}\n"
                )
            at_s += event.seconds
    runtime_s = float(ends_s[-1] - run.began_s)
    values = {
        "train_runtime": runtime_s,
        "train_samples_per_second": 12.3,
        "train_steps_per_second": len(run.step_s) / runtime_s,
        "epoch": 1.0,
    }
    text.append(_say(values, bar, ends_s[-1], bars=bars, strings=strings))
    whole = "".join(text)
    return (whole if returns else whole.replace("\r", "\n")).encode()


def write_trainer_state(run: LoggedRun, *, trl: bool = False) -> bytes:
    """Write `trainer_state.json` as the last checkpoint has it."""
    history: list[dict[str, object]] = []
    seen = 0.0
    for first, last, _ in windows(run):
        iteration = int(run.iteration[last])
        seen += float(run.tokens[first : last + 1].sum())
        entry: dict[str, object] = {"epoch": 0.1, "grad_norm": 1.2, "learning_rate": 4.9e-05, "loss": 2.5}
        if trl:
            entry |= {"num_tokens": seen, "step_time": float(run.step_s[first : last + 1].mean())}
        history.append({**entry, "step": iteration})
        history += [
            {"epoch": 0.1, "eval_loss": 2.4, "eval_runtime": event.seconds, "step": iteration}
            for event in between_after(run, last)
            if event.kind == "evaluation"
        ]
    state = {
        "best_metric": None,
        "epoch": 1.0,
        "eval_steps": run.intervals.get("evaluation", 500),
        "global_step": int(run.iteration[-1]),
        "log_history": history,
        "logging_steps": run.interval,
        "max_steps": run.total,
        "num_train_epochs": 1,
        "save_steps": run.intervals.get("save", 500),
        "train_batch_size": 4,
    }
    return json.dumps(state, indent=2).encode()


def write_accelerate(run: LoggedRun, *, name: str = "Steps") -> bytes:
    """Write the bar of a script that loops with Accelerate: `tqdm(range(max_train_steps), desc="Steps")`."""
    ends_s, text = run.ends_s(), []
    bar = Bar(run.total, run.began_s)
    for i, iteration in enumerate(run.iteration.tolist()):
        if attempt_at(run, i) is not None:
            bar = Bar(run.total, ends_s[i] - run.step_s[i], name=name)
            bar.n = bar.painted_n = iteration - 1
            text.append(bar.paint(bar.began_s))
        text.append(bar.update(ends_s[i]))
        text.append(bar.paint(ends_s[i], f"lr=1e-05, step_loss={3.0 / iteration:.3f}"))
        text += [f"\nSaved state to out/checkpoint-{iteration}\n" for e in between_after(run, i) if e.kind == "save"]
    return "".join(text).encode()


def write_loading() -> bytes:
    """Write the bars that come before a run and are no steps: data sets, weights."""
    text = []
    for name, total, unit in (
        ("Loading checkpoint shards", 4, "it"),
        ("Map", 20000, " examples"),
        ("Running tokenizer on train dataset (num_proc=8)", 50000, " examples"),
        ("Fetching 12 files", 12, "it"),
    ):
        bar = Bar(total, 1000.0, name=name, smoothing=SMOOTHING, unit=unit)
        text += [bar.update(1000.0 + 0.5 * k, total // 4) for k in range(1, 5)]
        text.append("\n")
    return "".join(text).encode()


def _banner(run: LoggedRun, began_s: float) -> str:
    """Write what the Trainer says of itself, and arguments as scripts print them."""
    says = f"[INFO|trainer.py:2409] {stamp(began_s)} >> "
    arguments = {
        "dataloader_num_workers": run.intervals.get("loader-workers", 0),
        "eval_steps": run.intervals.get("evaluation"),
        "eval_strategy": "IntervalStrategy.STEPS" if "evaluation" in run.intervals else "IntervalStrategy.NO",
        "logging_steps": float(run.interval),
        "per_device_train_batch_size": 4,
        "save_steps": run.intervals.get("save", 500),
        "save_strategy": "SaveStrategy.STEPS" if "save" in run.intervals else "SaveStrategy.NO",
    }
    listed = "".join(f"{key}={value},\n" for key, value in arguments.items())
    facts = (
        "***** Running training *****",
        "  Num examples = 400,000",
        "  Num Epochs = 1",
        "  Instantaneous batch size per device = 4",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {int(run.batch_size[0])}",
        "  Gradient Accumulation steps = 1",
        f"  Total optimization steps = {run.total:,}",
    )
    return f"TrainingArguments(\n{listed})\n" + "".join(f"{says}{fact}\n" for fact in facts)


def _say(values: dict[str, object], bar: Bar, now_s: float, *, bars: bool, strings: bool) -> str:
    """Write a dict over the bar, and the bar again."""
    if strings:
        values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    if not bars:
        return f"{values}\n"
    return f"\r{' ' * 60}\r{values}\n{bar.paint(now_s)}"


def _evaluate(
    bar: Bar, at_s: float, seconds: float, iteration: int, run: LoggedRun, *, bars: bool, strings: bool
) -> str:
    """Write an evaluation: its own bar of 20 batches, and what it found."""
    text, inner = [], Bar(20, at_s)
    text += [inner.update(at_s + seconds * k / 20) if bars else "" for k in range(1, 21)]
    values: dict[str, object] = {
        "eval_loss": 2.5,
        "eval_runtime": round(seconds, 4),
        "eval_samples_per_second": 99.1,
        "epoch": round(iteration / run.total, 2),
    }
    return "".join([*text, _say(values, bar, at_s + seconds, bars=bars, strings=strings)])
