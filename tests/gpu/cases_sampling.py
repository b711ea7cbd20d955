"""From logits to tokens: checks, and speed on 256 rows of a vocabulary of 128k.

A draw in float32 differs from one in float64 where two tokens are within rounding of each other, or
of a threshold: of the rows of a check one may.
"""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.adjust_logits import Adjustments, IdList, adjust_logits, adjust_logits_reference
from kernels.logprobs import logprobs, logprobs_reference
from kernels.sample import Sampling, sample, sample_reference
from kernels.survey_logits import GROUP, survey_logits, survey_logits_reference
from tests.gpu.case import Aim, Check, Prepared, Speed
from tests.gpu.comparison import Comparison, equal, near, worst
from tests.gpu.place import Place, in_float64
from tests.gpu.work import Work, logits_work

VOCAB = 128_256
NUM_ROWS = 256
_FEW = 32
"""Rows of those whose draws are compared: references take them one by one."""

Asked = tuple[float, int, float, float]
"""temperature, top_k, top_p, min_p"""

MIXED: tuple[Asked, ...] = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 50, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 20, 0.8, 0.0),
    (0.9, 1, 1.0, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 40, 0.5, 0.02),
)
GREEDY: tuple[Asked, ...] = ((0.0, 0, 1.0, 0.0),)
PLAIN: tuple[Asked, ...] = ((1.0, 0, 1.0, 0.0),)
TOP_P: tuple[Asked, ...] = ((0.8, 0, 0.95, 0.0),)
TOP_K_TOP_P: tuple[Asked, ...] = ((0.8, 50, 0.95, 0.0),)

_AIM = Aim(quantity="us", limit=60.0, text="< 60 us")


def checks() -> Iterator[Check]:
    """Draws of every kind, also of broken rows and of rows with many equal logits."""
    for what in ("as they come", "levels", "broken"):
        yield Check(
            kernel="sample",
            name=f"mixed, {what}",
            run=partial(_check_sample, what),
            is_core=what == "levels",
        )
    yield Check(kernel="survey_logits", name="mixed", run=_check_survey)
    for num_top in (0, 5, 20):
        yield Check(
            kernel="logprobs",
            name=f"{num_top} likeliest",
            run=partial(_check_logprobs, num_top),
            is_core=num_top == 5,
        )
    yield Check(kernel="adjust_logits", name="all at once", run=_check_adjust)


def speeds() -> Iterator[Speed]:
    """What servers are asked for; the aim is for draws, with limits and without."""
    size = "256 x 128k"
    for name, asked, aim in (
        ("plain", PLAIN, _AIM),
        ("top-k and top-p", TOP_K_TOP_P, _AIM),
        ("top-p", TOP_P, None),
        ("greedy", GREEDY, None),
        ("mixed", MIXED, None),
    ):
        yield Speed(
            kernel="sample", name=f"{size}, {name}", prepare=partial(_sample, asked), aim=aim
        )
    for name, asked in (("plain", PLAIN), ("top-k and top-p", TOP_K_TOP_P)):
        yield Speed(kernel="survey_logits", name=f"{size}, {name}", prepare=partial(_survey, asked))
    for num_top in (0, 5):
        yield Speed(
            kernel="logprobs",
            name=f"{size}, {num_top} likeliest",
            prepare=partial(_logprobs, num_top),
        )
    yield Speed(kernel="adjust_logits", name=f"{size}, penalties, mask", prepare=_adjust)


def sampling(place: Place, asked: tuple[Asked, ...], num_rows: int) -> Sampling:
    """Rows that ask for these in turn, each with a seed and a position of its own."""
    heat, top_k, top_p, min_p = zip(
        *(asked[row % len(asked)] for row in range(num_rows)), strict=True
    )

    def floats(column: tuple[float, ...]) -> torch.Tensor:
        return torch.tensor(column, dtype=torch.float32, device=place.device)

    return Sampling(
        temperature=floats(heat),
        top_k=place.ints(list(top_k)),
        top_p=floats(top_p),
        min_p=floats(min_p),
        seed=torch.arange(num_rows, device=place.device) * (2**37 + 1),
        position=place.ints(range(5, 5 + 1000 * num_rows, 1000)),
    )


def _logits(place: Place, num_rows: int) -> torch.Tensor:
    return 3 * place.randn(num_rows, place.pick(VOCAB, 300), dtype=torch.float32)


def _check_sample(what: str, place: Place) -> Comparison:
    num_rows = place.pick(64, len(MIXED))
    rows = _logits(place, num_rows)
    if what == "levels":
        rows = rows.round()
    elif what == "broken":
        rows[1, 7], rows[2, :] = torch.nan, torch.nan
        rows[3, 9], rows[3, 11] = torch.inf, torch.inf
        rows[4, :], rows[6, ::7] = -torch.inf, -torch.inf
    asked = sampling(place, MIXED, num_rows)
    return _same_draws(rows, asked, place)


def _check_survey(place: Place) -> Comparison:
    num_rows = place.pick(64, len(MIXED))
    rows = _logits(place, num_rows)
    rows[1, 7], rows[2, :], rows[4, :] = torch.nan, torch.nan, -torch.inf
    return _same_survey(rows, sampling(place, MIXED, num_rows), place)


def _same_survey(rows: torch.Tensor, asked: Sampling, place: Place) -> Comparison:
    """Bounds and masses of every group; those of greedy rows are nobody's."""
    ours = survey_logits(rows, asked)
    with in_float64(place.device):
        wanted = survey_logits_reference(rows, asked)
    drawn = asked.temperature > 0
    found = (ours[0], wanted[0]), (ours[1][drawn], wanted[1][drawn])
    return worst(near(part, other, 2e-5) for part, other in found)


def _survey(asked_rows: tuple[Asked, ...], place: Place) -> Prepared:
    num_rows = place.pick(NUM_ROWS, 3)
    rows, asked = _logits(place, num_rows), sampling(place, asked_rows, num_rows)
    planes = 2 * num_rows * -(-rows.shape[1] // GROUP) * 4
    return Prepared(
        work=Work(num_bytes=logits_work(*rows.shape).num_bytes + planes),
        run=lambda: survey_logits(rows, asked),
        check=lambda: _same_survey(rows[:_FEW], _few(asked, _FEW), place),
    )


def _same_draws(rows: torch.Tensor, asked: Sampling, place: Place) -> Comparison:
    with in_float64(place.device):
        wanted = sample_reference(rows, asked)
    return equal(sample(rows, asked), wanted, share=1 / len(rows))


def _few(asked: Sampling, count: int) -> Sampling:
    names = Sampling.__dataclass_fields__
    return Sampling(**{name: getattr(asked, name)[:count] for name in names})


def _sample(asked_rows: tuple[Asked, ...], place: Place) -> Prepared:
    num_rows = place.pick(NUM_ROWS, 3)
    rows, asked = _logits(place, num_rows), sampling(place, asked_rows, num_rows)

    def check() -> Comparison:
        drawn = sample(rows, asked)[:_FEW]
        with in_float64(place.device):
            wanted = sample_reference(rows[:_FEW], _few(asked, _FEW))
        return equal(drawn, wanted, share=1 / len(drawn))

    def top_k_draw() -> torch.Tensor:
        best, ids = torch.topk(rows, 50)
        return ids.gather(1, torch.multinomial(best.softmax(-1), 1))

    return Prepared(
        work=logits_work(*rows.shape),
        run=lambda: sample(rows, asked),
        check=check,
        rivals={
            "topk 50, softmax, multinomial": top_k_draw,
            "softmax, multinomial": lambda: torch.multinomial(rows.softmax(-1), 1),
        },
    )


def _check_logprobs(num_top: int, place: Place) -> Comparison:
    rows = _logits(place, place.pick(64, 6))
    rows[1] = rows[1].round()
    rows[2, 7], rows[3, 9], rows[4] = torch.nan, torch.inf, -torch.inf
    chosen = place.some(len(rows), rows.shape[1], seed=3)
    chosen[2], chosen[3] = 7, 9
    return _same_logprobs(rows, chosen, num_top, place)


def _same_logprobs(
    rows: torch.Tensor, chosen: torch.Tensor, num_top: int, place: Place
) -> Comparison:
    ours = logprobs(rows, chosen, num_top)
    with in_float64(place.device):
        theirs = logprobs_reference(rows, chosen, num_top)
    found = [near(ours[0], theirs[0])]
    if num_top:
        found += [equal(ours[1], theirs[1]), near(ours[2], theirs[2])]
    return worst(found)


def _logprobs(num_top: int, place: Place) -> Prepared:
    rows = _logits(place, place.pick(NUM_ROWS, 3))
    chosen = place.some(len(rows), rows.shape[1], seed=3)

    def rival() -> tuple[torch.Tensor, object]:
        normed = rows.log_softmax(-1)
        return normed.gather(1, wide), torch.topk(normed, max(num_top, 1))

    wide = chosen.long()[:, None]
    return Prepared(
        work=logits_work(*rows.shape),
        run=lambda: logprobs(rows, chosen, num_top),
        check=lambda: _same_logprobs(rows, chosen, num_top, place),
        rivals={"log_softmax, topk": rival},
    )


def _adjustments(place: Place, num_rows: int, vocab_size: int) -> Adjustments:
    """Every row has penalties and a few ids of its own; every other row a grammar."""
    history = torch.zeros(num_rows, vocab_size, dtype=torch.int32, device=place.device)
    history[:, ::3], history[:, ::5] = 1, 4
    masks = place.randn(2, -(-vocab_size // 32), dtype=torch.float32, seed=8)
    masks = (masks * 2**30).clamp(-(2**31), 2**31 - 128).to(torch.int32)

    def each(value: float) -> torch.Tensor:
        return torch.full((num_rows,), value, device=place.device)

    def three_a_row(seed: int) -> IdList:
        return IdList(
            start=place.ints(range(0, 3 * num_rows + 1, 3)),
            ids=place.some(3, vocab_size, seed=seed).repeat(num_rows),
        )

    return Adjustments(
        history=history,
        history_row=place.ints(range(num_rows)),
        repetition=each(1.2),
        frequency=each(0.5),
        presence=each(-0.25),
        masks=masks,
        mask_row=place.ints([row % 2 if row % 4 < 2 else -1 for row in range(num_rows)]),
        biased=three_a_row(1),
        biases=place.randn(3 * num_rows, dtype=torch.float32, seed=2),
        suppressed=three_a_row(3),
    )


def _check_adjust(place: Place) -> Comparison:
    rows = _logits(place, place.pick(64, 4))
    rows[1, 5] = torch.nan
    return _same_adjusted(rows, _adjustments(place, *rows.shape), place)


def _same_adjusted(rows: torch.Tensor, asked: Adjustments, place: Place) -> Comparison:
    """Of what a grammar allows against the model a number of 1e38: compared by its place alone."""
    ours = adjust_logits(rows, asked)
    with in_float64(place.device):
        wanted = adjust_logits_reference(rows, asked)
    is_huge, wants_huge = ((x.abs() > 1e37) & x.isfinite() for x in (ours, wanted))
    return worst(
        [
            equal(is_huge, wants_huge),
            near(ours.masked_fill(is_huge, 0.0), wanted.masked_fill(wants_huge, 0.0)),
        ]
    )


def _adjust(place: Place) -> Prepared:
    rows = _logits(place, place.pick(NUM_ROWS, 3))
    asked = _adjustments(place, *rows.shape)

    logits = logits_work(*rows.shape, times=3)  # logits in, their history, logits out
    masks = sum(row >= 0 for row in asked.mask_row.tolist()) * asked.masks.shape[1] * 4
    return Prepared(
        work=Work(num_bytes=logits.num_bytes + masks),
        run=lambda: adjust_logits(rows, asked),
        check=lambda: _same_adjusted(rows, asked, place),
    )
