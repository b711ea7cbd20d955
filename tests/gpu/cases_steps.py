"""What joins two steps on the device: checks, and speed for 256 rows and for a prompt of 8k."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kernels.keep_samples import keep_samples, keep_samples_reference
from kernels.take_inputs import take_inputs, take_inputs_reference
from tests.gpu.case import Check, Prepared, Speed
from tests.gpu.comparison import Comparison, equal, worst
from tests.gpu.place import Place
from tests.gpu.work import Work

_VOCAB = 128_256


def checks() -> Iterator[Check]:
    """Integers, so that all must be the same."""
    yield Check(kernel="take_inputs", name="some tokens unknown", run=_check_take)
    yield Check(kernel="keep_samples", name="some drafts right", run=_check_keep)


def speeds() -> Iterator[Speed]:
    """A launch, no more: the roofline is far below what one takes."""
    for what, rows, per_row in (("256 decodes", 256, 1), ("prompt of 8k", 1, 8192)):
        yield Speed(kernel="take_inputs", name=what, prepare=partial(_take, rows, per_row))
    for what, drafts in (("256 decodes", 0), ("256 rows of 4 drafts", 4)):
        yield Speed(kernel="keep_samples", name=what, prepare=partial(_keep, drafts))


@dataclass(kw_only=True)
class _Inputs:
    """Of take_inputs, in its order; what it changes is cloned for a second run."""

    token_ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    last_tokens: torch.Tensor
    slot_table: torch.Tensor

    def columns(self) -> tuple[torch.Tensor, ...]:
        return (
            self.token_ids, self.rows, self.positions, self.slots, self.last_tokens,
            self.slot_table,
        )  # fmt: skip

    def copy(self) -> "_Inputs":
        return _Inputs(**{name: column.clone() for name, column in vars(self).items()})


def _inputs(place: Place, num_rows: int, per_row: int) -> _Inputs:
    """A run of tokens of each row, every third of them not known to the host."""
    num_tokens, length = num_rows * per_row, per_row + 100
    token = torch.arange(num_tokens, device=place.device, dtype=torch.int32)
    token_ids = torch.where(token % 3 == 0, -1, token % 1000).to(torch.int32)
    return _Inputs(
        token_ids=token_ids,
        rows=(token // per_row).to(torch.int32),
        positions=(token % per_row + 7).to(torch.int32),
        slots=place.some(num_tokens, 2 * num_tokens),
        last_tokens=place.some(num_rows, 5000 + num_rows),
        slot_table=torch.zeros(num_rows, length, dtype=torch.int32, device=place.device),
    )


def _check_take(place: Place) -> Comparison:
    return _same_inputs(_inputs(place, place.pick(100, 3), place.pick(50, 5)))


def _same_inputs(ours: _Inputs) -> Comparison:
    theirs = ours.copy()
    take_inputs(*ours.columns())
    take_inputs_reference(*theirs.columns())
    return worst(
        [equal(ours.token_ids, theirs.token_ids), equal(ours.slot_table, theirs.slot_table)]
    )


def _take(num_rows: int, per_row: int, place: Place) -> Prepared:
    given = _inputs(place, min(num_rows, place.pick(num_rows, 3)), place.pick(per_row, 2))
    return Prepared(
        work=Work(num_bytes=7 * 4 * len(given.token_ids)),
        run=lambda: take_inputs(*given.columns()),
        check=lambda: _same_inputs(given.copy()),
    )


@dataclass(kw_only=True)
class _Samples:
    """Of keep_samples, in its order."""

    samples: torch.Tensor
    drafts: torch.Tensor
    start: torch.Tensor
    rows: torch.Tensor
    last_tokens: torch.Tensor
    history: torch.Tensor
    history_row: torch.Tensor

    def columns(self) -> tuple[torch.Tensor, ...]:
        return (
            self.samples, self.drafts, self.start, self.rows, self.last_tokens, self.history,
            self.history_row,
        )  # fmt: skip

    def copy(self) -> "_Samples":
        return _Samples(**{name: column.clone() for name, column in vars(self).items()})


def _samples(place: Place, num_rows: int, num_drafts: int, vocab_size: int) -> _Samples:
    """Rows whose drafts are wrong from another place on each; every other one has a history."""
    each = num_drafts + 1
    total = num_rows * each
    samples = place.some(total, total + 7) % vocab_size
    index = torch.arange(total, device=place.device)
    is_right = index % each < (index // each) % (each + 1)
    drafts = torch.where(is_right & (index % each < num_drafts), samples, -1).to(torch.int32)
    history_row = [row // 2 if row % 2 else -1 for row in range(num_rows)]
    return _Samples(
        samples=samples,
        drafts=drafts,
        start=place.ints(range(0, total + 1, each)),
        rows=place.some(num_rows, num_rows),
        last_tokens=torch.zeros(num_rows, dtype=torch.int32, device=place.device),
        history=torch.ones(
            max(1, num_rows // 2), vocab_size, dtype=torch.int32, device=place.device
        ),
        history_row=place.ints(history_row),
    )


def _check_keep(place: Place) -> Comparison:
    return _same_samples(_samples(place, place.pick(64, 5), 3, place.pick(_VOCAB, 50)))


def _same_samples(ours: _Samples) -> Comparison:
    theirs = ours.copy()
    counts, wanted = keep_samples(*ours.columns()), keep_samples_reference(*theirs.columns())
    return worst(
        [
            equal(counts, wanted),
            equal(ours.last_tokens, theirs.last_tokens),
            equal(ours.history, theirs.history),
        ]
    )


def _keep(num_drafts: int, place: Place) -> Prepared:
    given = _samples(place, place.pick(256, 4), num_drafts, place.pick(_VOCAB, 50))
    num_samples, num_rows = len(given.samples), len(given.rows)
    return Prepared(
        # Samples and drafts, four columns of rows and their counts, a count in some histories.
        work=Work(num_bytes=4 * (2 * num_samples + 5 * num_rows) + 8 * (num_samples // 2)),
        run=lambda: keep_samples(*given.columns()),
        check=lambda: _same_samples(given.copy()),
    )
