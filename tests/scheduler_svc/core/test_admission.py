"""Admission estimates: figures worked out by hand, and against a naive count."""

import random

import pytest

from scheduler_svc.core.admission import (
    ADMISSION_ESTIMATES,
    RATIO_DECAY,
    RATIO_JUMP,
    RATIO_MOST,
    SETTLE_STEPS,
    EstimateKnobs,
)
from scheduler_svc.core.output_lengths import (
    LEAST_LENGTHS,
    LENGTHS_BETWEEN_FITS,
    MOST_LENGTHS,
    OutputLengths,
)
from scheduler_svc.core.page_need import MOST_TOKENS_EXPECTED, missing_pages, resume_need_tokens
from tests.scheduler_svc.core.plain import PageCount, plain_request

KNOBS = EstimateKnobs(decode_reserve=0.2, length_quantile=0.9)
PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 4, 16])


def estimate(name, **knobs):
    return ADMISSION_ESTIMATES[name](KNOBS._replace(**knobs))


def ahead(name_or_estimate, running, candidate=None, page_size=1, **knobs):
    chosen = name_or_estimate
    if isinstance(chosen, str):
        chosen = estimate(chosen, **knobs)
    return chosen.open(running, PageCount(page_size)).pages_ahead(candidate)


def two_streams(page_size):
    """10 + 5 tokens of 30 and 20 + 1 tokens of 60; each lacks a slot for its newest token."""
    pages = PageCount(page_size)
    return [
        plain_request(1, prompt=10, outputs=5, max_tokens=20, held=pages.num_pages(14)),
        plain_request(2, prompt=20, outputs=1, max_tokens=40, held=pages.num_pages(20)),
    ]


# page size 1: (29 - 14) + (59 - 20); 4: (8 - 4) + (15 - 5); 16: (2 - 1) + (4 - 2)
# and a candidate of 7 tokens that samples 10, the last of which needs no slot: 16, 4, 1
@pytest.mark.parametrize(("page_size", "own", "both"), [(1, 54, 70), (4, 14, 18), (16, 3, 4)])
def test_worst_case_by_hand(page_size, own, both):
    running = two_streams(page_size)
    assert ahead("worst_case", running, None, page_size) == own
    candidate = plain_request(3, prompt=7, max_tokens=10)
    assert ahead("worst_case", running, candidate, page_size) == both


# They have 14 and 38 slots to grow beyond 15 and 21 tokens; a fifth is 2 and 7.
# page size 1: (17 - 14) + (28 - 20); 4: (5 - 4) + (7 - 5); 16: (2 - 1) + (2 - 2)
# The candidate grows by int(9 / 5) beyond 7 tokens: 8, 2, 1.
@pytest.mark.parametrize(("page_size", "own", "both"), [(1, 11, 19), (4, 3, 5), (16, 1, 2)])
def test_ratio_by_hand(page_size, own, both):
    running = two_streams(page_size)
    assert ahead("ratio", running, None, page_size) == own
    candidate = plain_request(3, prompt=7, max_tokens=10)
    assert ahead("ratio", running, candidate, page_size) == both


# The first ends after 15 steps, the second after 39.
# page size 1: then they fill 29 + 35 of 34 held; at the end of the second 59 - 20 - 14.
# 4: 8 + 9 - 9, and 15 - 5 - 4; 16: 2 + 3 - 3, and 4 - 2 - 1.
# The candidate ends after 10 steps: 24 + 30 + 16 - 34; later 30 and 25 again. In pages of 4:
# 6 + 8 + 4 - 9; of 16: 2 + 2 + 1 - 3.
@pytest.mark.parametrize(("page_size", "own", "both"), [(1, 30, 36), (4, 8, 9), (16, 2, 2)])
def test_peak_by_hand(page_size, own, both):
    running = two_streams(page_size)
    assert ahead("peak", running, None, page_size) == own
    candidate = plain_request(3, prompt=7, max_tokens=10)
    assert ahead("peak", running, candidate, page_size) == both


# All answers so far had 12 tokens: the first has 7 to go, the second 11, the candidate 10 at
# most.  page size 1: (21 - 14) + (31 - 20); 4: (6 - 4) + (8 - 5); 16: (2 - 1) + (2 - 2)
# The candidate: 16, 4, 1.
@pytest.mark.parametrize(("page_size", "own", "both"), [(1, 18, 34), (4, 5, 9), (16, 1, 2)])
def test_quantile_by_hand(page_size, own, both):
    learned = estimate("quantile")
    for _ in range(LEAST_LENGTHS):
        learned.note_finished(12, 1000)
    running = two_streams(page_size)
    assert ahead(learned, running, None, page_size) == own
    candidate = plain_request(3, prompt=7, max_tokens=10)
    assert ahead(learned, running, candidate, page_size) == both


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
def test_pages_are_rounded_for_each_request(name):  # field case 32
    running = [plain_request(i, prompt=17, max_tokens=2) for i in range(3)]
    assert ahead(name, running, None, page_size=16) == 3 * 2


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
@PAGE_SIZES
def test_whoever_was_admitted_counts_like_those_that_run(name, page_size):
    running = [*two_streams(page_size), plain_request(3, prompt=9, max_tokens=30)]
    candidate = plain_request(4, prompt=33, max_tokens=25)
    promise = estimate(name).open(running[:2], PageCount(page_size))
    assert promise.pages_ahead(running[2]) == ahead(name, running, None, page_size)
    promise.add(running[2])
    assert promise.pages_ahead(None) == ahead(name, running, None, page_size)
    assert promise.pages_ahead(candidate) == ahead(name, running, candidate, page_size)


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
def test_nobody_runs(name):
    assert ahead(name, []) == 0
    assert ahead(name, [], plain_request(prompt=7, max_tokens=1)) == 7


@pytest.mark.parametrize("name", ["worst_case", "ratio", "quantile"])
def test_spare_pages_of_one_are_no_room_for_another(name):
    learned = estimate(name)
    for _ in range(LEAST_LENGTHS):
        learned.note_finished(2, 1000)
    running = [plain_request(1, max_tokens=1, held=30), plain_request(2, max_tokens=1, held=4)]
    assert ahead(learned, running) == 6


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
def test_last_token_needs_no_slot(name):
    running = [plain_request(prompt=5, outputs=2, max_tokens=3, held=7, pending=1)]
    assert ahead(name, running) <= (name == "peak"), "its last token is on the way"
    assert ahead(name, [plain_request(prompt=5, outputs=2, max_tokens=3, held=6)]) == 1


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
@pytest.mark.parametrize(("page_size", "pages"), [(1, 33), (16, 2)])
def test_preheat_needs_whole_pages_of_its_prompt(name, page_size, pages):
    preheat = plain_request(prompt=33, max_tokens=0, preheat=True)
    assert ahead(name, [], preheat, page_size) == pages
    assert ahead(name, [preheat], None, page_size) == pages
    promise = estimate(name).open([], PageCount(page_size))
    promise.add(preheat)
    assert promise.pages_ahead(None) == pages


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
def test_whoever_was_cut_back_needs_more(name):
    fresh = plain_request(prompt=10, outputs=20, max_tokens=5000)
    resuming = plain_request(prompt=10, outputs=20, max_tokens=5000, retractions=2)
    whole = 30 + 1024
    assert ahead(name, [], resuming) >= whole
    if name in ("ratio", "quantile"):
        assert ahead(name, [], resuming) == whole > ahead(name, [], fresh)


def test_resume_need_doubles_up_to_the_whole_need():
    def need(retractions, max_tokens=100_000):
        return resume_need_tokens(plain_request(max_tokens=max_tokens, retractions=retractions))

    assert [need(n) for n in (1, 2, 3)] == [512, 1024, 2048]
    assert need(200) == 99_999
    assert need(1, max_tokens=100) == 99
    assert need(1, max_tokens=0) == 0


def test_missing_pages_is_what_a_lone_request_needs_at_once():
    assert missing_pages(plain_request(prompt=17, held=1), 0, PageCount(16)) == 1
    assert missing_pages(plain_request(prompt=17, held=9), 0, PageCount(16)) == 0
    assert missing_pages(plain_request(prompt=17), 16, PageCount(16)) == 3


# --- ratio ------------------------------------------------------------------------------------


def test_ratio_rises_on_a_retraction_and_sinks_to_the_floor():
    ratio = estimate("ratio")
    floor = ratio.ratio
    assert floor == pytest.approx(0.2, abs=1e-4)
    ratio.note_step(1000)
    assert ratio.ratio == floor
    ratio.note_retraction()
    assert ratio.ratio == pytest.approx(0.2 + RATIO_JUMP, abs=1e-4)
    ratio.note_step()
    ratio.note_step(9)
    assert ratio.ratio == pytest.approx(0.2 + RATIO_JUMP - 10 * RATIO_DECAY, abs=1e-3)
    ratio.note_step(200)
    assert ratio.ratio == floor


def test_ratio_rises_once_a_storm_and_not_without_bound():
    ratio = estimate("ratio")
    for _ in range(10):
        ratio.note_retraction()
        ratio.note_step()
    assert ratio.ratio < 0.2 + 1.1 * RATIO_JUMP
    for _ in range(100):
        ratio.note_step(SETTLE_STEPS)
        ratio.note_retraction()
    assert ratio.ratio == pytest.approx(RATIO_MOST, abs=1e-4)


def test_ratio_raised_admits_less():
    ratio, running = estimate("ratio"), [plain_request(max_tokens=101, held=10)]
    before = ahead(ratio, running)
    ratio.note_retraction()
    assert (before, ahead(ratio, running)) == (20, 30)


def test_ratio_tuned_keeps_what_it_learned():
    ratio = estimate("ratio")
    ratio.note_retraction()
    ratio.tune(KNOBS._replace(decode_reserve=0.4))
    assert ratio.ratio == pytest.approx(0.4 + RATIO_JUMP, abs=1e-4)
    ratio.tune(KNOBS._replace(decode_reserve=1.0))
    assert ratio.ratio == 1.0


def test_ratio_of_all_is_the_worst_case_and_unlimited_ones_are_bounded():
    running = two_streams(1)
    assert ahead("ratio", running, decode_reserve=1.0) == ahead("worst_case", running)
    unlimited = [plain_request(max_tokens=100_000, held=10)]
    assert ahead("ratio", unlimited, decode_reserve=1.0) == MOST_TOKENS_EXPECTED
    assert ahead("peak", unlimited) == MOST_TOKENS_EXPECTED - 1
    assert ahead("worst_case", unlimited) == 99_999


# --- peak -------------------------------------------------------------------------------------


def naive_peak(running, page_size, shared):
    """The sum at every step, one by one."""
    pages, highest = PageCount(page_size, shared), 0
    for step in range(1, max((request.num_left for request in running), default=0) + 1):
        total = 0
        for request in running:
            if request.num_left >= step:
                total += pages.num_pages(request.num_tokens + step - 1) - len(request.pages)
            else:
                total -= pages.num_pages_held_alone(request)
        highest = max(highest, total)
    return highest


@PAGE_SIZES
@pytest.mark.parametrize("shared", [0, 3])
def test_peak_is_the_highest_of_all_steps(page_size, shared):
    rng, pages = random.Random(page_size), PageCount(page_size, shared)
    for _ in range(40):
        crowd = []
        for i in range(rng.randrange(1, 12)):
            prompt, outputs = rng.randrange(1, 40), rng.randrange(5)
            held = pages.num_pages(prompt + outputs - 1)
            limit = outputs + rng.choice([1, 2, 7, rng.randrange(1, 60)])
            crowd.append(
                plain_request(i, prompt=prompt, outputs=outputs, max_tokens=limit, held=held)
            )
        *running, candidate = crowd
        promise = estimate("peak").open(running, pages)
        assert promise.pages_ahead(None) == naive_peak(running, page_size, shared)
        assert promise.pages_ahead(candidate) == naive_peak(crowd, page_size, shared)


@PAGE_SIZES
def test_peak_lies_between_the_need_at_once_and_the_worst_case(page_size):
    running = two_streams(page_size)
    at_once = sum(missing_pages(request, 0, PageCount(page_size)) for request in running)
    assert at_once <= ahead("peak", running, None, page_size)
    assert ahead("peak", running, None, page_size) < ahead("worst_case", running, None, page_size)


# --- quantile ---------------------------------------------------------------------------------


def lengths_of(quantile, answers):
    lengths = OutputLengths(quantile)
    for length, is_cut in answers:
        lengths.note(length, is_cut=is_cut)
    return lengths


def expected_after(lengths, num_generated):
    return lengths.expected[sum(end <= num_generated for end in lengths.ends)]


def test_quantile_before_it_learned_anything_is_the_floor_of_ratio():
    learned = estimate("quantile")
    for _ in range(LEAST_LENGTHS - 1):
        learned.note_finished(500, 1000)
    running = two_streams(4)
    assert ahead(learned, running, None, 4) == ahead("ratio", running, None, 4)
    learned.note_finished(500, 1000)
    assert ahead(learned, running, None, 4) > ahead("ratio", running, None, 4)


def test_quantile_is_of_those_that_got_so_far():
    lengths = lengths_of(0.9, [(length, False) for length in range(10, 1010, 10)] * 4)
    assert expected_after(lengths, 0) == 900
    assert expected_after(lengths, 500) == 950, "of 510 to 1000 nine tenths end by 950"
    assert expected_after(lengths, 995) == 1000
    assert expected_after(lengths, 1000) == 0, "nobody got so far"
    lengths.tune(0.5)
    assert (expected_after(lengths, 0), expected_after(lengths, 500)) == (500, 750)
    lengths.tune(1.0)
    assert expected_after(lengths, 0) == 1000


def test_quantile_does_not_take_cut_answers_for_short_ones():
    # Half were cut at 10 tokens; of the others half end at 20, half at 40.
    cut = [(10, True)] * 32 + [(20, False)] * 16 + [(40, False)] * 16
    assert expected_after(lengths_of(0.9, cut), 0) == 40
    assert expected_after(lengths_of(0.5, cut), 0) == 20, "with 10 taken for an end it were 10"
    assert expected_after(lengths_of(0.5, [(10, True)] * 32), 0) == 0, "nobody knows"


def test_quantile_takes_whoever_is_always_cut_to_run_to_the_limit():
    learned = estimate("quantile")
    for _ in range(LEAST_LENGTHS):
        learned.note_finished(200, 200)
    for candidate in (plain_request(max_tokens=200), plain_request(max_tokens=400)):
        assert ahead(learned, [], candidate) == ahead("worst_case", [], candidate)
    running = two_streams(1)
    assert ahead(learned, running) == ahead("worst_case", running), "nobody outgrows his limit"


def test_quantile_tuned_keeps_what_it_learned():
    learned, running = estimate("quantile"), two_streams(1)
    learned.tune(EstimateKnobs(decode_reserve=0.5, length_quantile=0.5))
    assert ahead(learned, running) == ahead("ratio", running, decode_reserve=0.5)
    for length in range(LEAST_LENGTHS):
        learned.note_finished(length, 1000)
    half = ahead(learned, running)
    learned.tune(KNOBS)
    assert half < ahead(learned, running)


def test_quantile_forgets():
    old = [(1000, False)] * (2 * LENGTHS_BETWEEN_FITS)
    new = [(10, False)] * MOST_LENGTHS
    assert expected_after(lengths_of(0.9, old), 0) == 1000
    assert expected_after(lengths_of(0.9, old + new), 999) == 0
    assert len(lengths_of(0.9, old + new).ends) == MOST_LENGTHS


@PAGE_SIZES
def test_each_estimate_differs_from_every_other(page_size):
    learned = [estimate(name) for name in ADMISSION_ESTIMATES]
    for each in learned:
        for _ in range(LEAST_LENGTHS):
            each.note_finished(150, 1000)
    held = PageCount(page_size).num_pages(20)
    running = [plain_request(i, prompt=20, max_tokens=100 * i, held=held) for i in range(1, 9)]
    assert len({ahead(each, running, None, page_size) for each in learned}) == len(learned)


@pytest.mark.parametrize("name", ADMISSION_ESTIMATES)
def test_a_paragraph_says_what_it_suits(name):
    paragraph = ADMISSION_ESTIMATES[name].__doc__
    assert "suits" in paragraph.lower()
    assert "\n\n" not in paragraph
