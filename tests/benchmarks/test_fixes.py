"""What pricing costs: all fixes of a job against its what-if, in one process; no time is asserted, answers are.

Run with `pytest tests/benchmarks --benchmarks -s`. The what-if is everything between loading and judging: S with all its relatives,
the components, and what removing each gives back.
"""

import statistics
import time
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.fixes.catalogue import list_fixes
from diagnose.fixes.plan import Named, price_fix
from diagnose.model.diagnosis import RefusedFix
from diagnose.model.remedy import Place

pytestmark = pytest.mark.benchmark
N_RUNS = 5


@pytest.mark.parametrize(("name", "cause"), [("AR", "worker-fault"), ("ST", "stage-imbalance")])
def test_all_fixes(name: str, cause: str, shared: Path) -> None:
    """Every fix there is, priced on a production trace; those of its cause predict a gain."""
    path = shared / "artifact" / f"trace-{name}.parquet"
    seconds: dict[str, list[float]] = {
        "diagnosis without prices": [],
        "its fixes and plan": [],
        "every fix there is": [],
    }
    for _ in range(N_RUNS):
        start = time.perf_counter()
        found = pipeline.examine(path)
        verdict = pipeline.reach_verdict(found.case, found.judgements, min_speedup=1.02, opinion=found.opinion)
        seconds["diagnosis without prices"].append(time.perf_counter() - start)
        start = time.perf_counter()
        causes, _ = pipeline.price_fixes(found, verdict.causes)
        seconds["its fixes and plan"].append(time.perf_counter() - start)
        start = time.perf_counter()
        job = pipeline.make_situation(found)
        priced = [price_fix(job, Named(fix), Place(), ()) for fix in list_fixes()]
        seconds["every fix there is"].append(time.perf_counter() - start)
        assert [one.cause for one in causes] == [cause]
        assert causes[0].fixes[0].predicted_speedup > 1.1
        assert any(isinstance(one, RefusedFix) for one in priced)
    whole = statistics.median(seconds["diagnosis without prices"])
    print(f"\n\n{name}, median of {N_RUNS} runs (least, most)")
    for what, found_s in seconds.items():
        middle = statistics.median(found_s)
        print(f"  {what:26}  {middle:7.3f} s  ({min(found_s):.3f}, {max(found_s):.3f})  {middle / whole:5.2f}")
