"""How severe a cause is: by what it costs, not by its name."""

from pathlib import Path

import msgspec.structs
import pytest

from diagnose.cli.main import main
from diagnose.errors import RuleError
from diagnose.judge.rules import load_rules
from diagnose.judge.severity import BUILT_IN
from diagnose.model.cause import Cause
from tests.fixture_jobs import FIXTURES
from tests.report.examples import worker_fault

OWN = "critical: [{gain: 0.9}]\nhigh: [{gain: 0.8}]\nmedium: [{gain: 0.001}]\n"


def cause_of(recoverable: float, confidence: float = 0.95, after: float | None = None) -> Cause:
    """Make a cause that costs so much of the step."""
    return msgspec.structs.replace(
        worker_fault().causes[0], recoverable=recoverable, confidence=confidence, recoverable_after_others=after
    )


@pytest.mark.parametrize(
    ("recoverable", "confidence", "n_gpus", "severity"),
    [
        (0.44, 0.95, 8, "high"),  # nearly half of a step is never a matter of medium severity, however small the job
        (0.44, 0.95, None, "high"),
        (0.44, 0.95, 64, "critical"),
        (0.505, 0.95, 64, "critical"),
        (0.013, 0.95, 64, "low"),
        (0.013, 0.99, 16_384, "medium"),  # 200 GPUs, but nobody sees it in the step time
        (0.05, 0.9, 8, "medium"),
        (0.05, 0.9, 1024, "high"),
        (0.2, 0.1, 8, "low"),  # a guess
        (0.98, 0.49, 64, "high"),  # more probably something else: nobody is woken for it
        (0.98, 0.5, 64, "critical"),
        (0.98, 0.49, 4096, "high"),
        (-0.1, 0.9, 8, "low"),
    ],
)
def test_gain_confidence_and_gpus(recoverable: float, confidence: float, n_gpus: int | None, severity: str) -> None:
    """What comes back, times how sure that is, decides; a large job matters more."""
    assert load_rules().severities.rate(cause_of(recoverable, confidence), n_gpus) == severity


def test_what_comes_back_after_others_counts() -> None:
    """A cause that is hidden behind others is as severe as what it gives once they are gone."""
    assert load_rules().severities.rate(cause_of(0.0, after=0.2), 8) == "high"


def test_more_is_never_less_severe() -> None:
    """A larger gain, a surer cause or a larger job never lowers a severity."""
    rank = ["low", "medium", "high", "critical"].index
    rate = load_rules().severities.rate
    gains, sizes = [n / 50 for n in range(51)], [None, 1, 8, 16, 64, 512, 4096]
    for n_gpus in sizes:
        found = [rank(rate(cause_of(gain, 1.0), n_gpus)) for gain in gains]
        assert found == sorted(found) and found[0] == 0
    for gain in gains:
        found = [rank(rate(cause_of(gain, 1.0), n_gpus)) for n_gpus in sizes]
        assert found == sorted(found)


def test_own_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of rules may have thresholds alone; they take the place of the built-in ones, and the digest shows it."""
    (tmp_path / "severity.yaml").write_text(OWN)
    own = load_rules(tmp_path)
    assert own.severities.rate(cause_of(0.85, 1.0), 8) == "high" and own.severities.rate(cause_of(0.4), 512) == "medium"
    assert own.rules == load_rules().rules and own.digest != load_rules().digest
    assert main(["rules", "check", str(tmp_path)]) == 0
    assert "0 rules, no faults" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("high:", "hihg:", "2: unknown key 'hihg'; did you mean 'high'?"),
        ("medium: [{gain: 0.001}]", "", "1: key 'medium' is missing"),
        ("gain: 0.8", "gain: 80", "2: gain is 80; expected a part of the step, above 0 and at most 1"),
        ("gain: 0.8", "gpus: 0", "2: gpus is 0; expected a number above 0"),
        ("gain: 0.8", "gain: much", "2: expected a number"),
        ("gain: 0.8", "again: 0.8", "2: unknown key 'again'; did you mean 'gain'?"),
        ("{gain: 0.8}", "{}", "2: expected gain, gpus or both, each with a number above 0"),
        ("{gain: 0.8}", "{sure: 0.5}", "2: expected gain, gpus or both, each with a number above 0"),
        ("gain: 0.8", "gain: 0.8, sure: 50", "2: sure is 50; expected a confidence, above 0 and at most 1"),
        ("[{gain: 0.8}]", "[]", "2: expected a list"),
        ("critical: [{gain: 0.9}]", "critical: [", "1: is not YAML"),
    ],
)
def test_faults(tmp_path: Path, old: str, new: str, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is wrong is told with file and line, by `rules check` as before a job is read."""
    path = tmp_path / "severity.yaml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(RuleError, match="severity") as found:
        load_rules(tmp_path)
    if "not YAML" not in fault:
        assert f"{path}:{fault}" in str(found.value).splitlines()
    assert main(["rules", "check", str(tmp_path)]) == 4
    assert f"{path}:" in capsys.readouterr().out
    assert main([str(FIXTURES["healthy"]), "--rules", str(tmp_path)]) == 4


def test_the_file_says_what_it_means() -> None:
    """The built-in thresholds carry where they are from."""
    assert "Where the figures are from" in BUILT_IN.read_text(encoding="utf-8")
