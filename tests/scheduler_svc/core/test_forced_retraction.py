"""Two hundred requests of every kind, cut back at every step, and not a token or a log probability
differs."""

import random

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core.config import TenantPolicy
from scheduler_svc.core.messages import Ending
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from tests.scheduler_svc.core.cut_back import CutBack, Records, float32
from tests.scheduler_svc.core.test_prefix_cache import letters

NUM_REQUESTS = 200
FAR_AWAY_NS = 1 << 60
MODEL = FakeModel(eos_every=30)
TENANTS = {
    "one": TenantPolicy(guaranteed_share=0.3, weight=2.0),
    "two": TenantPolicy(guaranteed_share=0.2),
}

SAMPLINGS = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3},
    {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"min_tokens": 6},
    {"temperature": 1.0, "min_tokens": 4, "repetition_penalty": 0.8},
)

BIASES = ((), ((101, 2.5),), (), ((97, -100.0), (110, -100.0), (122, 100.0)), ())

FIELDS = (
    {},
    {"ignore_eos": True},
    {"stop_token_ids": (101, 110, 115)},
    {"no_store": True},
    {"priority": 5},
    {"priority": -3, "deadline_ns": FAR_AWAY_NS},
    {"tenant": "one"},
    {"tenant": "two", "workload": "chat"},
    {"cache_domain": "public"},
)


def mixed_requests():
    """(name, prompt, max_tokens, fields); half of the prompts share a stem, some are twins."""
    rng = random.Random(7)
    stems = [letters(20, seed=900 + i) for i in range(4)]
    requests = []
    for i in range(NUM_REQUESTS):
        prompt = letters(rng.randint(1, 30), seed=i)
        if i % 2:
            prompt = stems[i % 4] + prompt[:10]
        if i % 10 == 9:
            prompt = requests[-1][1]
        max_tokens = rng.randint(1, 16)
        sampling = dict(SAMPLINGS[i % len(SAMPLINGS)])
        sampling["min_tokens"] = min(sampling.get("min_tokens", 0), max_tokens)
        sampling["seed"] = i if "temperature" in sampling else 0
        sampling["logprobs"] = (-1, 0, 3)[i % 3]
        sampling["prompt_logprobs"] = (-1, -1, 0, 2)[i % 4]
        sampling["logit_bias"] = BIASES[i % len(BIASES)]
        if i % 28 == 3:  # the prompt alone is wanted
            max_tokens = sampling["min_tokens"] = 0
        fields = {**FIELDS[i % len(FIELDS)], "sampling": SamplingParams(**sampling)}
        requests.append((f"x{i}", prompt, max_tokens, fields))
    return requests


REQUESTS = mixed_requests()


def play(bench, requests=REQUESTS):
    """All of them, a few at a time, to their ends."""
    waiting = list(requests)
    while waiting or bench.core.state.live:
        while waiting and len(bench.core.state.live) < 24:
            name, prompt, max_tokens, fields = waiting.pop(0)
            bench.submit(name, prompt, max_tokens, **fields)
        assert bench.step()
    bench.run()
    return bench


def config(page_size, depth):
    return {
        "N": 1024,
        "p": page_size,
        "c": 8,
        "r": 8,
        "L": 64,
        "depth": depth,
        "model": MODEL,
        "tenants": TENANTS,
        "public_domains": ("public",),
    }


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_cut_back_at_every_step(page_size, depth):  # field cases 40, 41, 43, 44
    calm = play(Records(**config(page_size, depth)))
    cut = play(CutBack(**config(page_size, depth)))
    assert calm.core.counters()["retractions"] == 0
    assert cut.core.counters()["retractions"] == cut.num_cuts
    assert cut.num_cuts > len(cut.plans) > NUM_REQUESTS, "somebody is cut back at every step"
    assert len(cut.cut_at) > NUM_REQUESTS - 20, "hardly anybody was spared"
    for name, prompt, max_tokens, fields in REQUESTS:
        assert cut.story(name) == calm.story(name), name
        wanted = MODEL.generate(
            prompt,
            max_tokens,
            fields["sampling"],
            ignore_eos=fields.get("ignore_eos", False),
            stop_token_ids=fields.get("stop_token_ids", ()),
        )
        assert cut.tokens[name] == wanted, name
        assert cut.endings[name].ending in (Ending.STOP, Ending.LENGTH)
        check_logprobs(cut, name, prompt, fields["sampling"])


def check_logprobs(bench, name, prompt, sampling):
    if sampling.prompt_logprobs >= 0:
        assert bench.scores[name] == MODEL.score_prompt(prompt, sampling.prompt_logprobs), name
        assert not bench.first_cached.get(name), name
    num_top = sampling.logprobs if bench.tokens[name] else -1
    if num_top < 0:
        assert name not in bench.chosen
        return
    wanted = MODEL.generate_logprobs(prompt, bench.tokens[name], num_top)
    assert bench.chosen[name] == float32(wanted.chosen), name
    assert bench.top_ids.get(name, []) == list(wanted.top_ids), name
    assert bench.top_logprobs.get(name, []) == float32(wanted.top_logprobs), name


@pytest.mark.parametrize("name", sorted(RETRACTION_POLICIES))
def test_cut_back_by_one_policy_in_a_tight_pool(name):
    """There pages of victims are evicted before they return."""
    tight = {**config(4, 2), "N": 128, "decode_reserve": 0.0, "retraction_policy": name}
    some = REQUESTS[:70]
    cut = play(CutBack(policies=(name,), **tight), some)
    assert cut.num_cuts > len(some)
    assert cut.core.counters()["evicted_tokens"] > 0
    for request_id, prompt, max_tokens, fields in some:
        wanted = MODEL.generate(
            prompt,
            max_tokens,
            fields["sampling"],
            ignore_eos=fields.get("ignore_eos", False),
            stop_token_ids=fields.get("stop_token_ids", ()),
        )
        assert cut.tokens[request_id] == wanted, request_id
        check_logprobs(cut, request_id, prompt, fields["sampling"])


@pytest.mark.parametrize("keep", ["partial", "all", "none"])
def test_cut_back_whatever_is_kept(keep):
    some = REQUESTS[:70]
    cut = play(CutBack(**config(4, 2), retraction_keep=keep), some)
    calm = play(Records(**config(4, 2)), some)
    for name, *_ in some:
        assert cut.story(name) == calm.story(name), name
