"""The console of verl: all metrics of a step on one line, from a Ray actor.

Source: verl-project/verl, verl/utils/logger/aggregate_logger.py (`concat_dict_to_str`), verl/trainer/ppo/metric_utils.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import between_after

#: What part of the step each is, by the name in verl.
_SHARES = {"gen": 0.6, "old_log_prob": 0.08, "ref": 0.07, "adv": 0.01, "update_actor": 0.24}


def write_verl(run: LoggedRun, *, actor: bool = True, experts: int = 0) -> bytes:
    """Write a line a step; saves and evaluations are part of the step in verl; `experts` is of the model's configuration."""
    lines = []
    if experts:
        lines += [
            "(WorkerDict pid=17001) Model config after override: Qwen3MoeConfig {",
            '(WorkerDict pid=17001)   "hidden_size": 2048,',
        ]
        lines += [
            f'(WorkerDict pid=17001)   "num_experts": {experts},',
            '(WorkerDict pid=17001)   "num_experts_per_tok": 8,',
        ]
    for i, iteration in enumerate(run.iteration.tolist()):
        step_s = float(run.step_s[i])
        said: dict[str, float] = {
            "global_seqlen/mean": float(run.tokens[i]) / run.world_size,
            "actor/grad_norm": 0.069,
            "perf/mfu/actor": 0.41,
            "response_length/mean": 324.958,
        }
        said |= {f"timing_s/{name}": share * step_s for name, share in _SHARES.items()}
        if "update" in run.parts:
            said["timing_s/update_actor"] = float(run.parts["update"][i])
            said["timing_s/gen"] = step_s * (
                1 - sum(_SHARES.values()) + _SHARES["gen"] + _SHARES["update_actor"]
            ) - float(run.parts["update"][i])
        for event in between_after(run, i):
            name = "save_checkpoint" if event.kind == "save" else "testing"
            said[f"timing_s/{name}"] = event.seconds
            step_s += event.seconds
        said |= {
            "timing_s/step": step_s,
            "timing_per_token_ms/adv": 0.001,
            "perf/total_num_tokens": float(run.tokens[i]),
            "perf/time_per_step": step_s,
            "perf/throughput": float(run.tokens[i]) / step_s / run.world_size,
        }
        text = " - ".join([f"step:{iteration}", *(f"{key}:{value}" for key, value in said.items())])
        lines.append(f"(TaskRunner pid=16292) {text}" if actor else text)
    return "\n".join([*lines, ""]).encode()
