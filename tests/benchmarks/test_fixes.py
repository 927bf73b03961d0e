"""What pricing costs: all fixes of a job against its what-if, in one process; no time is asserted, answers are.

Run with `pytest tests/benchmarks --benchmarks -s`. Two what-ifs stand beside it: that of the paper (S with all its relatives), and
that of the components (observing waits, taking times apart, replaying without each), which is what prices are made of.
"""

import statistics
import time
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.fixes.catalogue import list_fixes
from diagnose.fixes.plan import price_fix
from diagnose.model.remedy import FaultLocation, NamedFix, Refusal
from diagnose.model.request import Request
from diagnose.trace.load import load_trace

pytestmark = pytest.mark.benchmark
N_RUNS = 5


@pytest.mark.parametrize(("job_name", "cause"), [("AR", "worker-fault"), ("ST", "stage-imbalance")])
def test_all_fixes(job_name: str, cause: str, shared: Path) -> None:
    """Every fix there is, priced on a production trace; those of its cause predict a gain."""
    path = shared / "artifact" / f"trace-{job_name}.parquet"
    names = ("what-if of the paper", "what-if of components", "its fixes and plan", "every fix there is")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    analysis, judged = pipeline.examine(Request(path))
    rules = judged.rule_set.rules
    trace = load_trace(path)
    for _ in range(N_RUNS):
        start = time.perf_counter()
        prepared = pipeline.prepare(trace)
        pipeline.explore(trace, prepared)
        seconds["what-if of the paper"].append(time.perf_counter() - start)
        start = time.perf_counter()
        observed, evidence, _ = pipeline.observe(trace, prepared)
        components = pipeline.take_apart(observed, evidence, n_stages=trace.n_stages)
        between_s = pipeline.measure_between(trace, observed)
        removal = pipeline.Removal(observed, components, n_stages=trace.n_stages, between_s=between_s)
        removal.gains([rule.components for rule in rules])
        seconds["what-if of components"].append(time.perf_counter() - start)
        verdict = pipeline.reach_verdict(analysis, judged.judgements, min_speedup=1.02, prediction=judged.prediction)
        start = time.perf_counter()
        wanted = pipeline.list_fixes_to_price(verdict.causes, judged.rule_set)
        causes = pipeline.add_fixes(verdict.causes, wanted, pipeline.price_causes(analysis, wanted))
        seconds["its fixes and plan"].append(time.perf_counter() - start)
        start = time.perf_counter()
        priced = [price_fix(analysis, NamedFix(fix), FaultLocation(), ()) for fix in list_fixes()]
        seconds["every fix there is"].append(time.perf_counter() - start)
        assert [one.cause for one in causes] == [cause]
        assert causes[0].fixes[0].predicted_speedup > 1.1
        assert any(isinstance(one, Refusal) for one in priced)
    whole = sum(statistics.median(seconds[name]) for name in names[:2])
    print(f"\n\n{job_name}, median of {N_RUNS} runs (least, most)")
    for what, found_s in seconds.items():
        middle = statistics.median(found_s)
        print(f"  {what:26}  {middle:7.3f} s  ({min(found_s):.3f}, {max(found_s):.3f})  {middle / whole:5.2f}")
