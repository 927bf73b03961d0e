"""Consoles that tell a step in one line: the number and the time of each, as the line has them, whatever its format counts from."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report.facts import describe_log
from diagnose.report.words import why_inconclusive
from diagnose.trace.logs.formats.consoles import CONSOLES, Console, compile_pattern
from tests.trace.logs.reading import read_content

#: Title, lines, numbers of steps, seconds of each.
Case = tuple[str, list[str], list[int], list[float]]
CASES: dict[str, Case] = {
    "nanochat": (
        "build-nanogpt",
        [
            f"step {n:05d}/21400 (0.02%) | loss: 8.1 | lrm: 1.00 | dt: {ms:.2f}ms | tok/sec: 529,882 | mfu: 74.1 | total time: 0.1m"
            for n, ms in ((4, 990.0), (5, 1980.5))
        ],
        [4, 5],
        [0.99, 1.9805],
    ),
    "no space before the bar": (
        "build-nanogpt",
        [
            f"    step    {n}| loss: 10.9 | lr: 6.0e-05 | norm: 27.0  | dt: 2713.50ms | tok/sec: 193189.05"
            for n in (1, 2)
        ],
        [1, 2],
        [2.7135, 2.7135],
    ),
    "a number alone": (
        "build-nanogpt",
        [f"{n}, loss: 6.5, dt: 360.50ms, tok/sec: 2838.1" for n in (44, 45)],
        [44, 45],
        [0.3605, 0.3605],
    ),
    "litgpt": (
        "LitGPT",
        [
            f"Epoch 1 | iter {n} step {n // 4} | loss train: 1.2, val: n/a | iter time: {400 + n}.00 ms (step)"
            for n in (7, 8)
        ],
        [7, 8],
        [0.407, 0.408],
    ),
    "nanotron": (
        "nanotron",
        [
            f"10/17/2025 16:31:{s} [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 378950 | consumed_tokens: 85.8G | "
            f"elapsed_time_per_iteration_ms: {time_} | tokens_per_sec: 22.8K | global_batch_size: 64 | lm_loss: 2.38"
            for n, s, time_ in ((81, 10, "11.5K"), (82, 22, "11.6K"), (83, 23, "950"))
        ],
        [81, 82, 83],
        [11.5, 11.6, 0.95],
    ),
    "yolox": (
        "YOLOX",
        [
            f"2021-09-16 11:23:15 | INFO | yolox.core.trainer:237 - epoch: {epoch}/300, iter: {n}/200, mem: 8Mb, iter_time: {s}s, "
            "data_time: 0.002s, total_loss: 7.3, lr: 1.0e-02, size: 512, ETA: 3 days, 4:00:01"
            for epoch, n, s in ((2, 190, "0.571"), (2, 200, "0.580"), (3, 10, "0.602"))
        ],
        [390, 400, 410],
        [0.571, 0.580, 0.602],
    ),
    "hrnet": (
        "HRNet, The Sound of Pixels and what follows these",
        [
            f"Epoch: [3/9] Iter:[{n}/200], Time: {s}, lr: [0.018], Loss: 1.594388, Acc:0.64, Semantic loss: 1.1"
            for n, s in ((0, "5.02"), (60, "0.50"), (120, "0.45"), (180, "0.43"))
        ],
        [601, 661, 721, 781],
        [5.02, 0.4247, 0.3992, 0.39],
    ),
    "one bar behind DeepSpeed's timers": (
        "Hugging Face Trainer",
        [
            "[2025-09-15 14:48:06,452] [INFO] [Rank 0] time (ms) | fwd: 114577.10 | bwd: 117430.12 | bwd_inner: 1.0 | step: 105.42",
            "  0%|          | 3/1562 [18:48<164:33:29, 379.99s/it]",
            "{'loss': -0.06, 'epoch': 0.1}",
        ],
        [3],
        [376.0],
    ),
    "detectron2": (
        "Detectron2",
        [
            f"[11/01 11:27:04 d2.utils.events]:  eta: 1 day, 8:05:12  iter: {n}  total_loss: 1.0  loss_cls: 0.7  time: {mean:.4f}  "
            "last_time: 0.5  data_time: 0.0333  last_data_time: 0.02   lr: 0.01  max_mem: 3961M"
            for n, mean in ((20, 0.5), (40, 0.5), (60, 0.7))
        ],
        [20, 40, 60],
        [0.5, 0.5, 1.09],
    ),
    "maskrcnn-benchmark": (
        "maskrcnn-benchmark",
        [
            f"2019-10-01 11:27:04 INFO: eta: 0:00:10  iter: {n}  loss: 0.5 (0.7)  time: 0.9 ({mean:.4f})  data: 0.01 (0.1) lr: 1"
            for n, mean in ((20, 0.5), (40, 0.5), (60, 0.7))
        ],
        [20, 40, 60],
        [0.5, 0.5, 1.1],
    ),
    "fairseq": (
        "fairseq",
        [
            f"2020-07-17 07:11:02 | INFO | train_inner | epoch 001:   {n} / 160368 loss=9.2, wps=57.3, ups=0.04, wpb=1613, "
            f"bsz=80, num_updates={n}, lr=2.8e-05, gnorm=3.23, train_wall=13, wall={wall}"
            for n, wall in ((2800, 1236), (2900, 1266), (3000, 1326))
        ],
        [2900, 3000],
        [0.3, 0.6],
    ),
    "fairseq as JSON": (
        "fairseq",
        [
            '2020-06-01 10:00:00 | INFO | train_inner | {"epoch": 27, "update": 26.2, "loss": "8.2", "wps": "1195.4", '
            f'"wpb": "738.1", "bsz": "46.4", "num_updates": "{n}", "lr": "0.00017", "train_wall": "61", "wall": "{wall}"}}'
            for n, wall in ((33600, 30500), (33700, 30562))
        ],
        [33700],
        [0.62],
    ),
    "PaddleNLP": (
        "PaddleNLP",
        [
            f"[2022-08-31 16:19:1{n // 10},008] [    INFO] - loss: 3.2, global_step: {n}, interval_runtime: "
            f"{seconds}, interval_samples_per_second: 3.541, interval_steps_per_second: {10 / seconds:.3f}, epoch: 0.0265"
            for n, seconds in ((10, 2.5), (20, 1.5))
        ],
        [10, 20],
        [0.25, 0.15],
    ),
    "MindFormers": (
        "MindFormers",
        [
            f"2025-04-07 15:34:27,308 - [callback.py:529] - INFO - {{ Epoch:[  {epoch}/  2], step:[   {n:2d}/   19], loss: 10.649, "
            "per_step_time: 1752ms, lr: 0.0, overflow cond: False, loss_scale: 1.0"
            for epoch, n in ((1, 19), (2, 1))
        ],
        [19, 20],
        [1.752, 1.752],
    ),
    "MindFormers without epochs": (
        "MindFormers",
        [f"{{ step:[    {n}/   10], loss:  11.813965, per_step_time:  13570ms, lr: 1.0e-05 }}" for n in (1, 2)],
        [1, 2],
        [13.57, 13.57],
    ),
    "MindYOLO": (
        "MindYOLO, MindOCR",
        [
            line
            for n in (3900, 3995)
            for line in (
                f"2024-12-25 09:58:42,787 [INFO] Epoch 2/200, Step {n}/3995, imgsize (640, 640), loss: 11.6, cur_lr: 0.09",
                f"2024-12-25 09:58:42,800 [INFO] Epoch 2/200, Step {n}/3995, step time: 736.50 ms",
            )
        ],
        [7895, 7990],
        [0.7365, 0.7365],
    ),
    "TF-Slim": (
        "TensorFlow",
        [f"INFO:tensorflow:global step {n}: loss = 79.3501 (17.125 sec/step)" for n in (1, 1, 2, 2)],
        [1, 2],
        [17.125, 17.125],
    ),
    "TensorFlow's tutorials": (
        "TensorFlow's tutorials",
        [
            f"2020-06-11 12:31:12.179689: step {n}, loss = 1.36 (4606.2 examples/sec; 0.028 sec/batch)"
            for n in (2600, 2610)
        ],
        [2600, 2610],
        [0.028, 0.028],
    ),
    "Object Detection API": (
        "TensorFlow",
        [f"INFO:tensorflow:Step {n} per-step time 0.452s loss=0.913" for n in (100, 200)],
        [100, 200],
        [0.452, 0.452],
    ),
    "Estimator": (
        "TensorFlow's Estimator",
        [f"INFO:tensorflow:loss = 0.37, step = {n} ({s} sec)" for n, s in ((30, 9.0), (40, 0.875), (60, 3.0))],
        [40, 60],
        [0.0875, 0.15],
    ),
    "Keras": (
        "Keras",
        [
            line
            for n, said in enumerate(("[====] - 5s 3ms/step - loss: 0.3", "━━━━ 8s 4ms/step - loss: 0.2"), start=1)
            for line in (f"Epoch {n}/12", f" 900/1875 {said}", f"1875/1875 {said}")
        ],
        [1875, 3750],
        [5 / 1875, 8 / 1875],
    ),
    "Flair": (
        "Flair",
        [
            f"2021-02-22 08:4{n}:00,000 epoch {1 + n // 2} - iter {21 * (n % 2 + 1)}/42 - loss 14.2 - samples/sec: 19.11"
            for n in (1, 2, 3)
        ],
        [63, 84],
        [60 / 21, 60 / 21],
    ),
    "DiT": (
        "DiT and what follows it",
        [f"[2024-01-01 10:00:00] (step={n:07d}) Train Loss: 0.2, Train Steps/Sec: 1.25" for n in (100, 200)],
        [100, 200],
        [0.8, 0.8],
    ),
    "DLRM": (
        "DLRM",
        [f"Finished training it {n}/150 of epoch {epoch}, 459.50 ms/it, loss 0.45" for epoch, n in ((0, 150), (1, 6))],
        [150, 156],
        [0.4595, 0.4595],
    ),
    "PaddleOCR": (
        "Paddle",
        [
            f"[2025/09/24 12:1{n}:19] ppocr INFO: epoch: [3/500], global_step: {n}00, lr: 0.005000, loss: 0.6, avg_reader_cost: "
            "1.81 s, avg_batch_cost: 2.25 s, avg_samples: 16.0, ips: 7.8 samples/s, eta: 2 days, 20:01:28"
            for n in (5, 6)
        ],
        [500, 600],
        [2.25, 2.25],
    ),
    "PaddleClas": (
        "PaddleClas",
        [
            f"[2021/10/10 19:00:0{n}] root INFO: [Train][Epoch {n}/20][Iter: {n}/4]lr: 0.00310, loss: 4.6, batch_cost: 0.75500s, "
            "reader_cost: 0.08544, ips: 42.9 images/sec, eta: 0:01:03"
            for n in (1, 2)
        ],
        [1, 6],
        [0.755, 0.755],
    ),
    "PaddleSeg": (
        "Paddle",
        [
            f"2021-10-10 19:00:00 [INFO]\t[TRAIN] epoch: 1, iter: {n}/1000, loss: 2.6, lr: 0.009, batch_cost: 0.1450, reader_cost: "
            "0.00320, ips: 27.5 samples/sec | ETA 00:02:23"
            for n in (10, 20)
        ],
        [10, 20],
        [0.145, 0.145],
    ),
    "PaddleDetection": (
        "Paddle",
        [
            f"[07/01 09:52:07] ppdet.engine INFO: Epoch: [{n}] [ 40/100] learning_rate: 0.001 loss: 1.8 eta: 1 day, 1:00:00 "
            "batch_cost: 0.5125 data_cost: 0.0125 ips: 15.6 images/s"
            for n in (1, 2)
        ],
        [40, 140],
        [0.5125, 0.5125],
    ),
    "icefall": (
        "icefall, snowfall",
        [
            line
            for epoch, n, s in ((0, 50, 10), (0, 100, 50), (1, 0, 51), (1, 50, 91))
            for line in (
                f"WARNING:root:Epoch {epoch}, batch {n}, batch avg loss 0.6",
                f"2021-09-30 17:34:{s},000 WARNING [train.py:546] (0/7) Epoch {epoch}, batch {n}, batch avg loss 0.6, total",
            )
            if s < 60
        ],
        [100],
        [0.8],
    ),
    "snowfall": (
        "icefall, snowfall",
        [
            f"2020-12-23 17:27:5{n},500 INFO [train.py:181] batch {10 * n}, epoch 0/8 global average objf: 3.7"
            for n in (1, 2)
        ],
        [20],
        [0.1],
    ),
    "ESPnet": (
        "ESPnet",
        [
            f"[PC] 2020-11-11 16:58:{s},250 (trainer:486) INFO: {epoch}epoch:train:{n - 9}-{n}batch: train_time=0.5"
            for epoch, n, s in ((1, 10, 10), (1, 20, 15), (2, 10, 25), (2, 20, 30))
        ],
        [20, 30, 40],
        [0.5, 1.0, 0.5],
    ),
    "NiftyNet": (
        "NiftyNet",
        [f"INFO:niftynet:2018-02-04 05:22:25,146: Training iter {n}, loss=0.31178 (3.145937s)" for n in (7, 8)],
        [7, 8],
        [3.145937, 3.145937],
    ),
    "nnU-Net": (
        "nnU-Net",
        [
            line
            for n in (0, 1)
            for line in (
                "2021-05-19 14:11:58.867113: ",
                f"epoch:  {n}",
                "2021-05-19 14:26:18.594383: train loss : -0.7948",
                f"2021-05-19 14:26:37.462463: This epoch took {500 + 250 * n}.000000 s",
            )
        ],
        [250, 500],
        [2.0, 3.0],
    ),
    "nnU-Net 2": (
        "nnU-Net",
        [
            line
            for n in (0, 1)
            for line in (f"2023-05-19 14:11:58.867113: Epoch {n} ", "2023-05-19 14:26: Epoch time: 250.0 s")
        ],
        [250, 500],
        [1.0, 1.0],
    ),
    "fairseq 0.6": (
        "fairseq",
        [
            f"| epoch {epoch:03d}  {n} / 300 loss=1.27 (1.50), wps=1000, wpb={wpb}, bsz=32, lr=0.001, clip=100%, gnorm=2.1427"
            for epoch, n, wpb in ((1, 100, 500), (1, 200, 600), (2, 100, 500))
        ],
        [100, 200, 400],
        [0.5, 0.7, 0.5],
    ),
    "mmdetection's JSON": (
        "JSON Lines",
        [
            f'{{"mode": "train", "epoch": {epoch}, "iter": {n}, "lr": 0.001, "data_time": 0.1, "loss": 1177.3, "time": {s}}}'
            for epoch, n, s in ((1, 100, 0.9), (1, 200, 0.8), (2, 100, 0.7), (2, 200, 0.6))
        ],
        [100, 200, 300, 400],
        [0.9, 0.8, 0.7, 0.6],
    ),
    "bars of several ranks": (
        "a training loop with tqdm",
        [
            f"| epoch 001:   0%| | {n}/11265 [02:{s}<9:05:31,  3.00s/it, loss=0.0"
            for n, s in ((50, 30), (48, 30), (49, 31), (50, 32), (51, 33), (49, 32), (52, 36), (51, 35), (53, 39))
        ],
        [51, 52, 53],
        [3.0, 3.0, 3.0],
    ),
    "NeMo Automodel": (
        "NeMo Automodel",
        [
            f"2026-08-10 15:4{n}:59 | INFO | root | step {n} | epoch 0 | loss 0.64 | grad_norm 1.1 | tps 6574.51(821.81/gpu)"
            for n in (1, 2, 3)
        ],
        [2, 3],
        [60.0, 60.0],
    ),
    "a notebook": (
        "Hugging Face Trainer",
        [" [  23/2080 10:12 < 16:40:10, 0.03 it/s, Epoch 0.00/1]"],
        [23],
        [612.5 / 23],
    ),
    "DINO": (
        "torchvision's MetricLogger",
        [
            f"Epoch: [1/100]  [{n}/2502]  eta: 0:02:44  loss: 5.3 (7.5)  lr: 0.000089 (0.000045)  time: 0.618063  data: 0.000170"
            for n in (0, 20, 40)
        ],
        [2503, 2523, 2543],
        [0.618063, 0.618063, 0.618063],
    ),
    "YOLO": (
        "YOLO",
        [
            line
            for n, said in ((1, "00:37<00:00,  1.61it/s"), (2, "06:06<00:00,  6.11s/it"))
            for line in (
                f"      {n}/400   17.9G     1.72    7.663    2.019         10       1280: 100%|██████████| 60/60 [{said}]",
                "                 Class     Images  Instances      Box(P      mAP50): 100%|█████████| 7/7 [00:11<00:00,  1.9s/it]",
            )
        ],
        [60, 120],
        [37.5 / 60, 366.5 / 60],
    ),
    "a bar alone": (
        "a training loop with tqdm",
        ["steps:   1%|▎            | 395/48600 [02:37<5:20:51,  2.50it/s, avr_loss=0.117]"],
        [395],
        [157.5 / 395],
    ),
    "ms-swift": (
        "ms-swift",
        [
            f"{{'loss': 0.48, 'memory(GiB)': 69.19, 'train_speed(iter/s)': 0.01, 'epoch': 0.26, 'global_step/max_steps': '{n}/94', "
            f"'percentage': '12.77%', 'elapsed_time': '{said}', 'remaining_time': '2h 5m 59s'}}"
            for n, said in ((12, "58m 26s"), (13, "1h 0m 6s"), (14, "1h 1m 46s"))
        ],
        [13, 14],
        [100.0, 100.0],
    ),
    "The Sound of Pixels": (
        "HRNet, The Sound of Pixels and what follows these",
        [
            f"Epoch: [17][{n}/588], Time: {s}, Data: 0.09, lr_sound: 0.001, lr_frame: 0.0001, loss: 0.6075"
            for n, s in ((0, "5.02"), (60, "0.50"), (120, "0.45"), (180, "0.43"))
        ],
        [9997, 10057, 10117, 10177],
        [5.02, 0.4247, 0.3992, 0.39],
    ),
    "Darknet": (
        "Darknet",
        [
            f" {n}: {loss}, 848.945251 avg loss, 0.000000 rate, {s} seconds, {64 * n} images, 2.2 hours left\nLoaded: 0.0 seconds"
            for n, loss, s in ((99, "469.803864", 20.457852), (100, "-nan", 20.684246), (101, "1.5", 2.5))
        ],
        [99, 100, 101],
        [20.457852, 20.684246, 2.5],
    ),
    "DeePMD-kit 2": (
        "DeePMD-kit",
        [
            f"DEEPMD INFO    batch {n:7d} training time {s:.2f} s, testing time 0.00 s"
            for n, s in ((200, 20.0), (400, 15.41), (600, 15.6))
        ],
        [400, 600],
        [0.07705, 0.078],
    ),
    "DeePMD-kit 3": (
        "DeePMD-kit",
        [
            f"[2024-07-05 10:59:59,135] DEEPMD INFO    batch   {n}: val: rmse = 2.10e+01, rmse_f = 7.22e-01\n"
            f"[2024-07-05 10:59:59,135] DEEPMD INFO    batch   {n}: total wall time = {s} s, eta = 1:02:03"
            for n, s in ((20000, 867.78), (22000, 948.59))
        ],
        [22000],
        [0.474295],
    ),
    "MXNet": (
        "MXNet",
        [
            f"2018-10-22 21:{t} Epoch[{epoch}] Batch [{n}]\tSpeed: 7.51 samples/sec\tTrain-RPNAcc=0.981607,"
            for epoch, n, t in (
                (0, 100, "42:56,500"),
                (0, 200, "43:50,000"),
                (1, 100, "45:50,000"),
                (1, 200, "46:45,000"),
            )
        ],
        [200, 300, 400],
        [0.535, 1.2, 0.55],
    ),
    "WeNet": (
        "WeNet",
        [
            f"2023-01-30 18:{t},000 DEBUG TRAIN Batch 4/{n} loss 12.6 loss_att 10.9 loss_ctc 16.7 lr 0.00032621 rank {rank}"
            for n, t, rank in (
                (100, "47:07", 0),
                (100, "47:16", 1),
                (200, "49:19", 10),
                (200, "49:20", 0),
                (300, "51:20", 0),
            )
        ],
        [200, 300],
        [1.33, 1.2],
    ),
    "LightlyTrain": (
        "LightlyTrain",
        [
            f"[2026-02-06 11:55:{s}][INFO] Train Step {n}/10 | Train Loss: 32.8633 | Time Spent [Dataload: 64.5%, Forward: 16.2%]"
            for n, s in ((1, "27,760"), (2, "30,860"), (3, "50,860"))
        ],
        [2, 3],
        [3.1, 20.0],
    ),
    "behind what a launcher prints": (
        "a training loop with tqdm",
        [
            f"[08:03:{10 * n - 310}] [STDERR] steps:  38%|███▊      | {n}/96 [13:{10 * n - 310}<21:55,  1.00it/s, avr_loss=0.0796]"
            for n in (32, 33, 34, 35)
        ],
        [33, 34, 35],
        [10.0, 10.0, 10.0],
    ),
    "LLaMA-Factory": (
        "JSON Lines",
        [
            f'{{"current_steps": {n}, "total_steps": 100, "loss": 1.2, "percentage": 5.0, "elapsed_time": "0:{n:02d}:30", '
            '"remaining_time": "0:07:30"}'
            for n in (5, 10, 15)
        ],
        [10, 15],
        [60.0, 60.0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_as_the_lines_say(name: str, tmp_path: Path) -> None:
    """The numbers and times of a few lines, and who wrote them."""
    title, lines, numbers, seconds = CASES[name]
    log = read_content(tmp_path, ("\n".join(lines) + "\n").encode())
    assert (log.format, log.iteration.tolist(), log.restarts) == (title, numbers, ())
    assert log.step_s == pytest.approx(seconds, rel=1e-3)


def test_a_run_that_is_resumed(tmp_path: Path) -> None:
    """A clock that starts again is a restart, and what lies between is none of a step; so is a counter that falls."""
    told = [(n, n // 2) for n in range(100, 600, 50)] + [(n, n // 2 - 190) for n in range(400, 900, 50)]
    log = read_content(tmp_path, "\n".join(f"| epoch 001: num_updates={n}, wall={wall}" for n, wall in told).encode())
    assert [(restart.after, restart.resumed_at) for restart in log.restarts] == [(550, 450)]
    assert log.step_s == pytest.approx(0.5)


def test_saves_and_evaluations_have_their_step(tmp_path: Path) -> None:
    """What fairseq and Detectron2 tell of saves and evaluations is told with the step that the line names."""
    lines = [f"| epoch 001: num_updates={n}, wall={n // 2}" for n in range(100, 1000, 100)]
    lines += ["| INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.1 | num_updates 900"]
    lines += ["| INFO | Saved checkpoint c.pt (epoch 1 @ 900 updates, score 4.2) (writing took 12.50 seconds)"]
    log = read_content(tmp_path, "\n".join(lines).encode())
    assert [(event.kind, event.iteration) for event in log.events] == [("evaluation", 900), ("save", 900)]
    assert log.events[1].seconds == 12.5


def test_time_that_is_read_late_is_not_lost(tmp_path: Path) -> None:
    """Of a step that is longer by what the one before is shorter nothing is said; of one that is only longer it is."""
    ms = np.full(40, 3370.0) + 2.0 * np.sin(np.arange(40))
    ms[[20, 23, 30]] -= 2400.0
    ms[[21, 24, 31]] += 2400.0
    path = tmp_path / "job.out"
    for extra_ms, causes in ((0.0, []), (9000.0, ["unknown"])):
        ms[36] += extra_ms
        path.write_text(
            "".join(f"[rank: 0] iter {n} step {n}: iter time: {t:.2f}ms (step)\n" for n, t in enumerate(ms))
        )
        found = diagnose_job(Request(path))
        assert [cause.cause for cause in found.causes] == causes
        assert found.log is not None
        assert found.log.ledger is not None
        assert found.log.ledger.good_pace == pytest.approx(3.37, rel=2e-3)


def test_a_slow_first_line_of_few_is_the_start(tmp_path: Path) -> None:
    """Compiling in the first step is no fault, however short the log is."""
    path = tmp_path / "job.out"
    path.write_text(
        "".join(f"step {n}/25, loss: 15.9, per_step_time: {ms}ms, x\n" for n, ms in ((1, 153259), (2, 577), (3, 579)))
    )
    found = diagnose_job(Request(path))
    assert found.causes == ()
    assert found.log is not None
    assert found.log.ledger is not None
    assert found.log.ledger.seconds["start"] == pytest.approx(152.68, abs=0.1)


@pytest.mark.parametrize("console", CONSOLES, ids=lambda console: console.name)
def test_patterns_are_linear(console: Console) -> None:
    """A line of sixteen times the length takes about sixteen times as long, whatever part of a step it repeats."""
    pattern = compile_pattern(console.step)
    example = console.example.encode().replace(b"N", b"7").replace(b"..", b"1.5")
    for unit in (
        example,
        *console.marks,
        example[: len(example) // 2],
        example[:12],
        b"step 7 ",
        b"epoch 1 - iter 7/9 - ",
    ):
        short, long = (_search_s(pattern, (unit * n)[: n * 12]) for n in (250, 4000))
        assert long < 16**1.5 * max(short, 2e-5), unit


def _search_s(pattern: re.Pattern[bytes], line: bytes) -> float:
    """Measure the seconds of CPU of a search, the least of three."""
    found = []
    for _ in range(3):
        before = time.process_time()
        pattern.search(line)
        found.append(time.process_time() - before)
    return min(found)


def test_few_lines_that_vary_have_no_pace_that_changed_or_not(tmp_path: Path) -> None:
    """Of a handful of lines it is said how they vary, or that each is longer than the one before; not that nothing changed."""
    path = tmp_path / "job.out"
    for times_s, why in (
        (
            (1.0, 1.6, 2.4),
            "each of 3 lines takes longer than the one before, 140% in all: too few to be sure of a trend",
        ),
        ((1.0, 2.4, 1.6), "only 3 lines of step times, which vary by 30%: too few to tell anything from chance"),
        (
            (1.0, 1.01, 1.0),
            "steady: nothing stands out in the log, which cannot say whether steps were slow from the first on",
        ),
    ):
        path.write_text(
            "".join(f"iter {n} step {n}: iter time: {1e3 * t:.2f}ms\n" for n, t in enumerate(times_s, start=1))
        )
        found = diagnose_job(Request(path))
        assert why_inconclusive(found) == why
        assert found.log is not None
        assert ("no change of pace" in describe_log(found.log)) == why.startswith("steady")


@pytest.mark.parametrize("prefix", ["", "2023-03-22 09:30:39 "])
def test_an_evaluation_that_a_stamped_line_tells_is_in_one_step(prefix: str, tmp_path: Path) -> None:
    """NanoGPT's evaluation is in the time of the iteration that is printed behind it, whatever stands in front of the lines."""
    path = tmp_path / "job.out"
    told = [f"{prefix}iter {n}: loss 3.9, time {1100 + n % 3}.00ms, mfu 15.3%\n" for n in range(2700, 3200, 10)]
    told[30] = (
        f"{prefix}step 3000: train loss 4.0, val loss 4.0\n{prefix}iter 3000: loss 4.2, time 35392.33ms, mfu 13.9%\n"
    )
    path.write_text("".join(told))
    found = diagnose_job(Request(path))
    assert found.log is not None
    assert found.log.ledger is not None
    assert found.log.ledger.seconds["evaluation"] == pytest.approx(34.3, abs=0.1)


def test_batches_that_are_printed_and_are_not_like_the_others(tmp_path: Path) -> None:
    """The first batch of an epoch stands for itself; where printed ones waited for data more than all did, the means are read."""
    path = tmp_path / "job.out"
    path.write_text(
        "Train: 0 [   0/73 (  1%)]  Loss: 6.9 (6.9)  Time: 9.575s, 13.37/s  (9.575s, 13.37/s)  LR: 1.0  Data: 0.844 (0.844)\n"
        "Train: 0 [  50/73 ( 70%)]  Loss: 6.8 (6.8)  Time: 0.300s, 400.3/s  (0.470s, 272.39/s)  LR: 1.0  Data: 0.217 (0.047)\n"
    )
    found = diagnose_job(Request(path))
    assert found.causes == ()
    assert found.log is not None
    assert found.log.step_s.tolist() == pytest.approx([9.575, 0.2879], rel=1e-3)
    assert found.log.ledger is not None
    assert found.log.ledger.total_s == pytest.approx(51 * 0.470, abs=0.1)


def test_lines_without_a_pace_are_told_by_what_they_go_from_and_to(tmp_path: Path) -> None:
    """Steps of seconds and steps of minutes in turn have no pace that could have changed or not."""
    path = tmp_path / "job.out"
    times_s = (646.6, 195.4, 2.9, 14.2, 2.7, 2.3, 2.5, 1.8, 248.1, 245.8, 244.7, 10.2)
    path.write_text("".join(f"global step {n}: loss = 1.4 ({s} sec/step)\n" for n, s in enumerate(times_s, start=665)))
    found = diagnose_job(Request(path))
    assert why_inconclusive(found) == (
        "nothing stands out in the log: iterations take from 1.80 s to 647 s, half of them 12.20 s and less"
    )
    assert found.log is not None
    assert "135 s an iteration on average" in describe_log(found.log)
