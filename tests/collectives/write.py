"""Write the dumps of a simulated job as PyTorch and NCCL write them.

Sources: pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp; NVIDIA/nccl, plugins/profiler/inspector.
"""

import gzip
import json
import os
import pickle

import numpy as np

from tests.collectives.simulate import GPUS_A_HOST

START_S = 1_790_000_000.0
TIMEOUT_MS = 600_000
#: Seconds between two dumps of the inspector.
INTERVAL_S = 0.5
DESCRIPTIONS = {
    "world": "default_pg",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
}
INSPECTED = {"_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter", "all_reduce": "AllReduce"}


def draw_clocks(run, rng, spread_s):
    """Draw how far each host's clock is off."""
    n_hosts = -(-run.shape.world // GPUS_A_HOST)
    return np.repeat(rng.normal(0, spread_s, n_hosts), GPUS_A_HOST)[: run.shape.world]


def frames(op, line):
    """Give the stack of a call, the innermost frame first."""
    library = "/usr/lib/python3/site-packages/torch/distributed/"
    return [
        {"name": op, "filename": library + "distributed_c10d.py", "line": 3000},
        {"name": "wrapper", "filename": library + "c10d_logger.py", "line": 83},
        {"name": "train_step", "filename": "/job/train.py", "line": line},
        {"name": "<module>", "filename": "/job/train.py", "line": 400},
    ]


LINES = {"world": 88, "tp": 131, "dp": 212, "pp": 57}


def dump_rank(run, rank, *, cut_s, clock_s, ring, timing, version, rng, host_ahead=False, poll_s=0.1):
    """Make the dump of one rank at a true time: a dictionary."""
    names = {group: str(i) for i, group in enumerate(run.members)}
    entries = []
    own = [call for call in run.calls[rank] if call.arrive <= cut_s]
    stacks = {kind: frames("all_reduce", line) for kind, line in LINES.items()}
    step_end = 0.0
    record = op_id = 0
    batches = {}
    for call in own:
        batches.setdefault((call.group, call.batch), []).append(call) if call.batch else None
    called = 0.0
    for call in own:
        called = call.arrive
        if host_ahead:  # the host waits for the device at the end of a step alone
            called = min(call.arrive, step_end + 2e-4 * (record - op_id))
            if call.group == ("world",) and call.op == "all_reduce":
                step_end, op_id = call.end, record
        over = bool(np.isfinite(call.end) and call.end <= cut_s)
        found = int((START_S + clock_s + call.end + rng.uniform(0, poll_s)) * 1e9) if over else None
        # Only a kernel that everybody's wait is in has begun: those that were put behind it have not.
        state = "completed" if over else ("started" if timing and not call.ahead else "scheduled")
        entry = {
            "frames": stacks[call.group[0]],
            "record_id": record,
            "pg_id": int(names[call.group]),
            "process_group": (names[call.group], DESCRIPTIONS[call.group[0]]),
            "collective_seq_id": call.number,
            "p2p_seq_id": call.batch,
            "op_id": record + 1,
            "profiling_name": f"nccl:{call.op}",
            "time_created_ns": int((START_S + clock_s + called) * 1e9),
            "input_sizes": [[call.size]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[call.size]],
            "output_dtypes": ["BFloat16"],
            "state": state,
            "time_discovered_started_ns": found if timing else None,
            "time_discovered_completed_ns": found,
            "retired": over,
            "timeout_ms": TIMEOUT_MS,
            "is_p2p": call.batch > 0,
            "thread_name": "python",
            "thread_id": "139000",
        }
        if timing and over:
            entry["duration_ms"] = float(call.end - call.arrive) * 1e3
        if call.batch:
            ranks = run.members[call.group]
            mine, other = ranks.index(rank), ranks.index(call.peer)
            arrow = f"{mine}->{other}" if call.op == "send" else f"{mine}<-{other}"
            entry["profiling_name"] = f"nccl:{call.op} {arrow}"
            end = {
                **entry,
                "profiling_name": "nccl:coalesced",
                "record_id": record + 1,
                "input_sizes": [],
                "output_sizes": [],
            }
            entry |= {
                "state": "scheduled",
                "retired": False,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
            }
            entry.pop("duration_ms", None)
            entries.append(entry)
            if call is batches[call.group, call.batch][-1]:
                entries.append(end)
                record += 1
        else:
            entries.append(entry)
        record += 1
    for i, entry in enumerate(entries):
        entry["record_id"] = i
    mine = {group for group, ranks in run.members.items() if rank in ranks}
    return {
        "version": version,
        "comm_lib_version": "2.27.5",
        "pg_config": {
            names[group]: {"name": names[group], "desc": DESCRIPTIONS[group[0]], "ranks": str(run.members[group])}
            for group in mine
        },
        "pg_status": {},
        "entries": entries[-ring:],
    }


def to_json(dump):
    """Write a dump as `_dump_fr_trace_json` does: no frames, no None, numbers of `pg_status` as text."""
    entries = []
    for entry in dump["entries"]:
        plain = {key: value for key, value in entry.items() if key != "frames"}
        plain["process_group"] = list(plain["process_group"])
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            plain[key] = plain[key] or 0
        entries.append(plain)
    return json.dumps(dump | {"entries": entries}, separators=(",", ":"), sort_keys=True).encode()


def write_flight_recorder(
    run,
    folder,
    *,
    seed,
    spread_s=0.002,
    ring=2000,
    timing=False,
    cut_s=None,
    cut_spread_s=0.0,
    as_json=False,
    host_ahead=False,
    written=True,
    version="2.10",
):
    """Write a dump a rank; `written` sets the time of the files to when they were dumped."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    clocks = draw_clocks(run, rng, spread_s)
    for rank in range(run.shape.world):
        if run.fault.kind == "died" and rank == run.fault.rank:
            continue
        cut = np.inf if cut_s is None else cut_s + rng.uniform(0, cut_spread_s)
        dump = dump_rank(
            run,
            rank,
            cut_s=cut,
            clock_s=clocks[rank],
            ring=ring,
            timing=timing,
            version=version,
            rng=rng,
            host_ahead=host_ahead,
        )
        path = folder / f"nccl_trace_rank_{rank}{'.json' if as_json else ''}"
        path.write_bytes(to_json(dump) if as_json else pickle.dumps(dump, protocol=2))
        if written:
            last = max((call.arrive for calls in run.calls for call in calls), default=0.0)
            at = START_S + (cut if np.isfinite(cut) else last + TIMEOUT_MS / 1e3)
            os.utime(path, (at, at))
    return folder


def write_inspector(
    run,
    folder,
    *,
    seed,
    version="v4.0",
    has_p2p=False,
    verbose=False,
    packed=False,
):
    """Write a file a process."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    clocks = draw_clocks(run, rng, 0.002)
    ids = {group: f"0x{rng.integers(1 << 50):x}" for group in run.members}
    for rank in range(run.shape.world):
        host, pid = f"gpu-{rank // GPUS_A_HOST:03d}", 1000 + rank * 7 % 997
        lines = []
        over = [
            call
            for call in run.calls[rank]
            if np.isfinite(call.end) and call.size >= (1 if call.op == "all_reduce" else 4096)
        ]
        over = [call for call in over if (has_p2p or not call.batch) and call.op != "barrier"]
        waves = {}
        for call in over:
            waves.setdefault((int(call.end / INTERVAL_S), call.group), []).append(call)
        for (wave, group), calls in sorted(waves.items(), key=lambda item: (item[0][0], ids[item[0][1]])):
            header = {"id": ids[group], "rank": run.members[group].index(rank), "n_ranks": len(run.members[group])}
            header |= {"nnodes": 1}
            stamp = int((START_S + clocks[rank] + (wave + 1) * INTERVAL_S) * 1e6)
            metadata = {
                "inspector_output_format_version": version,
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": stamp,
                "hostname": host,
                "pid": pid,
            }
            if version == "v4.3":
                stats = {
                    "coll_records": sum(not c.batch for c in calls),
                    "p2p_records": sum(c.batch > 0 for c in calls),
                }
                lines.append({"header": header, "metadata": metadata, "dump_stats": stats})
            for call in calls:
                key = "p2p" if call.batch else "coll"
                took = int((call.end - call.arrive) * 1e6)
                name = call.op.capitalize() if call.batch else INSPECTED.get(call.op, "Broadcast")
                perf = {key: name, f"{key}_sn": call.batch or call.number}
                if call.batch:
                    perf["p2p_peer"] = run.members[group].index(call.peer)
                perf |= {
                    f"{key}_msg_size_bytes": call.size * 2,
                    f"{key}_exec_time_us": took,
                    f"{key}_timing_source": "kernel_gpu",
                    f"{key}_algobw_gbs": 1.0,
                    f"{key}_busbw_gbs": 1.0,
                }
                if verbose:
                    start = int((START_S + clocks[rank] + call.arrive) * 1e6)
                    perf["event_trace_ts"] = {
                        f"{key}_start_ts": start,
                        f"{key}_stop_ts": start + 5,
                        "kernel_events": [
                            {
                                "channel_id": 0,
                                "kernel_start_ts": start,
                                "kernel_stop_ts": start + took,
                                "kernel_record_ts": 0,
                            }
                        ],
                    }
                body = {f"{key}_perf": perf}
                lines.append(body if version == "v4.3" else {"header": header, "metadata": metadata} | body)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        path = folder / f"{host}-pid{pid}.log{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)
    return folder
