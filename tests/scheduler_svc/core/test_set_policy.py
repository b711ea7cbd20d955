"""Knobs turned while requests run: all or nothing, in force at once, never seen in an answer."""

import random
from dataclasses import replace

import pytest

from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES, SchedulerConfig
from scheduler_svc.core.messages import PinLevel
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

NAMES = [(family, name) for family, names in POLICY_NAMES.items() for name in names]
DEPTHS = pytest.mark.parametrize("depth", [1, 2])

VALUES = {
    **{family: list(names) for family, names in POLICY_NAMES.items()},
    "weight_prefix": [0.0, 1.0, 7.5],
    "weight_age": [0.0, 50.0],
    "weight_cost": [0.0, 0.5, 3.0],
    "most_passes": [1, 5, 64],
    "policy_seed": [0, 7, 2**63 - 1],
    "decode_reserve": [0.0, 0.2, 1.0],
    "length_quantile": [0.01, 0.5, 1.0],
    "chunk_size": [1, 3, 8, 1000],
    "chunk_sizes": [{"chat": 5}, {"chat": 0}, {"code": 2, "own": 9}, {}],
    "max_batch_tokens": [1, 3, 8, 40],
    "prefill_share": [0.01, 0.5, 1.0],
    "itl_target_ms": [0.0, 0.001, 1000.0],
    "high_watermark": [0.5, 0.95, 1.0],
    "low_watermark": [0.0, 0.3, 0.5],
    "pin_budget": [0.0, 0.2, 1.0],
    "max_drafts": [1, 8, 32],
    "speculation_rows": [0, 1, 4],
    "session_ttl_s": [0.0, 1e-6, 600.0],
    "max_sessions": [1, 2, 1024],
}

BAD = [
    *((family, "no such") for family in POLICY_NAMES),
    *((family, "") for family in POLICY_NAMES),
    ("weight_prefix", -1.0),
    ("weight_age", float("nan")),
    ("weight_cost", float("inf")),
    ("most_passes", 0),
    ("policy_seed", -1),
    ("policy_seed", 2**63),
    ("decode_reserve", 1.1),
    ("length_quantile", 0.0),
    ("chunk_size", 0),
    ("chunk_sizes", {"chat": -1}),
    ("max_batch_tokens", 0),
    ("prefill_share", 0.0),
    ("itl_target_ms", -0.1),
    ("high_watermark", 1.01),
    ("high_watermark", float("nan")),
    ("low_watermark", -0.1),
    ("pin_budget", 2.0),
    ("max_drafts", 0),
    ("max_drafts", 33),
    ("speculation_rows", -1),
    ("session_ttl_s", -0.1),
    ("session_ttl_s", float("nan")),
    ("session_ttl_s", 30 * 24 * 3600 + 1.0),
    ("max_sessions", 0),
    ("max_sessions", 100_001),
]


def test_every_knob_is_tried_here():
    assert set(VALUES) == set(CHANGEABLE)
    assert {field for field, _ in BAD} == set(CHANGEABLE)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_every_name_is_accepted_and_serves(family, name):
    assert getattr(SchedulerConfig(**{family: name}), family) == name
    bench = Bench(N=64, r=4, decode_reserve=0.0)
    config = bench.core.set_policy({family: name})
    assert getattr(config, family) == name
    assert bench.core.config == config
    for i in range(6):
        bench.submit(f"x{i}", letters(12, seed=i % 4), 12)
    bench.run()
    for i in range(6):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(12, seed=i % 4), 12)


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_its_field_and_changes_nothing(field, value):
    bench = Bench()
    before = bench.core.config
    for changes in ({field: value}, {"weight_age": 0.5, "most_passes": 3, field: value}):
        with pytest.raises(ValueError, match=f"^{field}: "):
            bench.core.set_policy(changes)
        assert bench.core.config is before
    if field != "chunk_sizes":
        with pytest.raises(ValueError, match=f"^{field}: "):
            SchedulerConfig(**{field: value})


def test_a_wrong_name_is_answered_with_those_there_are():
    for family, names in POLICY_NAMES.items():
        with pytest.raises(ValueError, match=f"^{family}: 'no such' is none of: ") as raised:
            Bench().core.set_policy({family: "no such"})
        assert all(name in str(raised.value) for name in names)


@pytest.mark.parametrize("field", ["page_size", "max_running", "tenants", "no_such_field"])
def test_what_may_not_change_is_refused(field):
    bench = Bench()
    before = bench.core.config
    with pytest.raises(ValueError, match=f"^{field}: cannot be changed"):
        bench.core.set_policy({"most_passes": 3, field: 1})
    assert bench.core.config is before


def test_watermarks_are_judged_together():
    bench = Bench()
    with pytest.raises(ValueError, match=r"^low_watermark: "):
        bench.core.set_policy({"high_watermark": 0.8})  # the low one is 0.9
    config = bench.core.set_policy({"high_watermark": 0.8, "low_watermark": 0.6})
    assert (config.high_watermark, config.low_watermark) == (0.8, 0.6)


def test_no_change_is_no_change():
    bench = Bench()
    before = bench.core.config
    assert bench.core.set_policy({}) == before
    assert bench.core.set_policy({"chunk_sizes": {}}) == before


# --- in force at once -------------------------------------------------------------------------


def test_a_lower_watermark_cuts_back_what_runs():
    bench = Bench(N=100, r=4, decode_reserve=0.0)
    for i in range(4):
        bench.submit(f"x{i}", letters(15, seed=i), 40)
    for _ in range(8):
        bench.step()
    assert not bench.core.counters()["retractions"]
    bench.core.set_policy({"high_watermark": 0.5, "low_watermark": 0.4})
    bench.step()
    assert bench.core.counters()["retractions"] > 0
    bench.run()
    for i in range(4):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(15, seed=i), 40)


def test_another_estimate_counts_from_the_next_admission():
    bench = Bench(N=200, r=8, decode_reserve=0.0)
    for i in range(2):
        bench.submit(f"x{i}", letters(20, seed=i), 60)
    for _ in range(6):
        bench.step()
    bench.core.set_policy({"admission_estimate": "worst_case"})
    bench.submit("late", letters(30, seed=7), 10)  # 2 * 79 + 39 of 190
    bench.step()
    bench.step()
    assert bench.core.num_waiting == 1
    bench.core.set_policy({"admission_estimate": "ratio"})
    bench.step()
    bench.step()
    assert bench.core.num_waiting == 0
    bench.run()


@DEPTHS
@pytest.mark.parametrize("p", [1, 4])
def test_fewer_tokens_a_step_than_rows_in_use(p, depth):
    bench = Bench(N=1024, p=p, r=12, depth=depth, max_batch_tokens=64)
    prompts = {f"x{i}": letters(20, seed=i) for i in range(16)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 30)
    for _ in range(6):
        bench.step()
    assert bench.core.num_running == 12
    bench.core.set_policy({"max_batch_tokens": 4})
    first = len(bench.plans)
    for _ in range(5):
        bench.step()
    assert max(sum(plan.extend_lens) for plan in bench.plans[first:]) <= 4
    bench.core.set_policy({"max_batch_tokens": 64})
    bench.run()
    for name, prompt in prompts.items():
        assert bench.tokens[name] == bench.reference(prompt, 30)


# --- never seen in an answer ------------------------------------------------------------------


@pytest.mark.parametrize("knob", CHANGEABLE)
def test_one_knob_turned_all_the_time(knob):
    turn(random.Random(knob), 2, 1, [knob])


@DEPTHS
@pytest.mark.parametrize("p", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_all_knobs_turned_all_the_time(seed, p, depth):
    turn(random.Random(seed), depth, p, list(CHANGEABLE))


def turn(rng, depth, p, knobs):
    """Requests of all kinds while one of some knobs is turned at every other step."""
    bench = Bench(N=128, p=p, r=6, depth=depth, decode_reserve=0.0, low_watermark=0.0)
    stem, wanted = letters(24), {}
    for i in range(36):
        prompt = stem[: rng.choice([0, 7, 24])] + letters(rng.randint(1, 20), seed=rng.randrange(6))
        name = f"x{i}"
        if rng.random() < 0.1:
            bench.submit(name, prompt, 0, preheat=True, pin=rng.choice(list(PinLevel)))
        else:
            most = rng.randint(1, 25)
            fields = {"priority": rng.randrange(3), "workload": rng.choice(["chat", "own", ""])}
            bench.submit(name, prompt, most, tenant=rng.choice(["", "t"]), **fields)
            wanted[name] = bench.reference(prompt, most)
        for _ in range(rng.randrange(5)):
            if rng.random() < 0.5:
                knob = rng.choice(knobs)
                config = bench.core.set_policy({knob: rng.choice(VALUES[knob])})
                assert bench.core.config == config
            bench.step()
    bench.core.set_policy({"max_batch_tokens": 32})
    bench.core.unpin([], bench.now_ns, every=True)
    bench.run()
    for name, tokens in wanted.items():
        said = bench.tokens[name]
        assert said == tokens[: len(said)], name
        if bench.endings[name].ending.name != "POOL_FULL":
            assert said == tokens, name


def test_the_configuration_is_a_value():
    """What a caller holds does not change under it, and may be compared."""
    bench = Bench(chunk_sizes={"chat": 4})
    before = bench.core.config
    bench.core.set_policy({"chunk_sizes": {"own": 3}, "most_passes": 9})
    assert before == replace(bench.core.config, chunk_sizes={"chat": 4}, most_passes=64)
    assert dict(before.chunk_sizes) == {"chat": 4}
