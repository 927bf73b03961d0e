"""Damaged telemetry: two hundred files give telemetry or one line, and nothing else."""

import contextlib
import random
import time

import pytest

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering
from diagnose.telemetry.read import read_content, read_telemetry
from tests.telemetry.test_read import SNAPSHOT, T0, _matrix, _series

CARD = {"Hostname": "node-3", "gpu": "5", "UUID": "GPU-abc"}
SOUND = {
    "range.json": _matrix(
        _series("DCGM_FI_DEV_SM_CLOCK", [1410, 1200, 1300], **CARD),
        _series("node_cpu_seconds_total", [1, 2, 3], instance="n:9100", cpu="0", mode="idle"),
    ),
    "node-1.csv": "timestamp, index, uuid, clocks.sm [MHz], power.draw [W]\n"
    + "".join(f"2026/01/31 12:00:0{i}.000, 0, GPU-1, 14{i}0 MHz, 30{i}.00 W\n" for i in range(5)),
    "node-1.prom": f'# HELP node_load1 x\nnode_procs_running 3 {int(T0) * 1000}\nnode_network_up{{device="e"}} 1 17\n',
    "node-1.dmon": "#Entity SMCLK POWER\n1769860800 GPU 0 1410 300\n1769860801 GPU 1 1410 300\n",
    "node-1.txt": SNAPSHOT.format(time="2026-01-31T12:00:00Z", replays=3, ecc=10, crc=0),
}
PIECES = [
    b"\0",
    b"\xff\xfe",
    b'"',
    b"{",
    b"}",
    b"[[[[",
    b"NaN",
    b"1e999",
    b"-" * 40,
    b"\r\n",
    b",,,,",
    b"\x1b[31m",
    b"\xe2\x80\xae",
]


def _damage(content, rng):
    """Cut, double, swap or spoil some bytes."""
    for _ in range(rng.randint(1, 6)):
        at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                content = content[:at]
            case 1:
                content = content[:at] + content[to:]
            case 2:
                content = content[:at] + rng.choice(PIECES) * rng.randint(1, 3) + content[at:]
            case 3:
                content = content[:to] + content[at:to] + content[to:]
            case _:
                content = bytes(rng.randrange(256) if rng.random() < 0.02 else byte for byte in content)
        content = content or b" "
    return content


@pytest.mark.parametrize("name", SOUND)
def test_damaged_files(tmp_path, name):
    """Forty damaged files of each format are read in part or refused in one line that can be shown."""
    rng = random.Random(name)
    path = tmp_path / name
    n_read = 0
    for _ in range(40):
        path.write_bytes(_damage(SOUND[name].encode(), rng))
        try:
            telemetry = read_telemetry(path)
            n_read += 1
        except TraceError as error:
            text = str(error)
            assert text.isprintable(), text
            assert "expected" in text
            continue
        for one in telemetry.series:
            assert len(one.times) == len(one.values) > 0
            assert (one.times[1:] > one.times[:-1]).all()
    assert n_read > 0


def test_a_packed_bomb_is_refused(tmp_path, monkeypatch):
    """A small file that unpacks to more than may be read is refused before it fills the memory."""
    import gzip

    import diagnose.telemetry.read as module

    monkeypatch.setattr(module, "MAX_BYTES", 1 << 16)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (1 << 20)))
    with pytest.raises(TraceError, match="has more than 0 MiB"):
        read_telemetry(path)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"data":' * 100_000, '[{"metric":{},"values":[[1,"2"]]}' * 2])
def test_deep_and_odd_json(tmp_path, deep):
    """JSON that is nested without end is refused as any other."""
    path = tmp_path / "x.json"
    path.write_text(deep)
    with pytest.raises(TraceError):
        read_telemetry(path)


TABLE = "timestamp, index, clocks.sm [MHz]\n"
DMON = "#Entity SMCLK POWER\n"
TAKEN = "# diagnose snapshot 2026-01-31T12:00:00Z node-1\n"
CARDS = TAKEN + "# nvidia-smi -q\nGPU 00000000:1A:00.0\n"
PORT = TAKEN + "# ethtool -S eth0\n"
PROM = "# HELP node_load1 x\nnode_load1 1 1769860800000\n"


def _cost(pieces):
    """CPU seconds of reading each of some texts, by the clock's steps: they are read again until there are enough of them."""
    began, n = time.process_time(), 0
    while not n or time.process_time() - began < 0.03:
        for piece in pieces:
            with contextlib.suppress(TraceError):
                read_content(piece, Gathering(), host="node-1")
        n += 1
    return (time.process_time() - began) / n


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        ("", "timestamp,"),
        ("timestamp, index, a", " "),
        ("timestamp, index, a", "["),
        (TABLE, '"'),
        (TABLE + "2026/01/31 12:00:00.000, 0, 1", " "),
        ("#", " "),
        ("", "#Entity "),
        (DMON, "GPU 1"),
        (DMON, "GPU  "),
        (TAKEN, " "),
        (CARDS + "a", " "),
        (CARDS + "a:x", " "),
        (PORT + "a: 1", " "),
        ("a{", "} 1"),
        (PROM, 'a{b="c",'),
        (PROM + "a", " "),
        ("[", '"metric" '),
    ],
)
def test_a_line_without_end_costs_what_it_is_long(begins, goes_on):
    """A line of 16 KB costs about what as much costs in lines of half a KB; its square would be 32 times that."""
    short, long = (
        (begins + goes_on * ((size - len(begins)) // len(goes_on)) + "!\n").encode() for size in (1 << 9, 1 << 14)
    )
    assert _cost([long]) < 6.0 * _cost([short] * 32)


def test_a_cell_without_end_spoils_its_line_alone(tmp_path):
    """A quotation mark that nothing closes, or a cell that is longer than any may be, is no row; those around it are read."""
    path = tmp_path / "node-1.csv"
    row = "2026/01/31 12:00:0{}.000, 0, 1410 MHz\n".format
    path.write_text(TABLE + row(0) + '2026/01/31 12:00:01.000, "0, 1410 MHz\n' + row(2) + "1" * 200_000 + "\n" + row(3))
    (clock,) = read_telemetry(path).series
    assert len(clock.times) == 3
