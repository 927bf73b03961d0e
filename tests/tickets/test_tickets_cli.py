"""`diagnose tickets` and `diagnose ack`: what a user sees."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from diagnose.cli.main import main
from diagnose.triage.store import Store
from tests.ports import free_port

from .conftest import SECRET, Receiver, Shelf, cause_of, environment

pytestmark = pytest.mark.usefixtures("loaded_apprise")

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def cli(file_shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Give what runs a command on a store with two findings."""
    file_shelf.now_s = file_shelf.store.now_s() - 60
    file_shelf.put("/a", cause_of("aaaa1111", recoverable=0.2), cause_of("bbbb2222", recoverable=0.1))
    file_shelf.store.leave()
    monkeypatch.setenv("DIAGNOSE_STORE", file_shelf.url)

    def run(*args: str) -> tuple[int, str, str]:
        code = main(list(args))
        return code, *capsys.readouterr()

    return run


def names(out: str) -> list[str]:
    """Give the fingerprints of printed tickets."""
    return [json.loads(line)["fingerprint"] for line in out.splitlines()]


def test_lines_of_json_once(cli) -> None:
    """The costliest first, valid against the schema that ships; the second time there is nothing new."""
    schema = json.loads(cli("schema", "ticket")[1])
    assert names(cli("tickets", "--dry-run")[1]) == ["aaaa1111", "bbbb2222"]
    code, out, err = cli("tickets")
    assert (code, err) == (0, "") and names(out) == ["aaaa1111", "bbbb2222"]
    for line in out.splitlines():
        jsonschema.Draft202012Validator(schema).validate(json.loads(line))
    assert cli("tickets") == (0, "", "")
    assert names(cli("tickets", "--all", "--limit", "1")[1]) == ["aaaa1111"]


def test_into_a_file(cli, tmp_path: Path) -> None:
    """The file holds what is new, so nothing when nothing is; one that cannot be written keeps nothing back."""
    assert cli("tickets", "-o", str(tmp_path / "no" / "x"))[0] == 2
    assert cli("tickets", "-o", str(tmp_path / "x"))[:2] == (0, "")
    assert names((tmp_path / "x").read_text()) == ["aaaa1111", "bbbb2222"]
    assert cli("tickets", "-o", str(tmp_path / "x"))[0] == 0 and (tmp_path / "x").read_text() == ""


def test_thresholds(cli) -> None:
    """Only what loses so much, or is so sure."""
    assert names(cli("tickets", "--dry-run", "--min-gpu-hours", "50")[1]) == ["aaaa1111"]
    assert cli("tickets", "--dry-run", "--min-confidence", "0.99") == (0, "", "")


def test_nothing_leaves_without_send(cli, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run prints who would get what, without secrets, and posts and remembers nothing."""
    monkeypatch.setenv("DIAGNOSE_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("DIAGNOSE_ALERTMANAGER_URL", receiver.url)
    monkeypatch.setenv("DIAGNOSE_APPRISE_URL", receiver.url.replace("http:", "json:"))
    for more in ([], ["--dry-run", "--send"]):
        code, out, err = cli("tickets", *more)
        assert (code, err, receiver.n_posts) == (0, "", 0)
        assert out.count("2 messages, not sent; --send sends") == 2 and "1 message, not sent" in out
        assert out.count("webhook-id: aaaa1111-") == 1 and '"labels": {"alertname": "TrainingJobSlow"' in out
        assert "S3CRET" not in out and SECRET not in out
    code, out, err = cli("tickets", "--send")
    assert code == 0 and "2 sent" in out and receiver.n_posts > 0
    assert {"aaaa1111", "bbbb2222"} <= {body["fingerprint"] for bodies in receiver.bodies.values() for body in bodies
                                        if isinstance(body, dict) and "fingerprint" in body}  # fmt: skip
    receiver.bad.clear()  # Alertmanager and Apprise do not sign


def test_a_service_that_does_not_answer(cli, receiver: Receiver, short_waits: None) -> None:
    """Exit code 74 and a line that says what; the other service and the gauges are served all the same."""
    nobody = f"http://127.0.0.1:{free_port()}/T0P-S3CRET"
    code, out, err = cli("tickets", "--send", "--webhook", nobody, "--webhook", receiver.url)
    assert code == 74 and "0 sent, 2 left for the next time" in out and "2 sent\n" in out
    assert err.count("\n") == 1 and "does not answer (ConnectError), 6 times" in err and "S3CRET" not in out + err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["tickets", "--send"], "--send needs --webhook"),
        (["tickets", "--webhook", "ftp://host/S3CRET"], "--webhook: expected an address"),
        (["tickets", "--webhook", "https://ho st/S3CRET"], "--webhook: expected an address"),
        (["tickets", "--alertmanager", "http://host:99999999/S3CRET"], "--alertmanager: expected an address"),
        (["tickets", "--apprise", "nonsense://S3CRET"], "knows no such service"),
        (["tickets", "--site", "/srv/site"], "--site: expected an address"),
        (["tickets", "--all", "--webhook", "http://host"], "--all is for standard output"),
        (["tickets", "--webhook", "http://127.0.0.1/", "--send"], "openssl rand"),
        (["tickets", "--gone-after", "soon"], "'soon' is no age such as 30d"),
        (["tickets", "--gone-after", "2026-01-01"], "is no age such as 30d"),
        (["ack"], "expected FINGERPRINT"),
        (["ack", "aaaa1111"], "expected --reason"),
        (["ack", "aaaa1111", "--reason", " "], "expected --reason"),
        (["ack", "aaaa1111", "--reason", "x", "--clear"], "expected --reason TEXT, or --clear"),
        (["ack", "aaaa1111", "--list"], "--list alone"),
        (["ack", "cccc", "--reason", "x"], "'cccc' is the fingerprint of no finding"),
        (["ack", "aaaa1111", "--reason", "x", "--until", "2001-01-01"], "is over"),
        (["ack", "aaaa1111", "--reason", "x", "--until", "soon"], "'soon' is no age"),
    ],
)
def test_mistakes(cli, args: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 and one line that says what to do, without what may be secret."""
    monkeypatch.delenv("DIAGNOSE_WEBHOOK_SECRET", raising=False)
    code, out, err = cli(*args)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1 and "S3CRET" not in err


def test_a_password_on_the_command_line(cli) -> None:
    """A warning says where it belongs, and it is not shown."""
    code, out, err = cli("tickets", "--webhook", "https://me:pa55w0rd@host.example/x")
    assert code == 0 and "DIAGNOSE_WEBHOOK_URL" in err and "pa55w0rd" not in out + err


def test_no_store(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is made where no triage has been."""
    monkeypatch.setenv("DIAGNOSE_STORE", f"sqlite:///{tmp_path / 'none.db'}")
    for command in (["tickets"], ["ack", "--list"]):
        code, _, err = cli(*command)
        assert code == 74 and "`diagnose triage` makes it" in err
    assert not (tmp_path / "none.db").exists()


def test_ack(cli) -> None:
    """A finding by the beginning of its fingerprint: silenced, listed, told again."""
    assert cli("ack", "--list")[1] == "nothing is acknowledged\n"
    code, out, _ = cli("ack", "aaaa", "--reason", "node\x1b[31m is\nin repair", "--until", "2w")
    assert code == 0 and out.startswith("aaaa1111: worker-fault of train, seen in 1 run, is acknowledged until 2")
    assert names(cli("tickets", "--dry-run")[1]) == ["bbbb2222"]
    listed = cli("ack", "--list")[1]
    assert listed.startswith("aaaa1111  until 2") and listed.endswith(
        "worker-fault of train: node\\x1b[31m is in repair\n"
    )
    (known,) = [json.loads(line) for line in cli("tickets", "--all")[1].splitlines() if "aaaa1111" in line]
    assert known["state"] == "acked" and known["ack"]["reason"].startswith("node")
    assert cli("ack", "aaaa1111", "--clear")[1] == "aaaa1111: told of again\n"
    assert cli("ack", "aaaa1111", "--clear")[1] == "aaaa1111: was not acknowledged\n"
    assert names(cli("tickets")[1]) == ["aaaa1111", "bbbb2222"]


def test_an_ack_takes_note_of_nothing(cli, file_shelf: Shelf) -> None:
    """Findings of a night in which somebody acknowledges one are told the next time, though a clean run came in between."""
    assert cli("ack", "aaaa", "--reason", "known")[0] == 0
    file_shelf.pass_days(1 / 24)
    file_shelf.put("/b", came_at=file_shelf.store.now_s())
    assert names(cli("tickets")[1]) == ["bbbb2222"]


def test_gauges(cli, tmp_path: Path) -> None:
    """The file appears whole, says what the store holds, is the same twice, and has no temporary file beside it."""
    cli("ack", "bbbb", "--reason", "known")
    path = tmp_path / "metrics" / "diagnose.prom"
    path.parent.mkdir()
    path.write_text("old")
    assert cli("tickets", "--dry-run", "--prometheus-textfile", str(path))[0] == 0
    text = path.read_text()
    for line in (
        'diagnose_jobs{verdict="straggling"} 1.0',
        'diagnose_jobs{verdict="healthy"} 0.0',
        "diagnose_jobs_failed 0.0",
        "diagnose_analysed_gpu_seconds 3600.0",
        "diagnose_wasted_gpu_seconds 720.0",
        'diagnose_open_findings{severity="high"} 1.0',
        "diagnose_acked_findings 1.0",
    ):
        assert line + "\n" in text
    cli("tickets", "--prometheus-textfile", str(path))
    assert path.read_text() == text and [one.name for one in path.parent.iterdir()] == ["diagnose.prom"]
    assert cli("tickets", "--prometheus-textfile", str(tmp_path / "no" / "x.prom"))[0] == 2


def test_gauges_satisfy_promtool(cli, file_shelf: Shelf, tmp_path: Path) -> None:
    """`promtool check metrics` has nothing to say, with the moment of the last triage run and any name in it."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here (apt-get install prometheus)")
    file_shelf.store.record_end()
    file_shelf.put("/b", cause_of("cccc", 'x"\n\\{}\x1b'), dp_size=2)
    path = tmp_path / "diagnose.prom"
    cli("tickets", "--prometheus-textfile", str(path))
    assert "diagnose_last_night_end_timestamp_seconds 1." in path.read_text()
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=path.read_text(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_night_end_to_end(tmp_path: Path) -> None:
    """Triage of two traces, tickets of what it found, nothing the next run; the moment of its end is kept."""
    for name in ("worker-fault", "healthy"):
        shutil.copy(FIXTURES / f"{name}.parquet", tmp_path)
    store = f"sqlite:///{tmp_path / 'store.db'}"

    def run(*args: str) -> str:
        command = [sys.executable, "-m", "diagnose", *args, "--store", store]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    run("triage", str(tmp_path), "--quiet")
    (ticket,) = [json.loads(line) for line in run("tickets").splitlines()]
    assert ticket["title"] == "worker-fault: slow worker at dp 1, stage 0, steps 1.18x"
    assert (
        ticket["evidence"]
        and ticket["fixes"][0]["fix"] == "replace-worker"
        and ticket["family"].startswith("diagnose.faults")
    )
    run("triage", str(tmp_path), "--quiet")
    assert run("tickets") == ""
    with Store(store) as opened:
        assert opened.info().n_runs == 0
