"""Prompts that are scored take longer, and streams beside them wait no longer for that."""

from protos.plan import SamplingParams
from scheduler_svc.core.chunking import MOST_SCORED_TOKENS, chunk_of
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.timed_engine import MS, use_timed_engine

SCORED = SamplingParams(prompt_logprobs=0)
SIZES = {"N": 8192, "c": 512, "r": 8, "L": 2048, "max_batch_tokens": 512, "speculation": "off"}


def timed(**config):
    bench = Bench(**SIZES, **config)
    engine = use_timed_engine(
        bench, base_ns=2 * MS, per_row_ns=MS // 10, per_token_ns=MS // 100, per_scored_ns=MS // 10
    )
    return bench, engine


def test_a_step_with_streams_stays_below_the_target():
    bench, engine = timed(itl_target_ms=12.0)
    for i in range(3):
        bench.submit(f"learn{i}", letters(60 + 40 * i, seed=50 + i), 20, sampling=SCORED)
        bench.run()
        bench.submit(f"learn plain{i}", letters(90 + 10 * i, seed=60 + i), 20)
        bench.run()
    for i in range(4):
        bench.submit(f"stream{i}", letters(8, seed=i), 150)
    for _ in range(8):
        bench.step()
    bench.submit("scored", letters(700, seed=9), 2, sampling=SCORED)
    longest, plain_step_ns = 0, 2 * MS + 4 * MS // 10
    while "scored" not in bench.endings:
        bench.step()
        longest = max(longest, engine.last_ns)
    assert 8 * MS < longest < 12.5 * MS, "neither above the target nor far below it"
    assert longest > 3 * plain_step_ns
    bench.run()
    wanted = bench.model.score_prompt(letters(700, seed=9), 0)
    assert bench.scores["scored"] == wanted


def test_a_deadline_counts_what_scoring_takes():
    bench, _ = timed(itl_target_ms=0.0)
    for i in range(8):
        bench.submit(f"learn{i}", letters(60 + 40 * i, seed=50 + i), 2, sampling=SCORED)
    bench.run()
    in_50_ms = {"deadline_ns": bench.now_ns + 50 * MS}
    bench.submit("plain", letters(1000, seed=1), 2, **in_50_ms)
    bench.submit("scored", letters(1000, seed=2), 2, sampling=SCORED, **in_50_ms)
    refused = bench.endings["scored"]
    assert refused.ending is Ending.DEADLINE
    assert "computing its prompt alone takes about" in refused.message
    bench.run()
    assert bench.endings["plain"].ending is Ending.LENGTH


def test_a_chunk_is_no_larger_than_what_a_step_scores():
    bench = Bench(**SIZES)
    bench.submit("scored", letters(700), 2, sampling=SCORED)
    bench.submit("plain", letters(700, seed=1), 2)
    scored, plain = (bench.core.state.live[name] for name in ("scored", "plain"))
    assert chunk_of(bench.config, scored) == MOST_SCORED_TOKENS
    assert chunk_of(bench.config, plain) == 512
    assert chunk_of(SchedulerConfig(chunk_size=16), scored) == 16
