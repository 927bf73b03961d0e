"""What faults and benign events do to single metrics of single machines.

Enters: faults, or names of events. Leaves: effects, and gaps in the samples.
"""

import dataclasses

import numpy as np

from diagnose.faults.spec import draw_log_uniform
from tests.clusters.kinds import MachineFault, Symptom
from tests.clusters.ranges import Benign
from tests.clusters.render import Effect, Gap, How, Ints

#: Machines of a rack.
_RACK = 8


def list_effects(rng: np.random.Generator, faults: tuple[MachineFault, ...]) -> tuple[list[Effect], list[Gap]]:
    """Say what faults do to single metrics; what courses say is not among them."""
    effects: list[Effect] = []
    gaps: list[Gap] = []
    for fault in faults:
        surge = draw_log_uniform(rng, 3e3, 6e4) * fault.strength
        leaks = float(rng.uniform(0.1, 0.5))
        link = (("gpu_pcie_generation", 1.0), ("gpu_pcie_width", 4.0))[int(rng.integers(2))]
        for symptom in fault.shows:
            shown = _show(symptom, fault, surge, link)
            effects += [dataclasses.replace(effect, hosts=(fault.host,)) for effect in shown]
        if "pfc" in fault.shows:
            from_s = fault.onset_s + fault.victims_s
            effects.append(
                Effect(metric="net_pfc_sent", hosts=fault.victims, how="add", value=surge * leaks, from_s=from_s)
            )
        if "vanishes" in fault.shows:
            gaps.append(Gap(host=fault.host, from_s=fault.onset_s))
        if "card-vanishes" in fault.shows:
            gaps.append(Gap(host=fault.host, from_s=fault.onset_s, card=fault.card or 0))
    return effects, gaps


def _show(symptom: Symptom, fault: MachineFault, surge: float, link: tuple[str, float]) -> list[Effect]:
    """List the effects of one symptom."""
    strength, slow = fault.strength, max(1.0 / fault.slowdown, 0.25)
    one = fault.card or 0

    def make(metric: str, how: How, value: float, card: int | None = None) -> Effect:
        return Effect(metric=metric, hosts=(), how=how, value=value, card=card, from_s=fault.onset_s)

    levels: dict[Symptom, list[Effect]] = {
        "pfc": [make("net_pfc_sent", "add", surge)],
        "net-slow": [make(f"net_{way}_bytes", "scale", 1.0 - 0.6 * strength) for way in ("sent", "received")],
        "nvlink-slow": [make("gpu_nvlink_bytes", "scale", 1.0 - 0.9 * strength, fault.card)],
        "cpu-busy": [
            make("cpu_used", "add", 0.15 + 0.5 * strength),
            make("run_queue", "add", 30.0 + 150.0 * strength),
        ],
    }
    marks: dict[Symptom, list[Effect]] = {
        "clock-low": [
            make("gpu_sm_clock_mhz", "scale", slow, fault.card),
            make("gpu_power_w", "scale", 0.3 + 0.7 * slow, fault.card),
        ],
        "hot": [dataclasses.replace(make("gpu_temperature_c", "add", 10.0 + 15.0 * strength, fault.card), ramp_s=60.0)],
        "ecc-count": [dataclasses.replace(make("gpu_ecc_uncorrected", "add", 0.2, one), until_s=fault.onset_s + 40.0)],
        "xid": [make("gpu_xid", "set", fault.xid, one)],
        "pcie-link": [make(link[0], "set", link[1], one)],
        "nvlink-errors": [make("gpu_nvlink_errors", "add", 50.0 * strength, one)],
        "symbol-errors": [make("net_symbol_errors", "add", 100.0 * strength)],
        "port-down": [make("net_up", "set", 0.0)],
    }
    shaped = [
        dataclasses.replace(effect, ramp_s=fault.ramp_s, period_s=fault.period_s) for effect in levels.get(symptom, ())
    ]
    return [*shaped, *marks.get(symptom, ())]


def list_benign(
    rng: np.random.Generator, benign: tuple[Benign, ...], roles: Ints, span_s: float, broken: set[int]
) -> tuple[list[Effect], list[Gap]]:
    """Say what benign events do to single metrics; on machines that did not break."""
    n = len(roles)
    sound = np.array([host for host in range(n) if host not in broken])
    rack = int(rng.integers(max(1, n // _RACK))) * _RACK
    in_rack = tuple(range(rack, min(rack + _RACK, n)))
    one = int(rng.choice(sound))
    from_s = float(rng.uniform(0.1, 0.7)) * span_s
    effects: list[Effect] = []
    gaps: list[Gap] = []
    for name in benign:
        match name:
            case "hot-rack":
                degrees = float(rng.uniform(5.0, 14.0))
                effects.append(
                    Effect(
                        metric="gpu_temperature_c", hosts=in_rack, how="add", value=degrees, from_s=from_s, ramp_s=240.0
                    )
                )
            case "service":
                since_s = from_s if rng.random() < 0.5 else -1.0
                used = float(rng.uniform(0.05, 0.35))
                effects.append(Effect(metric="cpu_used", hosts=(one,), how="add", value=used, from_s=since_s))
                effects.append(Effect(metric="run_queue", hosts=(one,), how="add", value=100.0 * used, from_s=since_s))
                effects.append(
                    Effect(metric="memory_available_bytes", hosts=(one,), how="scale", value=0.9, from_s=since_s)
                )
            case "exporter-gap":
                gaps.append(
                    Gap(host=int(rng.choice(sound)), from_s=from_s, until_s=from_s + float(rng.uniform(30.0, 200.0)))
                )
            case "exporter-dies":
                gaps.append(Gap(host=int(rng.choice(sound)), from_s=from_s))
            case "old-xid":
                effects.append(
                    Effect(
                        metric="gpu_xid", hosts=(int(rng.choice(sound)),), how="set", value=43.0, card=0, from_s=-1.0
                    )
                )
            case "corrected-errors":
                effects.append(
                    Effect(metric="gpu_ecc_corrected", hosts=(int(rng.choice(sound)),), how="add", value=0.1, card=0)
                )
                effects.append(
                    Effect(metric="gpu_pcie_replays", hosts=(int(rng.choice(sound)),), how="add", value=0.02, card=0)
                )
            case "congested-rack":
                until_s = from_s + float(rng.uniform(60.0, 400.0))
                more = draw_log_uniform(rng, 300.0, 5e3)
                effects.append(
                    Effect(metric="net_pfc_sent", hosts=in_rack, how="add", value=more, from_s=from_s, until_s=until_s)
                )
            case "spike":
                metric = ("net_pfc_sent", "cpu_used", "gpu_power_w")[int(rng.integers(3))]
                until_s = from_s + float(rng.uniform(10.0, 100.0))
                host = (int(rng.choice(sound)),)
                how_much = {"net_pfc_sent": 2e4, "cpu_used": 0.3, "gpu_power_w": -200.0}[metric]
                effects.append(
                    Effect(metric=metric, hosts=host, how="add", value=how_much, from_s=from_s, until_s=until_s)
                )
            case _:
                pass  # a course says it
    return effects, gaps
