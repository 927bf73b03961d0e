"""Diagnoses made by hand, whose reports are kept as golden files."""

import dataclasses

import msgspec.structs
import numpy as np

from diagnose.model.cause import Alternative, Cause, EvidenceItem, Fix, NotChecked, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity, Ledger, MadeBy, StepTime
from diagnose.model.place import Link, Where, Worker
from diagnose.model.trace import Job
from diagnose.model.whatif import WhatIf

MADE_BY = MadeBy(version="0.1.0", rules="1f0c2a77", classifier="9b1d44e0")
OPTYPES = ("forward-compute", "backward-compute", "forward-send-recv", "grads-reduce-scatter", "optimizer")


def what_if(
    n_dp: int, n_stages: int, n_steps: int, *, slow: dict[tuple[int, int], float], from_step: int = 0
) -> WhatIf:
    """Make measures in which everything is near 1 except the given (dp, stage)."""
    grain = 1.0 + 0.001 * np.arange(n_dp * n_stages).reshape(n_dp, n_stages) / (n_dp * n_stages)
    by_worker = grain.copy()
    for place, slowdown in slow.items():
        by_worker[place] = slowdown
    worst = float(by_worker.max())
    by_step = np.where(np.arange(n_steps) < from_step, 1.02, worst) + 0.002 * (np.arange(n_steps) % 3)
    ideal_s = np.full(n_steps, 6.2)
    return WhatIf(
        steps=np.arange(16, 16 + n_steps),
        recorded_s=ideal_s * by_step * 1.03,
        simulated_s=ideal_s * by_step,
        ideal_s=ideal_s,
        discrepancy=0.03,
        by_optype={name: 1.0 + (worst - 1.0) / (2 + n) for n, name in enumerate(OPTYPES)},
        by_stage=by_worker.max(axis=0),
        by_dp=by_worker.max(axis=1),
        by_worker=by_worker,
        by_step=by_step,
        by_worker_step=np.repeat(by_worker[:, :, None], n_steps, axis=2),
        m_w=0.97 if slow else 0.02,
        m_s=0.01,
    )


def healthy(n_dp: int = 4, n_stages: int = 4, n_steps: int = 20, name: str = "pretrain-7b") -> Diagnosis:
    """Make a job in which nothing is wrong; the other examples start from it."""
    w = what_if(n_dp, n_stages, n_steps, slow={})
    return Diagnosis(
        made_by=MADE_BY,
        job=Job(name, n_dp, n_stages, 8, 1, 1, n_dp * n_stages * 8, layers_per_stage=(8,) * n_stages, gpu_type="H800"),
        n_ops=51_200,
        steps_dropped=0,
        verdict="healthy",
        step_time=_step_time(w, clean=6.21),
        gpu_hours_analysed=4.53,
        gpu_hours_wasted=0.12,
        fidelity=Fidelity(discrepancy=0.03, replay_error=0.0004, ok=True),
        what_if=w,
        causes=(),
        ledger=None,
        checked=("sequence-imbalance", "stage-imbalance", "worker-fault"),
        not_checked=(),
        features={"worker.gain": 0.001, "stage.gain": 0.002, "sequence.correlation": None},
        warnings=(),
        dp_labels=np.arange(n_dp),
        stage_labels=np.arange(n_stages),
        ranks=np.arange(n_dp * n_stages).reshape(n_dp, n_stages) * 8,
        hosts=None,
    )


def worker_fault() -> Diagnosis:
    """Make a job that one worker slows down."""
    w = what_if(4, 4, 20, slow={(0, 0): 1.92})
    cause = Cause(
        cause="worker-fault",
        title="slow worker",
        severity="high",
        kind="high",
        who="platform",
        check="nvidia-smi -q (clocks_event_reasons), dcgmi diag -r 3",
        confidence=0.97,
        share=0.93,
        recoverable=0.48,
        where=Where(workers=(Worker(0, 0, rank=0, host="gpu-17"),), hosts=("gpu-17",)),
        when=When("constant"),
        evidence=(
            EvidenceItem(
                "rule",
                "worker-fault.compute",
                "Forward and backward of dp 0, stage 0 take 2.31 times what its peers take.",
                {"ratio": 2.31},
            ),
            EvidenceItem(
                "rule", "worker-fault.waits", "Its own waits in collectives are the shortest of all.", {"rank": 1.0}
            ),
            EvidenceItem(
                "classifier",
                "worker-fault",
                "Jobs that look like this have a slow worker in 97 of 100 cases.",
                {"p": 0.97},
            ),
        ),
        fixes=(
            Fix(
                "replace-node",
                "Drain gpu-17 and replace it",
                "Cordon the node, restart from the last checkpoint without it, then confirm with a GEMM burn: dcgmi diag -r 3; "
                "look at clocks_event_reasons, ECC errors and PCIe link width.\n",
                6.35,
                1.93,
            ),
            Fix("pin-cpu", "Pin the loader threads", "Only where clocks and ECC counters are clean.", None, None),
        ),
        fingerprint="c0ffee12",
    )
    return dataclasses.replace(
        healthy(name="AR"),
        verdict="straggling",
        what_if=w,
        step_time=_step_time(w, clean=6.27),
        gpu_hours_analysed=120.4,
        gpu_hours_wasted=58.1,
        causes=(cause,),
        ledger=Ledger({"worker-fault": 0.93}, {"worker": 0.93}, 0.07, 0.07),
        hosts=tuple(f"gpu-{17 + n // 4}" for n in range(16)),
    )


def two_causes() -> Diagnosis:
    """Make a job with uneven sequences and a checkpoint stall, seen from components as well."""
    w = what_if(8, 4, 60, slow={(2, 3): 1.08, (5, 1): 1.12}, from_step=30)
    sequences = Cause(
        cause="sequence-imbalance",
        title="uneven sequence lengths",
        severity="high",
        kind="medium",
        who="job owner",
        confidence=0.84,
        share=0.55,
        recoverable=0.18,
        where=Where(),
        when=When("sporadic"),
        evidence=(
            EvidenceItem(
                "rule",
                "sequence.correlation",
                "Forward and backward of a microbatch vary together (0.97).",
                {"r": 0.97},
            ),
        ),
        fixes=(
            Fix(
                "balance", "Balance by predicted cost", "Order documents by a x tokens + b x tokens squared.", 6.9, 1.19
            ),
        ),
        fingerprint="aa01",
    )
    stall = Cause(
        cause="checkpoint-stall",
        title="checkpoint stall",
        severity="medium",
        kind="medium",
        who="job owner",
        confidence=0.61,
        share=0.25,
        recoverable=0.07,
        where=Where(workers=tuple(Worker(dp, 0, rank=dp * 4) for dp in range(8)), stages=(0, 1)),
        when=When("periodic", onset_step=46, recovery_step=70, period_steps=10.0),
        evidence=(EvidenceItem("change-point", "onset", "The loss begins at step 46.", {"step": 46.0}),),
        fixes=(),
        fingerprint="aa02",
    )
    return dataclasses.replace(
        healthy(8, 4, 60, name="moe-32b"),
        verdict="straggling",
        what_if=w,
        step_time=_step_time(w, clean=6.3),
        causes=(sequences, stall),
        ledger=Ledger(
            {"sequence-imbalance": 0.55, "checkpoint-stall": 0.25},
            {"microbatch": 0.55, "between-steps": 0.25, "stage": 0.05, "transfer": 0.0},
            0.2,
            0.15,
        ),
        not_checked=(
            NotChecked("network-fault", "the trace has no transfers that the clocks can resolve"),
            NotChecked("kernel-queue-contention", "the trace has no transfers that the clocks can resolve"),
            NotChecked("allocator-stall", "fewer than 5 steps with cuda-malloc rows"),
        ),
        warnings=(
            "step 16 is a warm-up step: left out when causes are sought",
            "12 rows of type nccl-init are not simulated",
        ),
    )


def inconclusive() -> Diagnosis:
    """Make a job whose replay does not give its recorded times again."""
    return dataclasses.replace(
        healthy(2, 1, 1, name="lost-rows"),
        verdict="inconclusive",
        step_time=StepTime(7.1, 6.2, 6.1, None),
        gpu_hours_wasted=None,
        fidelity=Fidelity(discrepancy=0.145, replay_error=0.12, ok=False),
        not_checked=(NotChecked("worker-fault", "one step only"),),
        warnings=("31% of the rows of dp 1 are missing",),
    )


def noisy() -> Diagnosis:
    """Make a job whose computes vary, and in which nothing is to be named."""
    return dataclasses.replace(
        healthy(),
        verdict="noisy",
        why="steps vary by 4%, computes by 16%; if each operation took its usual time, steps would be 11% shorter; "
        "no cause can be named",
    )


def overlapping() -> Diagnosis:
    """Make a job whose simulated steps are longer than the recorded ones."""
    return dataclasses.replace(
        healthy(), verdict="inconclusive", fidelity=Fidelity(discrepancy=-0.2, replay_error=0.01, ok=False)
    )


def either() -> Diagnosis:
    """Make a job with a finding that may be one of two causes."""
    found = worker_fault()
    other = Alternative("sequence-imbalance", 0.37, "the documents that dp 0 reads, or its optimizer")
    cause = msgspec.structs.replace(found.causes[0], confidence=0.55, alternatives=(other,))
    return dataclasses.replace(found, causes=(cause,))


def big() -> Diagnosis:
    """Make a job of 256 dp ranks and 16 stages with a slow host of eight workers, from step 140 on."""
    slow = {(200 + n, 5): 1.3 + 0.01 * n for n in range(8)}
    w = what_if(256, 16, 400, slow=slow, from_step=124)
    hosts = tuple(f"node-{n // 8:04d}" for n in range(256 * 16))
    one = worker_fault().causes[0]
    cause = msgspec.structs.replace(
        one,
        title="slow worker",
        confidence=0.74,
        share=0.88,
        recoverable=0.24,
        where=Where(
            workers=tuple(Worker(200 + n, 5, rank=n, host="node-0403") for n in range(8)), hosts=("node-0403",)
        ),
        when=When("onset", onset_step=140),
    )
    return dataclasses.replace(
        healthy(256, 16, 400, name="dense-1t"),
        verdict="straggling",
        what_if=w,
        step_time=_step_time(w, clean=6.3),
        gpu_hours_analysed=21_344.0,
        gpu_hours_wasted=5_122.0,
        n_ops=104_857_600,
        causes=(cause,),
        ledger=Ledger({"worker-fault": 0.8}, {"worker": 0.8, "stage": 0.08}, 0.2, 0.12),
        hosts=hosts,
    )


def unknown() -> Diagnosis:
    """Make a job with a loss that nothing explains, and names that try to break the report."""
    w = what_if(2, 2, 5, slow={(1, 1): 1.2})
    cause = Cause(
        cause="unknown",
        title="lost time that no known cause explains",
        severity="medium",
        confidence=0.45,
        share=None,
        recoverable=0.12,
        where=Where(
            hosts=("evil\x1b[2Jhost", "[bold red]host[/]"),
            links=(Link(Worker(0, 0), Worker(0, 1)),),
        ),
        when=When(),
        evidence=(),
        fixes=(),
        fingerprint="00ff",
    )
    return dataclasses.replace(
        healthy(2, 2, 5, name="job [red]\x1b[31m\n2"),
        verdict="straggling",
        what_if=dataclasses.replace(w, by_worker=np.array([[1.0, np.nan], [1.01, 1.2]]), m_w=None, m_s=None),
        step_time=_step_time(w, clean=6.5),
        causes=(cause,),
        ledger=Ledger({"unknown": 0.4}, {"transfer": 0.4}, 0.6, 0.6),
        warnings=("owner is [/] \u202egnp.exe <script>alert(1)</script>",),
        features={"worker.gain": float("nan"), "stage.gain": float("inf"), "missing": None},
    )


def _step_time(w: WhatIf, *, clean: float) -> StepTime:
    """Take the mean step times from the measures."""
    return StepTime(float(w.recorded_s.mean()), float(w.simulated_s.mean()), float(w.ideal_s.mean()), clean)


EXAMPLES = {
    "healthy": healthy,
    "worker-fault": worker_fault,
    "two-causes": two_causes,
    "inconclusive": inconclusive,
    "noisy": noisy,
    "overlapping": overlapping,
    "either": either,
    "big": big,
    "unknown": unknown,
}
