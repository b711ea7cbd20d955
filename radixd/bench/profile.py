"""Where the time of a workload's steps went, from the books before and after.  Pure arithmetic.

Definitions:

- `decode` steps compute no more than what they sample after; `prompt` steps compute more.
- `busy`: from sending a plan, or from the answer to the plan before if that came later, to the
  answer.  No two steps are busy at once, so busy of both kinds and `idle_s` make up `wall_s`.
- `products`, `attention`, `forward_rest`, `sampling`, `worker_rest`: by the worker's own clock;
  null where the worker measures no phases.  `wire`: what they leave of busy, so coding the
  messages, the wire, and waiting at either end.
- `schedule`, `apply`: by the scheduler's clock.  They pass beside busy while another plan is in
  flight, and within idle otherwise.
- `outside_forward`: busy without products, attention and forward_rest.
- `ms`: mean of a step of that kind; `share`: of wall_s.
- `computed_tok_s`, `sampled_tok_s`: tokens by the busy time of their kind of step.
"""

from typing import Any

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import CommandError

KINDS = ("decode", "prompt")
FORWARD_PHASES = ("products", "attention", "forward_rest")
WORKER_PHASES = (*FORWARD_PHASES, "sampling", "worker_rest")
SCHEDULER_PHASES = ("schedule", "apply")
_NS_PER_S = 1e9
_NS_PER_MS = 1e6


def profile_report(
    workload: str, before: admin_pb2.StepProfile, after: admin_pb2.StepProfile, wall_s: float
) -> dict[str, Any]:
    """The JSON object of `radixd bench --profile`, less the machine; `wall_s` must be above 0.

    Raises:
        CommandError: no step was answered between the two; the server may be of an older version.
    """
    sums = {kind: _difference(getattr(before, kind), getattr(after, kind)) for kind in KINDS}
    if not any(of_kind["num_steps"] for of_kind in sums.values()):
        raise CommandError("the server tells nothing of its steps; it may be of an older version")
    busy_s = sum(of_kind["busy_ns"] for of_kind in sums.values()) / _NS_PER_S
    idle_s = max(0.0, wall_s - busy_s)  # the clocks of two processes differ by a hair
    return {
        "workload": workload,
        "wall_s": round(wall_s, 6),
        "idle_s": round(idle_s, 6),
        "idle_share": round(idle_s / wall_s, 4),
        **{kind: _of_kind(of_kind, wall_s) for kind, of_kind in sums.items()},
    }


def notes(report: dict[str, Any]) -> list[str]:
    """What the worker does not tell; a reader of the figures must know it."""
    kinds = [report[kind] for kind in KINDS if report[kind]["num_steps"]]
    num_phased = sum(kind["num_phased_steps"] for kind in kinds)
    if not num_phased:
        return ["This worker measures no phases: busy is all that is known of its time."]
    found = []
    if num_phased < sum(kind["num_steps"] for kind in kinds):
        found.append("Not every step was measured by phase; the time of the others is in wire.")
    if not any(kind["phases"][name]["ms"] for kind in kinds for name in ("products", "attention")):
        found.append("This worker does not tell products and attention apart from the rest.")
    return found


def _difference(before: admin_pb2.StepSums, after: admin_pb2.StepSums) -> dict[str, int]:
    names = admin_pb2.StepSums.DESCRIPTOR.fields_by_name
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def _of_kind(sums: dict[str, int], wall_s: float) -> dict[str, Any]:
    num_steps, busy_ns = sums["num_steps"], sums["busy_ns"]
    ns: dict[str, int | None] = dict.fromkeys((*WORKER_PHASES, "wire"))
    outside_ns = None
    if sums["num_phased_steps"]:
        ns |= {name: sums[f"{name}_ns"] for name in WORKER_PHASES}
        worker_ns = sum(sums[f"{name}_ns"] for name in WORKER_PHASES)
        ns["wire"] = max(0, busy_ns - worker_ns)
        outside_ns = max(0, busy_ns - sum(sums[f"{name}_ns"] for name in FORWARD_PHASES))
    ns |= {"busy": busy_ns, "outside_forward": outside_ns}
    ns |= {name: sums[f"{name}_ns"] for name in SCHEDULER_PHASES}
    return {
        "num_steps": num_steps,
        "num_phased_steps": sums["num_phased_steps"],
        "mean_rows": _ratio(sums["num_rows"], num_steps),
        "mean_tokens": _ratio(sums["num_tokens"], num_steps),
        "mean_sampled": _ratio(sums["num_sampled"], num_steps),
        "computed_tok_s": _ratio(sums["num_tokens"] * _NS_PER_S, busy_ns),
        "sampled_tok_s": _ratio(sums["num_sampled"] * _NS_PER_S, busy_ns),
        "phases": {name: _phase(phase_ns, num_steps, wall_s) for name, phase_ns in ns.items()},
    }


def _phase(phase_ns: int | None, num_steps: int, wall_s: float) -> dict[str, float | None]:
    if phase_ns is None or not num_steps:
        return {"ms": None, "share": None}
    return {
        "ms": round(phase_ns / num_steps / _NS_PER_MS, 4),
        "share": round(phase_ns / _NS_PER_S / wall_s, 4),
    }


def _ratio(value: float, by: int) -> float | None:
    return round(value / by, 3) if by else None
