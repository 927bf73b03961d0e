"""Record one real small training job from its specification: `python -m tests.recorded.make SPEC.json NAME OUT.parquet`.

Enters: a file of specifications by name, as `truth.json` has them (there below `made`). Leaves: the rows of all ranks in one file.

Computes are real mathematics stretched by sleep to several times its CPU time, so that eight processes fit on two cores: the sleep
stands for an accelerator, and is what `slow` lengthens. With root each host is a network namespace with a card of its own.
Faults are lists by kind,

slow      accelerators of `ranks` take `x` times as long; `dir` f or b; `ramp`, `saw`: steps up, and back; `turns`: steps each
noise     a forward or backward of a microbatch, by chance `chance`, takes up to twice `x` longer
pace      the same of all ranks together: curricula, batches that grow
quota     `share` of a core for each of `ranks`
burner    `n` busy processes on `core`; `pin` of the job puts ranks there
stop      SIGSTOP of `ranks` for `s` seconds, up to `after` seconds after a step's begin
nic       `rate` of the card of `host`, both ways, or `way` out or in
load      reading for `ranks` takes `s` seconds and unpacks `mb`; where `worker` is given, in that one of the loader alone
gc        `live` cyclic objects and `alloc` more a microbatch, of which `keep` microbatches are kept; Python's `threshold`
collect   gc.collect() on `ranks` between steps, and no collections else; `live`
save      torch.save of `mb`, fsync, and `s` seconds; of `ranks`; `beside` the training,
          of which `busy` seconds hold the interpreter; `raw`: not by torch.save; `grow` a time
evaluate  `n` forwards between steps; `grow` a time
log       norms of parameters over all ranks, and `s` seconds
opt       `s` seconds more in the optimizer of `ranks`
docs      documents, lognormal with `mu` and `sigma`: `n` a microbatch or as many as fill `tokens`; `quad`: share of their
          squares in what they cost; `told` to the recorder; `sort`: the longest microbatch of a step first
experts   microbatches take exp(`x` times normal) as long on all ranks of a stage, drawn anew after `hold` steps

each in the steps that `from`, `to`, `at`, `every` with `width` (the last ones of each period), and `p` (by chance) leave.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed import pipelining

#: What a specification may leave out: `units` are the layers of each chunk of the model, or a list; `embed` and `head`, what the
#: first and the last have besides; `unit_s`, what a layer's forward sleeps; `counts`, microbatches of steps in turns (no pipeline).
DEFAULTS = json.loads("""
    {"dp": 1, "pp": 1, "kind": "ddp", "schedule": "1f1b", "chunks": 1, "micro": 4, "mbs": 2, "seq": 32, "w": 32, "vocab": 512,
     "steps": 40, "units": 4, "unit_s": 0.004, "embed": 0, "head": 0, "per_host": 1, "host_of": null, "workers": 0, "faults": {},
     "pin": {}, "restart": null, "rate": "2gbit", "counts": null}
""")
FAULTS = json.loads("""
    ["slow", "pace", "quota", "burner", "stop", "nic", "load", "gc", "collect", "save", "evaluate", "log", "opt", "docs",
     "experts", "noise"]
""")
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped-bfs": pipelining.ScheduleLoopedBFS,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
}
CGROUP, PERIOD_US = Path("/sys/fs/cgroup/cpu"), 50_000
#: Longest document, and microbatches drawn to know what one costs on average.
CONTEXT, N_DRAWN = 1024, 2000


def parse(arguments=None):
    """Read the command line, and the specification with what it leaves out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--twin", action="store_true", help="leave out the faults: how long would steps take?")
    options = parser.parse_args(arguments)
    said = json.loads(options.spec.read_text())
    if options.name not in said:
        parser.error(f"{options.spec} has no {options.name}")
    spec = DEFAULTS | said[options.name].get("made", said[options.name]) | ({"faults": {}} if options.twin else {})
    for unknown in (spec.keys() - DEFAULTS.keys()) | (spec["faults"].keys() - {*FAULTS}):
        parser.error(f"{options.name} has {unknown}; expected {', '.join((*DEFAULTS, *FAULTS))}")
    for kind in (kind for kind, several in spec["faults"].items() if not isinstance(several, list)):
        parser.error(f"{kind} of {options.name} is no list of faults")
    if os.geteuid() and {"quota", "nic"} & spec["faults"].keys():
        parser.error("quota and nic need root")
    return spec, options


def is_on(fault, step, salt=0):
    """Say whether a fault is there in a step."""
    start, every = fault.get("from", 0), fault.get("every", 1)
    if not start <= step < fault.get("to", math.inf) or step not in fault.get("at", [step]):
        return False
    chance = random.Random(f"{salt} {step}").random()
    return (step - start) % every >= every - fault.get("width", 1) and chance < fault.get("p", 1.0)


def main(arguments=None):
    """Record a job, from each of its starts to its next, and write the rows of all ranks into one file."""
    spec, options = parse(arguments)
    ends = [spec["restart"]["at"], spec["steps"]] if spec["restart"] else [spec["steps"]]
    n = spec["dp"] * spec["pp"]
    spec["host_of"] = spec["host_of"] or [rank // spec["per_host"] for rank in range(n)]
    with tempfile.TemporaryDirectory() as folder, network(spec) as hosts:
        for first, end in zip([0, *ends], ends, strict=False):
            steps = torch.full((n,), -1).share_memory_()
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            given = spec, Path(folder), hosts, port, steps, range(first, end)
            job = torch.multiprocessing.start_processes(run_rank, args=given, nprocs=n, join=False, start_method="fork")
            with Hands(spec, hosts, job.pids(), steps):
                while not job.join():
                    pass
        merge(sorted(Path(folder).glob("start-*/rank-*.parquet")), options.name, options.out)


def merge(paths, name, out):
    """Put the files of all ranks into one."""
    files = [pq.read_table(path) for path in paths]
    said = [json.loads(file.schema.metadata[b"diagnose.job"]) for file in files]
    job = said[0] | said[-1] | {"job_id": name, "name": name}
    job |= {key: any(one.get(key) for one in said) for key in ("saves", "reads_input")}  # one rank that does is enough
    rows = pa.concat_tables(files, promote_options="permissive")
    out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.replace_schema_metadata({"diagnose.job": json.dumps(job)}), out, compression="zstd")
    begins = rows.select(["step", "start_ts"]).to_pandas().groupby("step")["start_ts"].min().diff()
    print(
        f"{name}: {rows.num_rows} rows, steps of {begins[3:].mean():.3f} s, median {begins[3:].median():.3f} s",
        flush=True,
    )


def run(command):
    """Run a program that must not fail."""
    subprocess.run(command.split(), check=True, capture_output=True)


def limit(host, rate, ways=("out", "in")):
    """Give both ends of a host's card a rate, or one."""
    ends = {"out": (f"-n {host}", "eth0"), "in": ("", f"v{host}")}
    for at, device in (ends[way] for way in ways):
        run(f"tc {at} qdisc replace dev {device} root tbf rate {rate} burst 16kb latency 1s")


@contextlib.contextmanager
def network(spec):
    """Make a network namespace for each host, on one switch; none without root."""
    switch = f"dg{os.getpid()}"
    hosts = [] if os.geteuid() else [f"{switch}h{host}" for host in range(max(spec["host_of"]) + 1)]
    try:
        if hosts:
            run(f"ip link add {switch} up type bridge")
        for i, host in enumerate(hosts):
            run(f"ip netns add {host}")
            run(f"ip link add v{host} up master {switch} type veth peer name eth0 netns {host}")
            run(f"ip -n {host} address add 10.77.0.{i + 1}/24 dev eth0")
            run(f"ip -n {host} link set eth0 up")
            run(f"ip -n {host} link set lo up")
            limit(host, spec["rate"])
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", switch], check=False, capture_output=True)


def enter(host, number):
    """Move this process to a host of its own: a network, and a name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{host}").open() as file:
        if libc.setns(file.fileno(), 0) or libc.unshare(0x04000000):
            raise OSError(ctypes.get_errno(), f"cannot enter {host}")
    socket.sethostname(f"host-{number}")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


class Hands(threading.Thread):
    """Does to running processes and cards what the specification says, from outside, as the steps go by."""

    def __init__(self, spec, hosts, pids, steps):
        super().__init__()
        self.spec, self.hosts, self.pids, self.steps = spec, hosts, pids, steps
        self.done, self.stopped, self.is_so = threading.Event(), [], {}
        self.groups, self.burners, self.error = {}, [], None

    def of(self, kind):
        """Give the faults of a kind."""
        return self.spec["faults"].get(kind, [])

    def __enter__(self):
        for rank in {rank for fault in self.of("quota") for rank in fault["ranks"]}:
            group = self.groups[rank] = CGROUP / f"dg{os.getpid()}-{rank}"
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cgroup.procs").write_text(str(self.pids[rank]))
        for fault in self.of("burner"):
            command = ["taskset", "-c", str(fault["core"]), "sh", "-c", "while :; do :; done"]
            self.burners.append([subprocess.Popen(command) for _ in range(fault.get("n", 1))])
        self.start()

    def __exit__(self, *_error):
        self.done.set()
        self.join()
        for burner in (one for several in self.burners for one in several):
            burner.kill()
            burner.wait()
        for group in self.groups.values():
            group.rmdir()
        if self.error:
            raise self.error

    def run(self):
        """Follow the steps of the job."""
        last = -2
        try:
            while not self.done.wait(0.004):
                self._stop_and_continue()
                if (step := int(self.steps.max())) != last:
                    last = step
                    self._begin_step(step)
        except (OSError, subprocess.CalledProcessError) as error:
            self.error = error

    def _begin_step(self, step):
        rates = {(host, way): self.spec["rate"] for host in range(len(self.hosts)) for way in ("out", "in")}
        for fault in (fault for fault in self.of("nic") if is_on(fault, step)):
            rates |= {
                (fault["host"], way): fault["rate"] for way in ([fault["way"]] if "way" in fault else ("out", "in"))
            }
        shares = dict.fromkeys(self.groups, -1)
        shares |= {rank: int(f["share"] * PERIOD_US) for f in self.of("quota") if is_on(f, step) for rank in f["ranks"]}
        for (host, way), rate in rates.items():
            if self.is_so.get((host, way), self.spec["rate"]) != rate:
                limit(self.hosts[host], rate, [way])
            self.is_so[host, way] = rate
        for rank, share in shares.items():
            if self.is_so.get(("share", rank), -1) != share:
                (self.groups[rank] / "cpu.cfs_quota_us").write_text(str(share))
            self.is_so["share", rank] = share
        for fault, several in zip(self.of("burner"), self.burners, strict=True):
            for burner in several:
                burner.send_signal(signal.SIGCONT if is_on(fault, step) else signal.SIGSTOP)
        for fault in self.of("stop"):
            for rank in (rank for rank in fault["ranks"] if is_on(fault, step, rank)):
                since = time.monotonic() + random.Random(f"{rank} {step}").random() * fault.get("after", 0.2)
                self.stopped.append((self.pids[rank], since, since + fault["s"]))

    def _stop_and_continue(self):
        now = time.monotonic()
        for pid, since, until in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if now >= until else signal.SIGSTOP if now >= since else 0)
        self.stopped = [one for one in self.stopped if now < one[2]]


class _Stretch(torch.autograd.Function):
    """Passes its input on, and the gradient of its output back, after a while."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.seconds = backward_s
        time.sleep(forward_s)
        return x.clone()  # a view cannot be detached in place, as zero-bubble schedules do

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None, None


class Layer(nn.TransformerEncoderLayer):
    """A layer that takes its time."""

    def __init__(self, job):
        super().__init__(job.spec["w"], 1, 4 * job.spec["w"], dropout=0.0, batch_first=True, norm_first=True)
        self.job = job

    def forward(self, x):
        """Attend and transform."""
        return _Stretch.apply(super().forward(x), *self.job.seconds())


class Chunk(nn.Module):
    """A part of the model: layers, with the embedding before or the head after them."""

    def __init__(self, job, place):
        super().__init__()
        spec = job.spec
        n_layers = spec["units"][place] if isinstance(spec["units"], list) else spec["units"]
        is_last = place == spec["pp"] * spec["chunks"] - 1
        self.job, self.place, self.extra = job, place, spec["embed"] if place == 0 else 0
        self.embedding = nn.Embedding(spec["vocab"], spec["w"]) if place == 0 else nn.Identity()
        self.layers = nn.ModuleList(Layer(job) for _ in range(n_layers))
        self.head = nn.Linear(spec["w"], 64) if is_last else nn.Identity()

    def forward(self, x):
        """Work on one microbatch."""
        self.job.begin_microbatch(self)
        x = self.embedding(x)
        if self.extra:
            x = _Stretch.apply(x, *self.job.seconds(self.extra))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Job:
    """What a rank knows of its job: how long its layers take, and what it does beside them."""

    def __init__(self, rank, spec, folder):
        self.rank, self.spec, self.faults, self.folder = rank, spec, spec["faults"], folder
        self.stage, self.dp = divmod(rank, spec["dp"])
        self.step, self.factor, self.noise, self.counts, self.times = 0, 1.0, (1.0, 1.0), {}, {}
        self.kept, self.beside, self.costs, self.recorder = [], [], [], None
        self.heap = [_cycle() for fault in self.mine("gc") + self.mine("collect") for _ in range(fault["live"])]
        for fault in self.mine("gc"):
            gc.set_threshold(*fault["threshold"])
        if "collect" in self.faults:
            gc.disable()

    def mine(self, kind, *, now=False):
        """Give the faults of a kind that this rank has, or has in this step."""
        of_rank = [fault for fault in self.faults.get(kind, []) if self.rank in fault.get("ranks", [self.rank])]
        return [fault for fault in of_rank if is_on(fault, self.step, self.rank)] if now else of_rank

    def begin_step(self, step):
        """Draw what the microbatches of a step hold."""
        self.step, self.counts, self.costs = step, {}, [1.0] * self.spec["micro"]
        for fault in self.mine("docs", now=True):
            drawn = [draw(fault, f"{self.dp} {step} {i}") for i in range(self.spec["micro"])]
            drawn.sort(key=lambda lengths: -cost(fault, lengths) if fault.get("sort") else 0)
            self.costs = [cost(fault, lengths) / mean_cost(json.dumps(fault)) for lengths in drawn]
            for i, lengths in enumerate(drawn if fault.get("told") else []):
                self.recorder.microbatch(i, doc_lengths=lengths)

    def begin_microbatch(self, chunk):
        """Know which microbatch a part of the model works on, and allocate what it allocates."""
        self.factor, self.noise = 1.0, (1.0, 1.0)
        if not torch.is_grad_enabled():
            return
        i = self.counts[chunk] = self.counts.get(chunk, -1) + 1
        self.factor = self.costs[i % len(self.costs)]
        for fault in self.mine("experts", now=True):
            salt = f"{self.stage} {i % self.spec['micro']} {self.step // fault.get('hold', 1)}"
            self.factor *= math.exp(fault["x"] * random.Random(salt).gauss(0, 1))
        for fault in self.mine("noise", now=True):
            rng = random.Random(f"{self.rank} {self.step} {chunk.place} {i}")
            self.noise = [1 + (rng.random() < fault["chance"]) * rng.uniform(0, 2 * fault["x"]) for _ in "fb"]
        for fault in self.mine("gc", now=True):
            self.kept.append([_cycle() for _ in range(round(fault["alloc"] * (1 + 0.13 * self.rank)))])
            del self.kept[: -fault.get("keep", 12)]

    def seconds(self, units=1):
        """Say how long a layer's forward and backward sleep."""
        forward, backward = (self.factor * noise for noise in self.noise)
        for fault in self.mine("slow", now=True) + [
            fault for fault in self.faults.get("pace", []) if is_on(fault, self.step)
        ]:
            since, gain = self.step - fault.get("from", 0), fault["x"] - 1
            if "turns" in fault and fault["ranks"][since // fault["turns"] % len(fault["ranks"])] != self.rank:
                continue
            gain *= min((since + 1) / fault.get("ramp", 1), 1)
            gain *= since % fault["saw"] / (fault["saw"] - 1) if "saw" in fault else 1
            forward *= 1 + gain * (fault.get("dir") != "b")
            backward *= 1 + gain * (fault.get("dir") != "f")
        return self.spec["unit_s"] * units * forward, 2 * self.spec["unit_s"] * units * backward

    def loss(self, output, target):
        """Predict, after as long as the head of a large vocabulary takes."""
        if self.spec["head"]:
            output = _Stretch.apply(output, *self.seconds(self.spec["head"]))
        return nn.functional.cross_entropy(output.flatten(0, 1), (target % 64).flatten())

    def grown(self, fault):
        """Say by how much a fault has grown with the times that it was there."""
        self.times[id(fault)] = self.times.get(id(fault), -1) + 1
        return 1 + fault.get("grow", 0.0) * self.times[id(fault)]

    def save(self):
        """Write the state to disk."""
        for fault in self.mine("save", now=True):
            write = functools.partial(self._write, fault, self.grown(fault))
            if fault.get("beside"):
                self.beside.append(threading.Thread(target=write))
                self.beside[-1].start()
            else:
                with contextlib.nullcontext() if fault.get("raw") else self.recorder.operation("checkpoint"):
                    write()

    def _write(self, fault, grown):
        state, begun = torch.zeros(int(fault["mb"] * grown * 2**18)), time.monotonic()
        while time.monotonic() < begun + fault.get("busy", 0.0):
            pass
        with (self.folder / f"state-{self.rank}").open("wb") as file:
            file.write(memoryview(state.numpy())) if fault.get("raw") else torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(fault.get("s", 0.0) * grown)

    def end_step(self, parameters, evaluate):
        """Do what is done between steps: collections, evaluations, logs."""
        for _ in self.mine("collect", now=True):
            gc.collect()
        for fault in self.mine("evaluate", now=True):
            for _ in range(round(fault["n"] * self.grown(fault))):
                evaluate()
        for fault in self.mine("log", now=True):
            with self.recorder.operation("log"):
                dist.all_reduce(sum(p.detach().norm() for p in parameters))
                time.sleep(fault.get("s", 0.0))


def _cycle():
    one = []
    one.append(one)
    return one


def draw(fault, salt):
    """Draw the documents of a microbatch: so many, or as many as fill it."""
    rng, room, lengths = random.Random(salt), fault.get("tokens", math.inf), []
    while room > 0 and (room < math.inf or len(lengths) < fault.get("n", 4)):
        lengths.append(min(max(int(rng.lognormvariate(fault.get("mu", 5.5), fault["sigma"])), 8), CONTEXT, room))
        room -= lengths[-1]
    return lengths


def cost(fault, lengths):
    """Say what documents cost: their tokens, and attention within each."""
    return sum(n + fault.get("quad", 0.0) * n * n / CONTEXT for n in lengths)


@functools.cache
def mean_cost(fault):
    """Say what a microbatch costs on average."""
    fault = json.loads(fault)
    return sum(cost(fault, draw(fault, f"mean {i}")) for i in range(N_DRAWN)) / N_DRAWN


class Batches(torch.utils.data.Dataset):
    """A batch a step, compressed on disk."""

    def __init__(self, job):
        self.job, self.path = job, job.folder / f"batch-{job.rank}"
        self.path.write_bytes(zlib.compress(bytes(2**20)))

    def __len__(self):
        return self.job.spec["steps"]

    def __getitem__(self, i):
        spec, times, worker = self.job.spec, 1, torch.utils.data.get_worker_info()
        for fault in self.job.mine("load"):
            if is_on(fault, i, self.job.rank) and ("worker" not in fault or (worker and worker.id == fault["worker"])):
                times += fault.get("mb", 0)
                time.sleep(fault.get("s", 0.0))
        for _ in range(times):
            zlib.decompress(self.path.read_bytes())
        rng = torch.Generator().manual_seed(i)
        return torch.randint(spec["vocab"], (spec["micro"] * spec["mbs"], spec["seq"]), generator=rng)


class Sgd(torch.optim.SGD):
    """An optimizer that takes its time where the job says so."""

    def __init__(self, parameters, job):
        self.job = job
        super().__init__(parameters, lr=1e-3)

    def step(self, closure=None):
        """Update."""
        time.sleep(sum(fault["s"] for fault in self.job.mine("opt", now=True)))
        return super().step(closure)


def run_rank(rank, spec, folder, hosts, port, steps, part):
    """Train on one rank."""
    from diagnose.record import Recorder

    if hosts:
        enter(hosts[spec["host_of"][rank]], spec["host_of"][rank])
    if str(rank) in spec["pin"]:
        os.sched_setaffinity(0, {spec["pin"][str(rank)]})
    os.environ["GROUP_WORLD_SIZE"] = str(max(spec["host_of"]) + 1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    address = f"tcp://{'10.77.0.1' if hosts else '127.0.0.1'}:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=spec["dp"] * spec["pp"])
    job = Job(rank, spec, folder)
    time.sleep(spec["restart"]["s"] if part.start else 0)
    train, parameters, evaluate = (pipeline if spec["kind"] == "pipe" else data_parallel)(job)
    optimizer = Sgd(parameters, job)
    batches = torch.utils.data.Subset(Batches(job), part)
    reads = job.stage in (0, spec["pp"] - 1)
    loader = iter(torch.utils.data.DataLoader(batches, batch_size=None, num_workers=spec["workers"])) if reads else None
    with Recorder(folder, sample=1.0) as job.recorder:
        for step in part:
            steps[rank] = step
            with job.recorder.step(step):
                job.begin_step(step)
                train(next(loader) if loader else None)
                clip(parameters)
                optimizer.step()
                optimizer.zero_grad()
                job.save()
            job.end_step(parameters, evaluate)
        for thread in job.beside:
            thread.join()
    dist.barrier()
    dist.destroy_process_group()


def clip(parameters):
    """Clip gradients by their norm over all stages and replicas: it closes the step on every rank at once."""
    norm = torch.nn.utils.get_total_norm([getattr(p.grad, "_local_tensor", p.grad) for p in parameters]) ** 2
    dist.all_reduce(norm)
    torch.nn.utils.clip_grads_with_norm_(parameters, 10.0, norm**0.5)


def data_parallel(job):
    """Make a model of DDP or FSDP2; gives what trains a step, its parameters, and what evaluates."""
    spec, model = job.spec, Chunk(job, 0)
    if spec["kind"] == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (spec["dp"],))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(model, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(model)

    def train(batch):
        n = spec["counts"][job.step % len(spec["counts"])] if spec["counts"] else spec["micro"]
        for i, tokens in enumerate(batch.split(spec["mbs"])[:n]):
            model.require_backward_grad_sync = i == n - 1
            job.loss(model(tokens), tokens).backward()

    def evaluate():
        model.eval()
        with torch.no_grad():
            model(torch.zeros(spec["mbs"], spec["seq"], dtype=torch.int64))
        model.train()

    return train, list(model.parameters()), evaluate


def pipeline(job):
    """Make the stages of a pipeline; gives what trains a step, its parameters, and what evaluates."""
    spec = job.spec
    dp, pp, n = spec["dp"], spec["pp"], spec["pp"] * spec["chunks"]
    pipes = [dist.new_group([stage * dp + replica for stage in range(pp)]) for replica in range(dp)]
    peers = [dist.new_group([stage * dp + replica for replica in range(dp)]) for stage in range(pp)]
    chunks = {place: Chunk(job, place) for place in range(job.stage, n, pp)}
    stages = [
        pipelining.PipelineStage(chunk, at, n, torch.device("cpu"), group=pipes[job.dp]) for at, chunk in chunks.items()
    ]
    of_stages = stages if spec["schedule"] in ("interleaved", "looped-bfs", "zero-bubble") else stages[0]
    schedule = SCHEDULES[spec["schedule"]](of_stages, n_microbatches=spec["micro"], loss_fn=job.loss)
    parameters = [p for chunk in chunks.values() for p in chunk.parameters()]

    def feed(run_schedule, batch):
        run_schedule(*([batch] if job.stage == 0 else []), **({"target": batch} if job.stage == pp - 1 else {}))

    def train(batch):
        feed(schedule.step, batch)
        if dp > 1:
            flat = torch.cat([p.grad.flatten() for p in parameters])
            dist.all_reduce(flat, group=peers[job.stage])
            for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad.copy_(grad.view_as(p))

    def evaluate():
        feed(schedule.eval, torch.zeros(spec["micro"] * spec["mbs"], spec["seq"], dtype=torch.int64))

    return train, parameters, evaluate


if __name__ == "__main__":
    main(sys.argv[1:])
