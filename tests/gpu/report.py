"""What a run found: rows, a table of them in Markdown, one JSON object, and the exit status.

Knows numbers and texts; no tensors, no cards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.gpu.case import Aim
from tests.gpu.comparison import Comparison
from tests.gpu.roofs import Roofs, roofline_us
from tests.gpu.timing import Times
from tests.gpu.work import Work

Status = Literal["ok", "wrong", "failed", "not run"]
"""wrong: the result is not that of float64.  failed: there was none."""

COLUMNS = ("kernel", "case", "error (allowed)", "bound by", "time", "of roofline", "against")
ENGINE = "engine"
"""The `kernel` of rows about a whole model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    kernel: str
    case: str
    status: Status = "ok"
    note: str = ""
    """Why it is not ok, or what else was found."""
    error: float | None = None
    allowed: float | None = None
    bound_by: str = ""
    time_us: float | None = None
    """Median."""
    low_us: float | None = None
    high_us: float | None = None
    share: float | None = None
    """Of the roofline: least time over time."""
    aim: str = ""
    is_aim_met: bool | None = None
    rivals_us: Mapping[str, float] = field(default_factory=dict)
    """Medians of the same by torch; NaN: it failed there."""

    @property
    def is_wrong(self) -> bool:
        """Whether this row makes a run fail."""
        return self.status in ("wrong", "failed")


def checked(kernel: str, case: str, found: Comparison) -> Row:
    """The row of a comparison."""
    return Row(
        kernel=kernel,
        case=case,
        status="ok" if found.is_right else "wrong",
        error=found.error,
        allowed=found.allowed,
    )


def timed(
    row: Row,
    times: Times,
    work: Work,
    roofs: Roofs,
    aim: Aim | None = None,
    rivals_us: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What a time adds to a row, by field."""
    least_us, bound_by = roofline_us(work, roofs)
    share = least_us / times.median_us
    return {
        "bound_by": bound_by,
        "time_us": times.median_us,
        "low_us": times.low_us,
        "high_us": times.high_us,
        "share": share,
        "aim": aim.text if aim else row.aim,
        "is_aim_met": aim.is_met(share=share, time_us=times.median_us) if aim else row.is_aim_met,
        "rivals_us": dict(rivals_us or {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run."""

    rows: Sequence[Row]
    card: Mapping[str, Any]
    roofs: Roofs | None
    clocks: Mapping[str, Mapping[str, str]]
    """By when they were read."""
    seconds: float

    @property
    def exit_status(self) -> int:
        """1 where anything is wrong or failed; an aim that is missed is neither."""
        return int(any(row.is_wrong for row in self.rows))


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values; numbers that are none become null."""
    return {
        "ok": report.exit_status == 0,
        "seconds": round(report.seconds, 1),
        "card": dict(report.card),
        "clocks": {when: dict(clocks) for when, clocks in report.clocks.items()},
        "roofs": asdict(report.roofs) if report.roofs else None,
        "rows": [_plain(asdict(row)) for row in report.rows],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_markdown(report: Report) -> str:
    """The head and the table, as kernels/README.md has them."""
    lines = [
        _head(report),
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
        *(f"| {' | '.join(map(_cell, _cells(row)))} |" for row in report.rows),
    ]
    return "\n".join(lines) + "\n"


def _head(report: Report) -> str:
    card = report.card
    text = f"{card.get('name', 'no card')}, torch {card.get('torch')}, triton {card.get('triton')}"
    if card.get("cuda"):
        text += f", CUDA {card['cuda']}"
    clocks = report.clocks.get("under load", {})
    if clocks:
        text += (
            f", driver {clocks['driver_version']}; {clocks['clocks.sm']} of"
            f" {clocks['clocks.max.sm']} and {clocks['power.draw']} under load"
        )
    if report.roofs:
        roofs = report.roofs
        text += (
            f"; copies {roofs.copy_bytes_per_s / 1e9:.0f} GB/s,"
            f" reads {roofs.read_bytes_per_s / 1e9:.0f} GB/s,"
            f" bf16 products {roofs.bf16_flops_per_s / 1e12:.0f} TFLOP/s"
        )
    wrong = sum(row.is_wrong for row in report.rows)
    return text + f"; {len(report.rows)} rows, {wrong} wrong, {report.seconds:.0f} s."


def _cells(row: Row) -> tuple[str, ...]:
    share = "" if row.share is None else f"{row.share:.0%}"
    if row.aim:
        verdict = {None: "", True: ", met", False: ", MISSED"}[row.is_aim_met]
        share = f"{share} (aim {row.aim}{verdict})".strip()
    return (
        row.kernel,
        row.case,
        _error(row),
        row.bound_by,
        "" if row.time_us is None else duration(row.time_us),
        share,
        "; ".join(filter(None, (_rivals(row), row.note))),
    )


def _error(row: Row) -> str:
    if row.status in ("failed", "not run"):
        return row.status.upper() if row.status == "failed" else row.status
    if row.error is None or row.allowed is None:
        return "WRONG" if row.status == "wrong" else ""
    text = f"{row.error:.1e} ({row.allowed:.1e})"
    return text if row.status == "ok" else f"WRONG {text}"


def _rivals(row: Row) -> str:
    """Each rival's time, and how many times as long it takes."""
    texts = []
    for name, time_us in row.rivals_us.items():
        if not math.isfinite(time_us) or not row.time_us:
            texts.append(f"{name}: failed")
        else:
            texts.append(f"{name} {duration(time_us)} ({time_us / row.time_us:.2f} x)")
    return ", ".join(texts)


def duration(time_us: float) -> str:
    """Three digits and a unit."""
    for limit, factor, unit in ((1e3, 1.0, "us"), (1e6, 1e-3, "ms")):
        if time_us < limit:
            return f"{time_us * factor:.3g} {unit}"
    return f"{time_us / 1e6:.3g} s"


def _cell(text: str) -> str:
    """A text that cannot end a cell or a line."""
    return " ".join(text.replace("|", "/").split())
