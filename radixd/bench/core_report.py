"""What the figures of the core are held against: aims, and peers.  Pure arithmetic."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A figure and the most it may be."""

    name: str
    path: tuple[str, ...]
    """Where the report has it."""
    most: float
    below: bool = False
    """It must be below `most`, not only at most that."""

    def value(self, report: dict[str, Any]) -> float:
        """The figure in a report."""
        found: Any = report
        for key in self.path:
            found = found[key]
        return float(found)

    def is_met(self, report: dict[str, Any]) -> bool:
        """Whether a report has what was aimed at."""
        value = self.value(report)
        return value < self.most if self.below else value <= self.most


AIMS = (
    Aim(name="match + insert, µs mean", path=("match_insert_us", "mean"), most=15.0),
    Aim(name="match + evict + insert, µs mean", path=("steady_cycle_us", "mean"), most=30.0),
    Aim(name="match + evict + insert, µs p99", path=("steady_cycle_us", "p99"), most=150.0),
    Aim(
        name="schedule + apply, µs p50",
        path=("schedule_apply_us", "p50"),
        most=500.0,
        below=True,
    ),
    Aim(
        name="schedule + apply, µs p99",
        path=("schedule_apply_us", "p99"),
        most=1500.0,
        below=True,
    ),
    Aim(name="  as queue and tree grow, times", path=("flatness", "ratio"), most=1.5),
    Aim(name="plan of decodes, bytes", path=("plan_bytes",), most=6144.0),
    Aim(name="plan of decodes, µs to code", path=("plan_codec_us",), most=150.0),
    Aim(name="tree node, bytes", path=("node_bytes",), most=600.0),
    Aim(name="cached token, bytes", path=("token_bytes",), most=8.0),
)
"""Where a figure was taken in several settings, the worst counts."""

COMPARED = ("match_insert_us", "steady_cycle_us", "schedule_apply_us")
_STATISTICS = ("mean", "p50", "p99")


def core_report(
    core: dict[str, Any], peers: dict[str, dict[str, Any]] | None, machine: dict[str, Any]
) -> dict[str, Any]:
    """The JSON object of `radixd bench core`; with peers, what they take and how many times ours
    that is, setting by setting, from the same run."""
    report = core | {"aims_met": {"/".join(aim.path): aim.is_met(core) for aim in AIMS}}
    if peers is not None:
        report["peers"] = peers
        report["ratios"] = {name: _ratios(core, peer) for name, peer in peers.items()}
    return report | {"machine": machine}


def _ratios(core: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    ratios: dict[str, Any] = {}
    for figure, setting, theirs in comparisons(peer):
        ours = core[figure][setting]
        ratios.setdefault(figure, {})[setting] = {
            name: round(theirs[name] / ours[name], 2) for name in _STATISTICS
        }
    return ratios


def comparisons(peer: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(figure, setting, statistics) of all that was measured of a peer."""
    for figure in COMPARED:
        for setting, theirs in peer.get(figure, {}).items():
            yield figure, setting, theirs
