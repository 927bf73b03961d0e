"""The program that tests one machine: it stands in the scripts that `diagnose confirm` writes, and runs where nothing is installed.

Enters: arguments, see `_read_arguments`. Leaves: one line of JSON on standard output (`diagnose-confirm/1`). It needs Python 3.6
and nothing else; torch, gpu_burn, dcgmi and ib_write_bw are used where they are there. Every test has a time limit; the only file
that it writes is one of 256 MiB in the folder for temporary files, which it deletes. It does not touch a card on which a process
runs.

Source of the formats: `nvidia-smi --help-query-gpu`, `--help-query-compute-apps`; docs.nvidia.com, dcgmi diag (exit status);
perftest's table `#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]`; gpu_burn's `(12345 Gflop/s)`; proc(5).
"""

import argparse
import glob
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

SCHEMA = "diagnose-confirm/1"
MIB = 1024 * 1024
#: Written and read for the test of the disk, if four times as much is free.
DISK_BYTES = 256 * MIB
#: Read at most for the test of the data.
DATA_BYTES = 1024 * MIB
#: Seconds that a partner of a pair may be late, which ends a round for both; and that one port of it may take.
ROUND_S = 120
PORT_S = 25
#: Seconds that data are sent between two machines, for each port.
SEND_S = 5
#: Where the kernel lists the cards for RDMA.
INFINIBAND = "/sys/class/infiniband"
#: First TCP port that pairs use; each pair has 32, one for each network port, from here.
FIRST_PORT = 18600
PORTS_A_PAIR = 32
#: A card with more memory in use than this has a job: a driver alone takes a few hundred.
BUSY_MIB = 2048
#: Index, UUID and more of a card, as nvidia-smi lists them; number, server, client and round of a pair.
Card = Dict[str, str]
Pairing = Tuple[int, str, str, int]
#: Seconds that `dcgmi diag -r 3` may take: a quarter of an hour is usual.
DCGM_S = 2400


class Report:
    """What was measured, and what could not be."""

    def __init__(self) -> None:
        self.measured = []  # type: List[Dict[str, Any]]
        self.skipped = []  # type: List[Dict[str, str]]

    def add(
        self, test: str, of: str = "", value: Optional[float] = None, passed: Optional[bool] = None, note: str = ""
    ) -> None:
        """Keep a figure, or what a test says."""
        self.measured.append({"test": test, "of": of, "value": value, "passed": passed, "note": str(note)[:2000]})

    def skip(self, test: str, reason: object) -> None:
        """Keep why a test could not be run."""
        self.skipped.append({"test": test, "reason": str(reason)[:2000]})


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the tests that are asked for, and print what they say."""
    given = _read_arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report, began_s = Report(), time.time()
    if "network" in given.tests:  # first: here all machines begin together
        try_network(report, given)
    cards = find_cards(report) if "gpu" in given.tests else []
    if "gpu" in given.tests:
        try_cards(report, given, cards)
    if "cpu" in given.tests:
        try_cpu(report, given.seconds)
    if "memory" in given.tests:
        try_memory(report)
    if "disk" in given.tests:
        try_disk(report)
        if given.data:
            try_data(report, given.data)
    said = {
        "schema": SCHEMA,
        "job": given.job,
        "host": given.host,
        "role": given.role,
        "began_s": round(began_s, 3),
        "ended_s": round(time.time(), 3),
        "measured": report.measured,
        "skipped": report.skipped,
    }
    print(json.dumps(said))
    sys.stdout.flush()


def _read_arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Read what to test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default="")
    parser.add_argument("--host", default=socket.gethostname())
    parser.add_argument("--role", choices=["suspect", "control"], default="suspect")
    parser.add_argument("--tests", type=lambda text: text.split(","), default=["gpu", "cpu", "memory", "disk"])
    parser.add_argument("--pairs", type=_read_pairs, default=[], help="server/client/round,...")
    parser.add_argument("--data", default="")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--force", action="store_true")
    return parser.parse_args(argv)


def _read_pairs(text: str) -> List[Pairing]:
    """Read the pairs: number, server, client, round."""
    found = []
    for n, each in enumerate(text.split(",") if text else []):
        server, client, in_round = each.split("/")
        found.append((n, server, client, int(in_round)))
    return found


def call(command: List[str], seconds: float) -> Tuple[Optional[int], str]:
    """Run a program for so long at most: exit status, None where it had to be stopped, and what it printed."""
    try:
        ran = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return 127, str(error)
    try:
        said, _ = ran.communicate(timeout=seconds)
        return ran.returncode, said.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        stop(ran)
        return None, "no answer within {:.0f} s".format(seconds)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a program that this one started, with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    process.communicate()


# ---------------------------------------------------------------------------------------------------------------- cards


def find_cards(report: Report) -> List[Card]:
    """List the cards: index, UUID, what runs on them, and whether they are split."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "index,uuid,memory.used,mig.mode.current"
    code, said = call(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], 60)
    if code != 0:
        report.add("gemm", passed=False, note="nvidia-smi failed: " + " ".join(said.split())[-300:])
        return []
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines() if line.count(",") == 3]
    code, said = call(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"], 60)
    busy = {}  # type: Dict[str, List[str]]
    for line in said.splitlines() if code == 0 else []:
        uuid, _, pid = line.partition(",")
        busy.setdefault(uuid.strip(), []).append(pid.strip())
    found = []
    for index, uuid, used, mig in rows:
        why = "process " + ", ".join(busy[uuid]) if uuid in busy else ""
        if not why and used.isdigit() and int(used) > BUSY_MIB:  # a container does not see the processes of others
            why = "{} MiB of its memory in use".format(used)
        found.append({"index": index, "uuid": uuid, "busy": why, "mig": mig})
    return found


def try_cards(report: Report, given: argparse.Namespace, cards: List[Card]) -> None:
    """Burn all cards at once, as training does; then the vendor's own tests."""
    if not cards:
        if shutil.which("nvidia-smi") is None:
            burn_all(report, [{"index": "", "uuid": ""}], given.seconds)
            report.skip("dcgm", "this machine has no nvidia-smi: its processor was tested in place of cards")
        return
    busy = [card for card in cards if card["busy"]]
    if busy and not given.force:
        named = "; ".join("card {}: {}".format(card["index"], card["busy"]) for card in busy)
        report.skip("gpu", "a job runs here ({}): end it first, or run the script with --force".format(named))
        return
    whole = [card for card in cards if card["mig"] != "Enabled"]
    if len(whole) < len(cards):
        report.skip("gemm", "{} of {} cards are split by MIG".format(len(cards) - len(whole), len(cards)))
    burn_all(report, whole, given.seconds)
    for card in whole:
        note_link(report, card)
    try_dcgm(report)


def burn_all(report: Report, cards: List[Card], seconds: float) -> None:
    """Burn every card in a process of its own."""
    running = []
    for card in cards:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=burn_alone, args=(theirs, card, seconds))
        process.daemon = True
        process.start()
        theirs.close()
        running.append((card, process, ours))
    until = time.time() + seconds + 180  # loading torch and making a context takes its time
    for card, process, ours in running:
        found = None
        try:
            if ours.poll(max(0.1, until - time.time())):
                found = ours.recv()
        except (EOFError, OSError):
            found = None
        process.join(5)
        if process.is_alive():
            process.terminate()
        of = card["index"]
        if isinstance(found, dict):
            for test, value in sorted(found.items()):
                report.add(test, of, value)
        elif found is None:
            report.add("gemm", of, passed=False, note="the burn died, or did not end in time")
        elif card["uuid"] and shutil.which("gpu_burn"):
            gpu_burn(report, card, seconds)
        else:
            report.skip("gemm", found)


def burn_alone(answer: Any, card: Card, seconds: float) -> None:
    """Say what a card does, in a process that sees no other one: its figures, or why there are none."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if card["uuid"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = card["uuid"]
    said = None  # type: Union[Dict[str, float], str, None]
    try:
        said = burn(card, seconds)
    except ImportError as error:
        said = "{}; torch, or gpu_burn, is needed".format(error)
    except RuntimeError as error:  # what CUDA says of a card that does not work
        text = " ".join(str(error).split())[:300]
        said = None if "CUDA error" in text or "uncorrectable" in text else text
    answer.send(said)
    answer.close()


def burn(card: Card, seconds: float) -> Union[Dict[str, float], str]:
    """Multiply matrices, in torch on the card, or on the processor where there is no card; then its memory and its way to it."""
    if not card["uuid"]:
        return burn_processor(min(seconds, 5.0))
    import torch

    if not torch.cuda.is_available():
        return "torch sees no card: it was built without CUDA, or does not fit the driver"
    device, n = torch.device("cuda:0"), 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    found = {}  # type: Dict[str, float]

    def rate(work: Callable[[], Any], amount: float, least_s: float) -> float:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        rates, began = [], time.perf_counter()  # type: List[float], float
        while time.perf_counter() - began < least_s:
            at = time.perf_counter()
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            rates.append(10 * amount / (time.perf_counter() - at))
        late = rates[len(rates) // 2 :]  # the second half: hot, at the clock that lasts
        return sorted(late)[len(late) // 2]

    found["gemm"] = rate(lambda: torch.matmul(a, b), 2.0 * n**3 / 1e12, seconds)
    b = None
    free = torch.cuda.mem_get_info()[0] if hasattr(torch.cuda, "mem_get_info") else 2**31
    one = torch.empty(min(2**30, free // 4), device=device, dtype=torch.uint8)
    two = torch.empty_like(one)
    found["card-memory"] = rate(lambda: two.copy_(one), 2 * one.numel() / 1e9, 2.0)
    host = torch.empty(min(2**28, one.numel()), dtype=torch.uint8, pin_memory=True)
    part = one[: host.numel()]
    found["pcie"] = rate(lambda: part.copy_(host, non_blocking=True), host.numel() / 1e9, 2.0)
    two = one = part = a = None
    torch.cuda.empty_cache()
    began = time.perf_counter()
    for _ in range(20):
        torch.empty(64 * MIB, device=device, dtype=torch.uint8)
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    found["allocation"] = 1e3 * (time.perf_counter() - began) / 20
    return found


def burn_processor(seconds: float) -> Union[Dict[str, float], str]:
    """Multiply matrices on the processor, in torch or numpy."""
    n, said = 1024, "this machine has no card that nvidia-smi lists, and neither torch nor numpy to burn the processor"
    a = None  # type: Any
    try:
        import torch

        a = torch.randn(n, n)
    except ImportError:
        try:
            import numpy as np

            a = np.random.RandomState(0).rand(n, n).astype("float32")
        except ImportError:
            return said
    a @ a
    rates, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds:
        at = time.perf_counter()
        a @ a
        rates.append(2.0 * n**3 / 1e12 / (time.perf_counter() - at))
    return {"gemm": sorted(rates)[len(rates) // 2]}


def gpu_burn(report: Report, card: Card, seconds: float) -> None:
    """Burn a card with gpu_burn, where there is no torch."""
    code, said = call(["gpu_burn", "-i", card["index"], str(int(seconds))], seconds + 120)
    rates = re.findall(r"\((\d+(?:\.\d+)?) Gflop/s\)", said)
    if code == 0 and rates and "FAULTY" not in said:
        report.add("gemm", card["index"], float(rates[-1]) / 1e3)
    elif "FAULTY" in said:
        report.add("gemm", card["index"], passed=False, note="gpu_burn says FAULTY")
    else:
        report.skip("gemm", "gpu_burn: " + said.strip()[-300:])


def note_link(report: Report, card: Card) -> None:
    """Keep what a card says of its own link after the burn, where it is narrower than it could be."""
    fields = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
    code, said = call(["nvidia-smi", "-i", card["uuid"], "--query-gpu=" + fields, "--format=csv,noheader"], 60)
    parts = [part.strip() for part in said.strip().split(",")]
    if code == 0 and len(parts) == 4 and all(part.isdigit() for part in parts) and int(parts[2]) < int(parts[3]):
        report.add("pcie", card["index"], passed=False, note="PCIe x{2} of x{3}".format(*parts))


def try_dcgm(report: Report) -> None:
    """Run the vendor's diagnostics: exit status 0 where all passed."""
    if shutil.which("dcgmi") is None:
        report.skip("dcgm", "dcgmi is not installed")
        return
    code, said = call(["dcgmi", "diag", "-r", "3"], DCGM_S)
    failed = [" ".join(line.replace("|", " ").split()) for line in said.splitlines() if re.search(r"\bFail\b", line)]
    if failed:
        report.add("dcgm", passed=False, note="; ".join(failed)[:500])
    elif code == 0:
        report.add("dcgm", passed=True)
    else:
        report.skip("dcgm", "dcgmi diag did not run: " + " ".join(said.split())[-300:])


# -------------------------------------------------------------------------------------------------------------- network


def try_network(report: Report, given: argparse.Namespace) -> None:
    """Send and receive in rounds: in each a machine has one partner at most, and both leave it together, or by its end."""
    began, mine = time.monotonic(), [pair for pair in given.pairs if given.host in pair[1:3]]
    ports = find_ports(report) if shutil.which("ib_write_bw") else []
    if not ports:
        reason = (
            "no port of InfiniBand or RoCE is up" if shutil.which("ib_write_bw") else "ib_write_bw is not installed"
        )
        report.skip("ib_write_bw", reason + ": data were sent over TCP, which the processor may slow")
    for number, server, _client, in_round in mine:
        until, base = began + (in_round + 1) * ROUND_S, FIRST_PORT + PORTS_A_PAIR * number
        if given.host == server:
            (serve_ib if ports else serve_tcp)(base, ports, until)
        else:
            (send_ib if ports else send_tcp)(report, server, base, ports, until)


def find_ports(report: Report) -> List[str]:
    """List the network cards for RDMA whose first port is up; one that is down is a finding."""
    found = []
    for folder in sorted(glob.glob(os.path.join(INFINIBAND, "*")))[:PORTS_A_PAIR]:
        name = os.path.basename(folder)
        state = _read(os.path.join(folder, "ports", "1", "state"))
        if "ACTIVE" in state:
            found.append(name)
        else:
            report.add("port", name, passed=False, note="port 1 is " + (state.partition(":")[2].strip() or "unknown"))
    return found


def serve_ib(base: int, ports: List[str], until: float) -> None:
    """Wait on every port for the partner, which asks for one after the other."""
    running = []
    for n, port in enumerate(ports):
        command = ["ib_write_bw", "-d", port, "-p", str(base + n), "-D", str(SEND_S), "-b", "-F", "--report_gbits"]
        running.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(0.1)
    for process in running:
        stop(process)


def send_ib(report: Report, server: str, base: int, ports: List[str], until: float) -> None:
    """Write to the partner over every port, again until it is there."""
    for n, port in enumerate(ports):
        command = [
            "ib_write_bw",
            "-d",
            port,
            "-p",
            str(base + n),
            "-D",
            str(SEND_S),
            "-b",
            "-F",
            "--report_gbits",
            server,
        ]
        last = until - 1 if n == 0 else min(until - 1, time.monotonic() + PORT_S)
        said = "the round was over"
        while time.monotonic() < last:
            code, said = call(command, max(1.0, min(PORT_S, last - time.monotonic())))
            found = _read_bandwidth(said) if code == 0 else None
            if found is not None:
                report.add("network", "{} {}".format(server, port), found)
                break
            time.sleep(1)
        else:
            report.skip("network", "no answer from {} on {}: {}".format(server, port, " ".join(said.split())[-200:]))


def _read_bandwidth(said: str) -> Optional[float]:
    """Read the average in Gb/s from the table of ib_write_bw; None where there is none."""
    rows = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+", said, re.MULTILINE)
    return float(rows[-1]) if rows else None


def serve_tcp(base: int, _ports: List[str], until: float) -> None:
    """Receive from the partner until it has sent all."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", base))
        except OSError:
            return
        listener.listen(1)
        listener.settimeout(max(0.1, until - time.monotonic()))
        try:
            sender, _ = listener.accept()
        except OSError:
            return
        with sender:
            sender.settimeout(SEND_S + 5)
            room = bytearray(4 * MIB)
            try:
                while sender.recv_into(room):
                    pass
            except OSError:
                return


def send_tcp(report: Report, server: str, base: int, _ports: List[str], until: float) -> None:
    """Send to the partner for some seconds, once it is there."""
    said = "the round was over"
    while time.monotonic() < until - 1:
        try:
            with socket.create_connection((server, base), timeout=5) as partner:
                partner.settimeout(SEND_S + 5)
                data, sent, began = bytes(4 * MIB), 0, time.monotonic()
                while time.monotonic() - began < SEND_S:
                    sent += partner.send(data)
                report.add("network", server + " TCP", 8e-9 * sent / (time.monotonic() - began))
                return
        except OSError as error:
            said = str(error)
            time.sleep(0.5)
    report.skip("network", "no answer from {}: {}".format(server, said))


# -------------------------------------------------------------------------------------------------------------- machine


def try_cpu(report: Report, seconds: float) -> None:
    """See what others take of the processor while this does nothing; then how fast one core is."""
    before, began = _read_stat(), time.monotonic()
    waiting = []  # type: List[int]
    while time.monotonic() - began < min(10.0, seconds):
        time.sleep(0.5)
        waiting += _read_running()
    after, cores = _read_stat(), float(os.cpu_count() or 1)
    if before and after and sum(after) > sum(before):
        report.add("steal", "", (after[7] - before[7]) / (sum(after) - sum(before)))
    if waiting:
        report.add("run-queue", "", sorted(waiting)[len(waiting) // 2] / cores)
    rates = []
    for _ in range(5):
        at, total = time.perf_counter(), 0
        for n in range(1000000):
            total += n
        rates.append(1.0 / (time.perf_counter() - at))
    report.add("cpu", "", sorted(rates)[2])


def _read_stat() -> Optional[List[int]]:
    """Read the ticks of all cores: user, nice, system, idle, iowait, irq, softirq, steal."""
    parts = _read("/proc/stat").split("\n", 1)[0].split()[1:9]
    return [int(part) for part in parts] if len(parts) == 8 else None


def _read_running() -> List[int]:
    """Count the tasks that want a core now, without this one; nothing where the kernel does not say."""
    found = re.search(r"^procs_running (\d+)", _read("/proc/stat"), re.MULTILINE)
    return [] if found is None else [max(0, int(found.group(1)) - 1)]


def try_memory(report: Report) -> None:
    """Copy in main memory, with as many threads as a job has readers."""
    source, size = bytearray(64 * MIB), 64 * MIB
    rates = []
    targets = [bytearray(size) for _ in range(min(4, os.cpu_count() or 1))]

    def copy(target: bytearray) -> None:
        for _ in range(4):
            target[:] = source

    for _ in range(5):
        threads = [threading.Thread(target=copy, args=(target,)) for target in targets]
        at = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(len(targets) * 4 * 2 * size / 1e9 / (time.perf_counter() - at))
    report.add("memory", "", sorted(rates)[2])


def try_disk(report: Report) -> None:
    """Write a file to the folder for temporary files, to the disk, and delete it."""
    folder = tempfile.gettempdir()
    try:
        room = os.statvfs(folder)
        if room.f_bavail * room.f_frsize < 4 * DISK_BYTES:
            report.skip("disk", "{} has less than 1 GiB free".format(folder))
            return
        handle, path = tempfile.mkstemp(prefix="diagnose-confirm-")
        try:
            data, at, until = os.urandom(4 * MIB), time.perf_counter(), time.monotonic() + 60
            written = 0
            while written < DISK_BYTES and time.monotonic() < until:
                written += os.write(handle, data)
            os.fsync(handle)
            report.add("disk", folder, written / 1e6 / (time.perf_counter() - at))
        finally:
            os.close(handle)
            os.unlink(path)
    except OSError as error:
        report.skip("disk", "{}: {}".format(folder, error))


def try_data(report: Report, folder: str) -> None:
    """Read files of the job's data, which nobody may have read before on this machine, and change none."""
    total, at, until = 0, time.perf_counter(), time.monotonic() + 30
    for path in _list_files(folder, 1000):
        if total >= DATA_BYTES or time.monotonic() > until:
            break
        try:
            with open(path, "rb", buffering=0) as file:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read from storage, not from memory
                while total < DATA_BYTES and time.monotonic() < until:
                    part = file.read(4 * MIB)
                    if not part:
                        break
                    total += len(part)
        except OSError as error:
            report.skip("data", "{}: {}".format(path, error))
            return
    if total < 16 * MIB:
        report.skip("data", "{} has less than 16 MiB to read here".format(folder))
    else:
        report.add("data", folder, total / 1e6 / (time.perf_counter() - at))


def _list_files(folder: str, most: int) -> List[str]:
    """List files of a folder and those in it, in an order that is the same on every machine."""
    found = []  # type: List[str]
    for place, folders, files in os.walk(folder):
        folders.sort()
        found += [os.path.join(place, name) for name in sorted(files)]
        if len(found) >= most:
            break
    return [path for path in found if os.path.isfile(path)][:most]


def _read(path: str) -> str:
    """Read a small file; empty where it cannot be."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


if __name__ == "__main__":
    main()
