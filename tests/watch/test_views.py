"""What a terminal and Prometheus get of watched jobs."""

import contextlib
import fcntl
import io
import itertools
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import msgspec.structs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len
from rich.console import Console

from diagnose.cli.main import main
from diagnose.cli.watch_views import can_draw
from diagnose.model.live import WatchedJob
from diagnose.report.live import draw_job, draw_jobs
from diagnose.report.live_words import count_states, describe_briefly, describe_now, rank
from diagnose.watch.gauges import GaugesFile, render_gauges
from diagnose.watch.screen import Screen
from tests.fixture_jobs import FIXTURES, diagnosed
from tests.report.hostile import HOSTILE
from tests.triage.conftest import HEED
from tests.watch import made
from tests.watch.recorded import RecordedJob
from tests.watch.watching import make_trace, slow_worker

SLOW, WELL = "worker-fault", "healthy"
SIZES = [(80, 24), (40, 10), (132, 50), (200, 60)]


def lines_of(drawn, width: int, height: int) -> list[str]:
    """Print what was drawn, and give its lines."""
    page = io.StringIO()
    Console(file=page, width=width, height=height, force_terminal=False, _environ={}).print(drawn)
    return page.getvalue().rstrip("\n").split("\n")


def one(name: str = SLOW, **more) -> tuple[WatchedJob, tuple]:
    """Make a job and its last window."""
    job = made.job("pretrain-7b", diagnosed(name), **more)
    return job, diagnosed(name)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_one_job_fits(width: int, height: int) -> None:
    """Every state, with few and many episodes, of few and many workers, fits the screen; the episode stands on the second line."""
    slow = diagnosed(SLOW)
    over = [made.episode_of(slow, 10 * n, recovered=10 * n + 5) for n in range(1, 60)]
    opened = made.episode_of(slow, 700)
    wide = diagnosed("network-fault")
    for job, diagnosis in (
        one(episodes=[opened, *over]),
        one(WELL),
        one(state="blind", why="no new rows since 02:41:07", episodes=[opened]),
        (made.job("pretrain-7b", n_windows=0, state="waiting", why="no rows yet"), None),
        (made.job("pretrain-7b", wide, n_windows=500), wide),
    ):
        lines = lines_of(draw_job(job, diagnosis, now_s=made.NOW_S, width=width, height=height), width, height)
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width
        assert lines[0].startswith(f"pretrain-7b  {job.state.upper()}")
        assert lines[1][: width - 1] == describe_now(job)[: width - 1]


def test_what_one_job_shows() -> None:
    """On 80 x 24 stand the chart, the map with its culprit, what lasts, and what is over."""
    slow = diagnosed(SLOW)
    episodes = [made.episode_of(slow, 700), made.episode_of(slow, 120, recovered=300, gain=0.06)]
    job, diagnosis = one(episodes=episodes)
    text = "\n".join(lines_of(draw_job(job, diagnosis, now_s=made.NOW_S, width=80, height=24), 80, 24))
    for said in ("S 1.17", "20 s ago", "step 0", "X1.17", "!   15% since step 700", " 7.2% steps 120 to 299"):
        assert said in text, said


def test_a_job_without_slowdowns() -> None:
    """Of a job by its log alone the step times of its windows are drawn, in their own unit."""
    job = made.job("one", diagnosed(WELL))
    step_s = [1.0 + 0.5 * (window.number > 37) for window in job.windows]
    windows = [
        msgspec.structs.replace(w, slowdown=None, worker_slowdowns=(), step_s=s)
        for w, s in zip(job.windows, step_s, strict=True)
    ]
    job = msgspec.structs.replace(job, windows=tuple(windows), course_steps=(), course_slowdowns=())
    lines = lines_of(draw_job(job, None, now_s=made.NOW_S, width=80, height=24), 80, 24)
    assert [line[:8].strip() for line in lines[4:9]] == ["1.50 s", "", "", "1.00 s", "a step"]
    assert lines[4][8:].rstrip() == " " * 5 + "███"


def test_the_curve_is_red_in_episodes() -> None:
    """Columns that hold steps of an episode are red, the others green, over all steps and over the last windows alone."""
    slow = diagnosed(SLOW)
    job, diagnosis = one(episodes=[made.episode_of(slow, 700), made.episode_of(slow, 120, recovered=300)])
    by_log = msgspec.structs.replace(job, course_steps=(), course_slowdowns=())
    red = {*range(120, 300), *range(700, 820)}
    for drawn, steps in ((job, job.course_steps), (by_log, [window.first_step for window in job.windows])):
        lines = draw_job(drawn, diagnosis, now_s=made.NOW_S, width=80, height=24).renderables
        foot = next(n for n, line in enumerate(lines) if " step " in str(line)[:16])
        styles = [str(span.style) for span in lines[foot - 1].spans if span.start >= 8]
        firsts = [*steps[:: -(-len(steps) // 72)], 820]
        assert styles == ["red" if red & {*range(*ends)} else "green" for ends in itertools.pairwise(firsts)]
        assert set(styles) == {"red", "green"}


def test_why_nobody_sees_it() -> None:
    """A blind job with an episode says both what may last and why nobody can tell."""
    job, diagnosis = one(
        state="blind", why="no new rows since 02:41:07", episodes=[made.episode_of(diagnosed(SLOW), 700)]
    )
    lines = lines_of(draw_job(job, diagnosis, now_s=made.NOW_S, width=80, height=24), 80, 24)
    assert lines[1].startswith("blind, and it may last: slow worker") and lines[2] == "no new rows since 02:41:07"


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("n", [0, 2, 64])
def test_many_jobs_fit(width: int, height: int, n: int) -> None:
    """A line a job, the worst first; those without room are counted, so that no job is missing."""
    jobs = made.many({name: diagnosed(name) for name in (SLOW, WELL)}, n)
    lines = lines_of(draw_jobs(jobs, now_s=made.NOW_S, width=width, height=height), width, height)
    assert len(lines) <= height and max(map(cell_len, lines)) <= width
    assert lines[0].rstrip("…") in count_states(jobs)
    if n == 64:
        assert [line.split()[0] for line in lines[2:6]] == ["run-53", "run-37", "run-21", "run-05"]
        shown = sum(line.startswith("run-") for line in lines)
        assert shown == n or f"and {n - shown} jobs"[:width] in lines[-1]
        if height >= 24:
            assert sum("BLIND" in line for line in lines) == 3


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names(text: str) -> None:
    """No name makes a line longer than the screen, a second line, or anything that a terminal obeys."""
    slow = diagnosed(SLOW)
    job = made.hostile(text, slow)
    for drawn in (
        draw_job(job, slow, now_s=made.NOW_S, width=80, height=24),
        draw_jobs([job, job], now_s=made.NOW_S, width=80, height=24),
    ):
        lines = lines_of(drawn, 80, 24)
        assert len(lines) <= 24 and max(map(cell_len, lines)) <= 80
        assert not set("\x1b\x07\x9b\u202e\u2066\u2028\r") & set("".join(lines))
    assert "\n" not in describe_briefly(job)


def test_the_order_of_jobs_does_not_flicker() -> None:
    """Two jobs whose costs hardly differ keep their order from round to round."""
    slow = diagnosed(SLOW)
    a, b = (
        made.job(name, slow, episodes=[made.episode_of(slow, 700, gain=gain)])
        for name, gain in (("a", 0.151), ("b", 0.153))
    )
    assert sorted([b, a], key=rank) == [a, b]


def test_a_screen_is_drawn_in_place() -> None:
    """On a terminal each round takes the place of the one before, and at the end the last one stays."""
    slow, page = diagnosed(SLOW), io.StringIO()
    console = Console(file=page, width=80, height=24, force_terminal=True, _environ={"TERM": "xterm"})
    screen = Screen(console)
    job = made.job("one", slow)
    screen.diagnosed(job, slow, None)
    screen.show([job], [], made.NOW_S)
    screen.show([msgspec.structs.replace(job, state="blind", why="gone")], [], made.NOW_S + 5)
    screen.show([job, made.job("two", slow)], [], made.NOW_S + 10)
    screen.close()
    written = page.getvalue()
    assert written.count("\x1b[2K") > 20, "lines are wiped"
    assert "BLIND" in written and "2 jobs: 2 running" in written
    assert written.endswith("\x1b[?25h"), "the cursor is there again"


def test_nothing_is_drawn_on_what_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, a dumb terminal and one without these characters get plain lines."""
    assert not can_draw()
    monkeypatch.setattr(
        "sys.stdout", type("Terminal", (io.StringIO,), {"isatty": lambda _: True, "encoding": "utf-8"})()
    )
    for term, is_fit in (("xterm-256color", True), ("dumb", False), ("", False)):
        monkeypatch.setenv("TERM", term)
        assert can_draw() == is_fit
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        "sys.stdout", type("Terminal", (io.StringIO,), {"isatty": lambda _: True, "encoding": "latin-1"})()
    )
    assert not can_draw()
    monkeypatch.setattr("sys.stdout", None)
    assert not can_draw()


def samples_of(jobs: list[WatchedJob]) -> dict[tuple[str, ...], float]:
    """Read gauges back: value by metric and labels."""
    families = text_string_to_metric_families(render_gauges(jobs, made.NOW_S).decode())
    return {
        (one.name, *(f"{key}={value}" for key, value in sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def test_what_gauges_say() -> None:
    """States, slowdown and open episodes of each job; what is not known is left out."""
    slow = diagnosed(SLOW)
    jobs = [
        made.job("a", slow, episodes=[made.episode_of(slow, 700), made.episode_of(slow, 10, recovered=20)]),
        made.job("b", n_windows=0, state="waiting"),
    ]
    found = samples_of(jobs)
    a, b = ("location=/traces/a", "name=a"), ("location=/traces/b", "name=b")
    assert found[("diagnose_watch_state", *a, "state=running")] == 1
    assert found[("diagnose_watch_state", *b, "state=waiting")] == 1
    assert found[("diagnose_watch_state", *b, "state=blind")] == 0
    assert found[("diagnose_watch_open_episodes", *a)] == 1
    assert found[("diagnose_watch_windows_total", *a)] == 41
    assert ("diagnose_watch_slowdown_ratio", *b) not in found
    gains = {key: value for key, value in found.items() if key[0] == "diagnose_watch_episode_gain_ratio"}
    (labels,) = gains
    assert "cause=worker-fault" in labels and "place=dp 1, stage 0" in labels and gains[labels] == 0.15


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_gauges_of_hostile_names(text: str) -> None:
    """Whatever a job is called, its gauges are read back, each once."""
    slow = diagnosed(SLOW)
    assert samples_of([made.hostile(text, slow), made.job("other", slow)])


def test_gauges_satisfy_promtool() -> None:
    """`promtool check metrics` has nothing to say."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here (apt-get install prometheus)")
    jobs = [
        *made.many({name: diagnosed(name) for name in (SLOW, WELL)}),
        made.hostile(HOSTILE["script"], diagnosed(SLOW)),
    ]
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=render_gauges(jobs, made.NOW_S), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_gauges_file(tmp_path: Path) -> None:
    """It is written when something changed, and now and then where nothing did; a folder that is gone is told once."""
    slow, path, said = diagnosed(SLOW), tmp_path / "watch.prom", []
    view, jobs = GaugesFile(path, said.append), [made.job("a", slow)]
    view.show(jobs, [], made.NOW_S)
    first = path.read_bytes()
    view.show(jobs, [], made.NOW_S + 5)
    assert path.read_bytes() == first
    view.show(jobs, [], made.NOW_S + 31)
    assert path.read_bytes() != first
    assert list(tmp_path.iterdir()) == [path]
    gone = GaugesFile(tmp_path / "gone" / "watch.prom", said.append)
    gone.show(jobs, [], made.NOW_S)
    gone.show(jobs, [], made.NOW_S)
    assert len(said) == 1 and said[0].startswith("--prometheus-textfile: cannot write")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--serve", "x"], "--serve: 'x' is no port (0 to 65535); give sources before it, or --serve=8731"),
        (["--serve=65536"], "--serve: '65536' is no port (0 to 65535); give sources before it, or --serve=8731"),
        (["--serve-address", "127.0.0.1"], "--serve-address says where to listen: give --serve with it"),
        (["--html", "no/such"], "--html: there is no folder no"),
        (
            ["--html", "."],
            "--html: . is not empty and no folder of `diagnose watch` (no sound watch.json); name another",
        ),
        (["--prometheus-textfile", "no/such"], "--prometheus-textfile: there is no folder no"),
        (
            ["--html", "a.html", "--prometheus-textfile", "./a.html"],
            "a.html is the page of --html already; name another file",
        ),
        (["--site", "here"], "--site: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown(options, said, tmp_path, monkeypatch, capsys) -> None:
    """What cannot be is refused in a line before anything is diagnosed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.parquet").write_bytes(FIXTURES[WELL].read_bytes())
    assert main(["watch", "job.parquet", "--once", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and said in shown.err


def test_a_terminal(tmp_path: Path) -> None:
    """On a terminal the program draws in place, with lines of episodes above and none of windows; ^C ends it in order."""
    job = RecordedJob(make_trace(80, slow_worker(80, 30, None)), tmp_path / "job")
    job.write(int(job.steps[-1]), ended=True)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        *(sys.executable, "-c", HEED),  # the tests may run where ^C is ignored
        *("-m", "diagnose", "watch"),
        str(tmp_path / "job"),
        "--store",
        f"sqlite:///{tmp_path / 's.db'}",
    ]
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as watching:
        os.close(theirs)
        shown = b""
        while b"ENDED" not in shown:
            shown += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other end is closed
            while more := os.read(ours, 65536):
                shown += more
    assert watching.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "slow since step" in text and "straggling, slowdown" not in text and "window 3, steps" in text
    assert shown.rstrip().endswith(b"\x1b[?25h"), "the cursor is there again"
