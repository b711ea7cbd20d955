"""The arithmetic of the benchmark, on arrivals made up so that the answers are known."""

import pytest

from radixd.bench.figures import (
    SHORT_PROMPT_TOKENS,
    Figures,
    Quantiles,
    Trace,
    figures_of,
    first_token_s,
    gaps_s,
    percentile,
    quantiles,
    report,
)


def trace(
    arrivals: list[tuple[float, int]], *, sent_s: float = 0.0, prompt: int = 10, cached: int = 0
) -> Trace:
    return Trace(
        num_prompt_tokens=prompt,
        sent_s=sent_s,
        arrivals=tuple(arrivals),
        ended_s=arrivals[-1][0],
        cached_tokens=cached,
    )


def test_first_token_counts_from_sending() -> None:
    assert first_token_s(trace([(5.5, 1)], sent_s=5.0)) == 0.5


def test_one_token_a_message() -> None:
    assert gaps_s(trace([(1.0, 1), (1.5, 1), (3.5, 1)])) == [0.5, 2.0]


def test_a_message_of_k_tokens_is_k_gaps() -> None:
    assert gaps_s(trace([(1.0, 1), (2.0, 4)])) == [0.25] * 4


def test_tokens_beside_the_first_have_no_gap() -> None:
    assert gaps_s(trace([(1.0, 3)])) == []
    assert gaps_s(trace([(1.0, 3), (2.0, 1)])) == [1.0]


@pytest.mark.parametrize("batching", [[1] * 12, [3] * 4, [12], [5, 7]])
def test_batching_hides_no_time(batching: list[int]) -> None:
    arrivals, at_s = [(0.0, 1)], 0.0
    for num_tokens in batching:
        at_s += 0.1 * num_tokens
        arrivals.append((at_s, num_tokens))
    assert gaps_s(trace(arrivals)) == pytest.approx([0.1] * 12)


def test_percentiles_interpolate() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([0.0, 100.0], 0.95) == pytest.approx(95.0)
    assert percentile([7.0], 0.95) == 7.0
    assert quantiles([3.0, 1.0, 2.0]).p50 == 2.0
    assert quantiles([3.0, 1.0, 2.0]).p95 == pytest.approx(2.9)
    assert quantiles([]) == Quantiles(p50=None, p95=None)


def test_figures_of_a_run() -> None:
    short = trace([(1.0, 1), (2.0, 1)], prompt=SHORT_PROMPT_TOKENS - 1, cached=5)
    long = trace([(3.0, 1), (5.0, 1)], sent_s=0.5, prompt=SHORT_PROMPT_TOKENS, cached=7)
    figures = figures_of([short, long], peak_rss_bytes=9)
    assert (figures.wall_s, figures.out_tok_s) == (5.0, 0.8)
    assert figures.ttft_s.p50 == 1.75
    assert figures.short_ttft_s.p50 == 1.0
    assert figures.itl_s.p50 == 1.5
    assert (figures.cached_tokens, figures.peak_rss_bytes) == (12, 9)


def run_of(wall_s: float, cached_tokens: int) -> Figures:
    nothing = Quantiles(p50=None, p95=None)
    return Figures(
        wall_s=wall_s,
        out_tok_s=10.0,
        ttft_s=Quantiles(p50=wall_s / 2, p95=wall_s),
        short_ttft_s=nothing,
        itl_s=nothing,
        cached_tokens=cached_tokens,
        peak_rss_bytes=100,
    )


def test_report_of_one_run_has_exactly_these_keys() -> None:
    assert report("w3", [run_of(2.0, 8)], {"cpu": "x"}) == {
        "workload": "w3",
        "wall_s": 2.0,
        "out_tok_s": 10.0,
        "ttft_s": {"p50": 1.0, "p95": 2.0},
        "short_ttft_s": {"p50": None, "p95": None},
        "itl_s": {"p50": None, "p95": None},
        "cached_tokens": 8,
        "peak_rss_bytes": 100,
        "machine": {"cpu": "x"},
    }


def test_report_of_several_runs_is_medians_and_ranges() -> None:
    value = report("w3", [run_of(2.0, 8), run_of(5.0, 9), run_of(3.0, 4)], {})
    assert (value["wall_s"], value["cached_tokens"]) == (3.0, 8)
    assert value["runs"]["num_runs"] == 3
    assert (value["runs"]["lowest"]["wall_s"], value["runs"]["highest"]["wall_s"]) == (2.0, 5.0)
    assert value["runs"]["lowest"]["ttft_s"] == {"p50": 1.0, "p95": 2.0}
    assert value["runs"]["highest"]["short_ttft_s"] == {"p50": None, "p95": None}
