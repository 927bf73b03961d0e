"""Consoles that tell a step in one line: a table of what each prints, after its source.

The fields of a line: `n` is the number of the iteration, `n0` the same counted from 0; where epochs have steps of their own it is
the `i`-th (`i0`-th) of `length` in epoch `e` (`e0`). `own` are the seconds of the step itself, `mean` those of the steps since
the line before, `inside` likewise with what lies between steps, `sliding` of the last ten, `lap` of the epoch, `whole` of all
since the start; each is there as `own_ms`, `own_rate` (steps a second) and `own_cut` (milliseconds, three digits) as well.
`passed` is what went by since the line before, `wall` since the start, `at` the moment of the line, `ms` its milliseconds.

Sources: karpathy/build-nanogpt, train_gpt2.py; karpathy/nanochat, scripts/base_train.py; Lightning-AI/litgpt, litgpt/pretrain.py;
huggingface/nanotron, src/nanotron/trainer.py (the first, then every so many; checkpoints behind the line) and logging/base.py
(`human_format`); Megvii-BaseDetection/YOLOX, yolox/core/trainer.py; facebookresearch/detectron2, detectron2/utils/events.py
(`CommonMetricPrinter`), engine/hooks.py (`IterationTimer`: all iterations but two) and engine/train_loop.py;
facebookresearch/maskrcnn-benchmark, engine/trainer.py; facebookresearch/fairseq, fairseq/logging/progress_bar.py and trainer.py
(`wall`, rounded); PaddlePaddle/PaddleNLP, paddlenlp/trainer (`speed_metrics`; evaluations behind the line are in the next);
PaddlePaddle/PaddleOCR, tools/program.py; PaddlePaddle/PaddleClas, ppcls/engine/train/train.py (meters of the epoch, reset at batch
5); PaddlePaddle/PaddleSeg, paddleseg/core/ train.py; PaddlePaddle/PaddleDetection, ppdet/engine/callbacks.py (`SmoothedValue` of
`log_iter`); NVIDIA-NeMo/Automodel, recipes/llm/ train_ft.py; mindspore-lab/mindformers, core/callback/callback.py (`per_step_time:
%dms`); mindspore-lab/mindyolo, utils/trainer_factory.py; tensorflow/models, research/slim and object_detection/model_lib_v2.py (the
last step of a hundred), tutorials/image/cifar10; tensorflow/tensorflow, python/training/basic_session_run_hooks.py;
keras-team/keras, src/utils/progbar.py; flairNLP/flair, flair/trainers/trainer.py; facebookresearch/DiT, train.py (saves are in the
next line); facebookresearch/dlrm, dlrm_s_pytorch.py; HRNet/HRNet-Semantic-Segmentation, lib/core/function.py; open-mmlab/mmcv 1.x,
runner/hooks/logger/text.py; open-mmlab/mmengine, runner/log_processor.py (`window_size` is 10, whatever the interval of lines);
AlexeyAB/darknet; deepmodeling/deepmd-kit 3, deepmd/loggers/training.py; apache/mxnet, python/mxnet/callback.py (every so many
batches from 0 on); wenet-e2e/wenet, utils/executor.py (likewise); lightly-ai/lightly-train.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterator

import numpy as np

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after

#: Iterations of which MMEngine prints the mean.
SLIDING = 10
#: Iterations after a start that Detectron2's mean leaves out.
WARM_UP = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a console prints."""

    #: Of a step.
    line: str
    #: `start`, `evaluation`, `save`, `epoch_line`: of what lies between; nothing where it is not printed.
    start: str = ""
    evaluation: str = ""
    save: str = ""
    epoch_line: str = ""
    #: Steps of an epoch; 0 where numbers run on, -1 where a line is an epoch, of ten times the interval of other lines.
    length: int = 0
    #: The remainder of the iterations that are printed, by the interval.
    first: int = 0
    #: Shapes that no run has: who begins anew with an epoch alone never restarts within one.
    never: tuple[str, ...] = ()


_AT, _AT_MS = "{at:%Y-%m-%d %H:%M:%S}", "{at:%Y-%m-%d %H:%M:%S},{ms:03d}"
_D2 = "[{at:%m/%d %H:%M:%S} d2."
_TF = "I{at:%m%d %H:%M:%S}.{ms:03d}000 140 "
_PADDLE = "[{at:%Y/%m/%d %H:%M:%S}] "
TEMPLATES: dict[str, Template] = {
    "build-nanogpt": Template(
        line="step {n:5d} | loss: 3.208939 | lr 3.0000e-04 | norm: 0.4000 | dt: {own_ms:.2f}ms | tok/sec: {tokens_rate:.2f}",
        evaluation="validation loss: 3.2119",
    ),
    "nanochat": Template(
        line="step {n:05d}/{total:05d} (1.00%) | loss: 3.208939 | lrm: 1.00 | dt: {own_ms:.2f}ms | tok/sec: {tokens_rate:,.0f} | "
        "mfu: 40.10 | total time: {wall_minutes:.2f}m",
        evaluation="Step {n:05d} | Validation bpb: 1.2345",
    ),
    "LitGPT": Template(
        line="Epoch 1 | iter {n} step {n} | loss train: 3.209, val: 3.1 | iter time: {own_ms:.2f} ms (step) "
        "remaining time: 1:02:03",
        evaluation="iter {n}: val loss 3.2111, val time: {took_ms:.2f} ms",
        save="Saving checkpoint to 'out/pretrain/step-{n:08d}/lit_model.pth'",
    ),
    "nanotron": Template(
        line="{at:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {n} / {total} | consumed_tokens: 85.8G | "
        "elapsed_time_per_iteration_ms: {own_cut} | tokens_per_sec: {tokens_rate_cut} | tokens_per_sec_per_gpu: 2.85K | "
        "global_batch_size: {batch} | lm_loss: 2.38 | lr: 0.0003",
        save="{at:%m/%d/%Y %H:%M:%S} [WARNING|DP=0|PP=0|TP=0|node-1]: Saving checkpoint at /scratch/{n}",
        first=1,
    ),
    "YOLOX": Template(
        line=_AT
        + " | INFO | yolox.core.trainer:270 - epoch: {e}/300, iter: {i}/{length}, gpu mem: 8000Mb, mem: 12.1Gb, "
        "iter_time: {mean:.3f}s, data_time: 0.002s, total_loss: 7.3, iou_loss: 2.5, lr: 1.000e-02, size: 640, ETA: 3 days, 4:00:01",
        start=_AT + " | INFO | yolox.core.trainer:194 - Training start...",
        length=600,
    ),
    "Detectron2": Template(
        line=_D2
        + "utils.events]: \x20eta: 1 day, 8:05:12  iter: {n0}  total_loss: 1.021  loss_cls: 0.71  loss_box_reg: 0.31  "
        "time: {whole:.4f}  data_time: 0.0010  lr: 0.01  max_mem: 3961M",
        start=_D2 + "engine.train_loop]: Starting training from iteration {n0}",
        evaluation=_D2 + "evaluation.evaluator]: Start inference on 5000 batches",
        save=_D2 + "fvcore.common.checkpoint]: Saving checkpoint to out/model_{n0:07d}.pth",
    ),
    "maskrcnn-benchmark": Template(
        line=_AT_MS
        + " maskrcnn_benchmark.trainer INFO: eta: 8:05:12  iter: {n}  loss: 0.5123 (0.7301)  time: {own:.4f} "
        "({whole_inside:.4f})  data: 0.0010 (0.0010)  lr: 0.020000  max mem: 3961",
        start=_AT_MS + " maskrcnn_benchmark.trainer INFO: Start training",
        save=_AT_MS + " maskrcnn_benchmark.utils.checkpoint INFO: Saving checkpoint to out/model_{n:07d}.pth",
    ),
    "fairseq": Template(
        line=_AT
        + " | INFO | train_inner | epoch 001: {n:6d} / 160368 loss=9.2, wps={tokens_rate:.1f}, ups={inside_rate:.2f}, "
        "wpb={tokens:.1f}, bsz={batch}, num_updates={n}, lr=2.8e-05, gnorm=3.23, train_wall=13, wall={wall:.0f}",
        evaluation=_AT
        + " | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.1 | ppl 17.1 | num_updates {n}",
        save=_AT + " | INFO | fairseq.checkpoint_utils | Saved checkpoint c.pt (epoch 1 @ {n} updates, score 4.2) "
        "(writing took {took:.6f} "
        "seconds)",
    ),
    "fairseq as JSON": Template(
        line=_AT + ' | INFO | train_inner | {{"epoch": 1, "update": 0.2, "loss": "9.2", "wps": "{tokens_rate:.1f}", '
        '"ups": "{inside_rate:.2f}", "wpb": "{tokens:.1f}", "bsz": "{batch}", "num_updates": "{n}", "lr": "2.8e-05", '
        '"train_wall": "13", "wall": "{wall:.0f}"}}',
    ),
    "PaddleNLP": Template(
        line="[{at:%Y-%m-%d %H:%M:%S},{ms:03d}] [    INFO] - loss: 3.2, learning_rate: 1e-05, global_step: {n}, interval_runtime: "
        "{passed:.4f}, interval_samples_per_second: 31.1, interval_steps_per_second: {inside_rate:.4f}, progress_or_epoch: 0.0265",
        save="[{at:%Y-%m-%d %H:%M:%S},{ms:03d}] [    INFO] - Saving model checkpoint to out/checkpoint-{n}",
        evaluation="[{at:%Y-%m-%d %H:%M:%S},{ms:03d}] [    INFO] - ***** Running Evaluation *****",
    ),
    "PaddleOCR": Template(
        line=_PADDLE
        + "ppocr INFO: epoch: [{e}/500], global_step: {n}, lr: 0.005, loss: 0.6, avg_reader_cost: 0.00110 s, "
        "avg_batch_cost: {mean:.5f} s, avg_samples: 16.0, ips: 7.8 samples/s, eta: 2 days, 20:01:28",
        evaluation=_PADDLE + "ppocr INFO: cur metric, precision: 0.5, recall: 0.4, hmean: 0.4, fps: 30.1",
        save=_PADDLE + "ppocr INFO: save model in ./output/latest",
        length=600,
    ),
    "PaddleClas": Template(
        line=_PADDLE
        + "ppcls INFO: [Train][Epoch {e}/20][Iter: {i0}/{length}]lr(LinearWarmup): 0.00310000, CELoss: 4.6, loss: 4.6, "
        "batch_cost: {lap:.5f}s, reader_cost: 0.00144, ips: 42.91237 samples/s, eta: 0:01:03",
        never=("restart",),
        length=600,
        first=1,
    ),
    "PaddleSeg": Template(
        line=_AT
        + " [INFO]\t[TRAIN] epoch: 1, iter: {n}/{total}, loss: 2.6011, lr: 0.009, batch_cost: {mean:.4f}, reader_cost: "
        "0.00120, ips: 27.5862 samples/sec | ETA 00:02:23",
        evaluation=_AT + " [INFO]\tStart evaluating (total_samples: 76, total_iters: 76)...",
    ),
    "PaddleDetection": Template(
        line="[{at:%m/%d %H:%M:%S}] ppdet.engine INFO: Epoch: [{e0}] [{i0:4d}/{length}] learning_rate: 0.001000 loss: 1.812 "
        "eta: 1 day, 1:00:00 batch_cost: {mean:.4f} data_cost: 0.0012 ips: 15.6095 images/s",
        length=600,
        first=1,
    ),
    "NeMo Automodel": Template(
        line=_AT
        + " | INFO | root | step {n} | epoch 0 | loss 0.6431 | grad_norm 1.1250 | lr 1.00e-05 | mem 11.44 GiB | tps "
        "{tokens_rate:.2f}({tokens_rate_gpu:.2f}/gpu) | num_label_tokens {tokens:.0f}",
        evaluation=_AT
        + ' | INFO | root | [val] name "default" | step {n} | epoch 0 | loss 0.61 | lr 1.00e-05 | num_label_tokens 9',
    ),
    "MindFormers": Template(
        line=_AT_MS
        + " - mindformers - INFO - {{ Epoch:[  1/  2], step:[{n:5d}/{total:5d}], loss: 10.649, per_step_time: "
        "{own_whole_ms}ms, lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: [1.2]",
    ),
    "MindYOLO": Template(
        line=_AT_MS + " [INFO] Epoch {e}/200, Step {i}/{length}, step time: {inside_ms:.2f} ms",
        length=600,
    ),
    "TF-Slim": Template(line="INFO:tensorflow:global step {n}: loss = 79.3501 ({own:.3f} sec/step)"),
    "TensorFlow's tutorials": Template(
        line=_AT + ".{ms:03d}000: step {n}, loss = 1.36 (4606.2 examples/sec; {inside:.3f} sec/batch)",
    ),
    "Object Detection API": Template(
        line=_TF + "model_lib_v2.py:705] Step {n} per-step time {own:.3f}s loss=0.913",
    ),
    "Estimator": Template(
        line=_TF + "basic_session_run_hooks.py:260] loss = 0.3523, step = {n} ({passed:.3f} sec)",
        save=_TF + "basic_session_run_hooks.py:618] Saving checkpoints for {n} into out/model.ckpt.",
    ),
    "Keras": Template(
        line="{length}/{length} - {passed:.0f}s - {inside_keras}/step - accuracy: 0.9012 - loss: 0.3412",
        epoch_line="Epoch {e}/{epochs}",
        length=-1,
    ),
    "Flair": Template(
        line=_AT_MS
        + " epoch {e} - iter {i}/{length} - loss 14.21003212 - time (sec): {lap_s:.2f} - samples/sec: 19.11 - lr: 0.1",
        never=("restart",),
        length=600,
    ),
    "DiT": Template(
        line="[\x1b[34m" + _AT + "\x1b[0m] (step={n:07d}) Train Loss: 0.2112, Train Steps/Sec: {inside_rate:.2f}",
        save="[\x1b[34m" + _AT + "\x1b[0m] Saved checkpoint to results/000/checkpoints/{n:07d}.pt",
    ),
    "DLRM": Template(
        line="Finished training it {i}/{length} of epoch {e0}, {mean_ms:.2f} ms/it, loss 0.453212",
        length=600,
    ),
    "HRNet": Template(
        line=_AT_MS
        + " Epoch: [{e0}/484] Iter:[{i0}/{length}], Time: {lap_inside:.2f}, lr: [0.018], Loss: 1.594388, Acc:0.64",
        never=("restart",),
        length=600,
        first=1,
    ),
    "fairseq 0.6": Template(
        line="| epoch {e:03d} {i:5d} / {length} loss=1.27 (1.50), wps={lap_inside_words:.0f}, wpb={tokens:.0f}, bsz={batch}, "
        "lr=0.001, clip=100%, gnorm=2.1427",
        length=600,
        never=("restart", "sequence"),
    ),
    "icefall": Template(
        line=_AT_MS
        + " INFO [train.py:755] (0/7) Epoch {e0}, batch {i0}, loss[loss=0.455, over 2490.00 frames.], tot_loss[loss=0.455, "
        "over 2490.00 frames.], batch size: 30, lr: 3.00e-03",
        length=600,
        first=1,
    ),
    "ESPnet": Template(
        line="[node-1] "
        + _AT_MS
        + " (trainer:486) INFO: {e}epoch:train:{i_before}-{i}batch: iter_time=0.001, forward_time=0.005, "
        "loss=1.281, backward_time=0.005, optim_step_time=1.970e-04, lr_0=0.100, train_time={mean:.3f}",
        length=600,
        never=("restart",),
    ),
    "NiftyNet": Template(
        line="INFO:niftynet:" + _AT_MS + ": Training iter {n}, loss=0.4051785469055176 ({own:.6f}s)",
    ),
    "mmcv": Template(
        line=_AT_MS
        + " - mmdet - INFO - Epoch [{e}][{i}/{length}]\tlr: 1.978e-03, eta: 1 day, 1:00:00, time: {mean:.3f}, data_time: 0.001, "
        "memory: 3375, loss_rpn_cls: 0.6011, loss: 1.9011",
        length=600,
    ),
    "MMEngine": Template(
        line="{at:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train)  [{e}][{i:4d}/{length}]  lr: 2.0000e-02  eta: 10:00:00  "
        "time: {sliding:.4f}  data_time: 0.0010  memory: 3375  loss: 0.4390",
        length=600,
    ),
    "Darknet": Template(
        line=" {n}: 469.803864, 848.945251 avg loss, 0.001000 rate, {own:.6f} seconds, 61248 images, 2.262981 hours left",
        save="Saving weights to /backup/yolo_last.weights",
    ),
    "DeePMD-kit": Template(
        line="[" + _AT_MS + "] DEEPMD INFO    batch {n:7d}: total wall time = {passed:.2f} s, eta = 1:02:03",
        save="[" + _AT_MS + "] DEEPMD INFO    Saved model to model.ckpt-{n}.pt",
    ),
    "MXNet": Template(
        line=_AT_MS
        + " Epoch[{e0}] Batch [{i0}]\tSpeed: 7.51 samples/sec\tTrain-RPNAcc=0.981607,\tRPNLogLoss=0.055847,",
        length=600,
        first=1,
    ),
    "WeNet": Template(
        line=_AT_MS
        + " DEBUG TRAIN Batch {e0}/{i0} loss 12.646465 loss_att 10.921429 loss_ctc 16.671551 lr 0.00032621 rank 0",
        length=600,
        first=1,
    ),
    "LightlyTrain": Template(
        line="["
        + _AT_MS
        + "][INFO] Train Step {n}/{total} | Train Loss: 32.8633 | Time Spent [Dataload: 64.5%, Forward: 16.2%]",
    ),
}


def write_console(template: Template, run: LoggedRun) -> bytes:
    """Write the lines that a console has of a run."""
    lines: list[str] = []
    for fields, is_line in _steps(template, run):
        at = int(fields["index"])
        if attempt_at(run, at) is not None and template.start:
            lines.append(template.start.format(**fields))
        if is_line:
            lines += [template.epoch_line.format(**fields)] if template.epoch_line else []
            lines.append(template.line.format(**fields))
        for event in between_after(run, at):
            said = {"evaluation": template.evaluation, "save": template.save}[event.kind]
            # A save tells how long it took when it is done.
            moment = fields["at"] + dt.timedelta(seconds=event.seconds if "took" in said else 0.0)
            if said:
                lines.append(
                    said.format(**{**fields, "took": event.seconds, "took_ms": event.seconds * 1e3, "at": moment})
                )
    return "\n".join([*lines, ""]).encode()


def _steps(template: Template, run: LoggedRun) -> Iterator[tuple[dict, bool]]:
    """Give the fields of each step that something is printed at, and whether that is its line."""
    length = 10 * run.interval if template.length < 0 else template.length or 10**9
    ends_s = run.ends_s()
    starts_s = ends_s - run.step_s
    inside_s = np.diff(ends_s, prepend=run.began_s)
    for attempt in run.attempts:
        inside_s[attempt.at] -= attempt.gap_s
    own, all_ = np.r_[0.0, run.step_s.cumsum()], np.r_[0.0, inside_s.cumsum()]
    own, all_, step_s = own.tolist(), all_.tolist(), run.step_s.tolist()
    begun = since = lap = 0
    starts, told = {attempt.at for attempt in run.attempts}, {event.at for event in run.between}
    for index, n in enumerate(run.iteration.tolist()):
        e0, i0 = divmod(n - 1, length)
        if index in starts:
            begun = since = lap = index
        if i0 == 0:
            lap = index
        if template.length == 600 and i0 == 5 and "lap:" in template.line:
            lap = index  # what the first batches took is left out
        is_line = (i0 + 1 - template.first) % (length if template.length < 0 else run.interval) == 0
        if not is_line and index not in starts and index not in told:
            continue
        end = index + 1
        seconds = {
            "own": step_s[index],
            "mean": (own[end] - own[since]) / (end - since),
            "inside": (all_[end] - all_[since]) / (end - since),
            "sliding": (own[end] - own[max(0, end - SLIDING)]) / (end - max(0, end - SLIDING)),
            "lap": (own[end] - own[lap]) / (end - lap),
            "lap_inside": (all_[end] - all_[lap]) / (end - lap),
            "whole": (own[end] - own[begun + WARM_UP]) / (end - begun - WARM_UP) if end - begun > WARM_UP else np.nan,
            "whole_inside": (all_[end] - all_[begun]) / (end - begun),
        }
        rate = run.tokens[index] / seconds["inside"]
        wall = ends_s[index] - starts_s[begun]
        fields = {
            **seconds,
            **{f"{name}_ms": s * 1e3 for name, s in seconds.items()},
            **{f"{name}_rate": 1.0 / s for name, s in seconds.items()},
            "own_cut": _cut(seconds["own"] * 1e3),
            "own_whole_ms": int(seconds["own"] * 1e3),
            "inside_keras": _as_keras(seconds["inside"]),
            "tokens": run.tokens[index],
            "tokens_rate": rate,
            "tokens_rate_gpu": rate / run.world_size,
            "tokens_rate_cut": _cut(rate),
            "lap_inside_words": run.tokens[index] / seconds["lap_inside"],
            "i_before": i0 + 1 - (end - since) + 1,
            "passed": all_[end] - all_[since],
            "lap_s": own[end] - own[lap],
            "wall": wall,
            "wall_minutes": wall / 60,
            "index": index,
            "n": n,
            "n0": n - 1,
            "e": e0 + 1,
            "e0": e0,
            "i": i0 + 1,
            "i0": i0,
            "length": length,
            "epochs": run.total // length,
            "total": run.total,
            "batch": run.batch_size[index],
            "at": dt.datetime.fromtimestamp(int(ends_s[index]), dt.UTC),
            "ms": int(ends_s[index] % 1 * 1000),
        }
        yield fields, is_line
        since = end if is_line else since


def _cut(value: float) -> str:
    """Write three digits, and what stands for thousands."""
    value = float(f"{value:.3g}")
    magnitude = 0
    while abs(value) >= 1000:
        magnitude, value = magnitude + 1, value / 1000
    return f"{f'{value:f}'.rstrip('0').rstrip('.')}{['', 'K', 'M', 'B', 'T'][magnitude]}"


def _as_keras(seconds: float) -> str:
    """Write the seconds of a step as Keras does."""
    if seconds >= 1:
        return f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us"
