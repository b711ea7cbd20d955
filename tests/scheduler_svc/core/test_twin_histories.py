"""Random histories of requests that are twins of each other, in pools of a few pages.

A row that was cut back and came back on the same row must not be told of pages it no longer has.
"""

import random

import pytest

from scheduler_svc.core.config import TenantPolicy
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench

SEEDS = (934, 1035, 1572, 1602, 1698, *range(16))
"""The first five told the worker of pages that were gone."""


@pytest.mark.parametrize("seed", SEEDS)
def test_twins_that_are_cut_back(seed):
    story = random.Random(seed)
    page_size = story.choice([4, 16])
    shares = {
        "a": TenantPolicy(guaranteed_share=0.5),
        "b": TenantPolicy(guaranteed_share=0.3, most_share=0.4),
    }
    bench = Bench(
        N=page_size * story.choice([8, 12, 16]),
        p=page_size,
        r=story.choice([3, 4, 8]),
        L=page_size * 20,
        c=story.choice([1, page_size, 3 * page_size]),
        depth=story.choice([1, 1, 2]),
        tenants=shares if story.random() < 0.6 else {},
        public_domains=("pub",),
        waiting_order="fcfs",
        admission_estimate=story.choice(["ratio", "quantile"]),
        decode_reserve=0.0,
        retraction_policy=story.choice(list(RETRACTION_POLICIES)),
        retraction_keep=story.choice(["partial", "all", "none"]),
        high_watermark=story.choice([0.8, 1.0]),
        low_watermark=story.choice([0.0, 0.5, 0.8]),
    )
    asked = {}
    for _ in range(300):
        event = story.random()
        if event < 0.4:
            name = f"x{len(asked)}"
            length = story.choice([page_size, 2 * page_size, 3 * page_size, 31])
            prompt = [story.choice([0, 1])] * length + [story.randrange(2)]
            asked[name] = prompt, story.choice([1, 2, 3 * page_size])
            bench.submit(name, *asked[name], tenant=story.choice("abc"), cache_domain="pub")
        elif event < 0.45 and bench.core.state.live:
            bench.cancel(story.choice(list(bench.core.state.live)))
        elif event < 0.5:
            bench.core.set_policy({"max_batch_tokens": story.choice([4, 16, 32])})
        else:
            bench.step()
    bench.run()
    for name, (prompt, max_tokens) in asked.items():
        if bench.endings[name].ending in OK_ENDINGS:
            assert bench.tokens[name] == bench.reference(prompt, max_tokens), name
