"""The books as Prometheus metrics: names, values, and a loop that does not answer."""

import re
from concurrent.futures import Future
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from scheduler_svc import answers
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.engine_loop import Ask, EngineLoop
from scheduler_svc.lobby import Lobby
from scheduler_svc.metrics import ScrapeFailed, StatsCollector, metrics_of
from scheduler_svc.worker_link import Attached
from tests.scheduler_svc.shell.scripted import Clock, FakeCore, FakeLink, a_hello

DESIGN = Path(answers.__file__).parent / "DESIGN.md"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def a_loop() -> EngineLoop:
    return EngineLoop(
        FakeLink(num_malformed=3),
        FakeCore,
        config=SchedulerConfig(),
        lobby=Lobby(max_waiting=9),
        now_ns=Clock(),
        wake=lambda: None,
        deliver=lambda delivery: None,
        on_crash=lambda error: None,
    )


class AnsweringEngine:
    """Answers at once, or keeps what is asked of it."""

    def __init__(self) -> None:
        self.loop = a_loop()
        self.asked: list[Ask] = []
        self.hangs = False
        self.is_full = False

    def post(self, command) -> bool:
        if self.is_full:
            return False
        self.asked.append(command)
        if not self.hangs:
            self.answer()
        return True

    def leave(self, front_id: int) -> None:
        raise AssertionError("no front is here")

    def answer(self) -> None:
        for ask in self.asked:
            if not ask.answer.done():
                ask.answer.set_result(ask.question(self.loop))


@pytest.fixture
def engine() -> AnsweringEngine:
    return AnsweringEngine()


@pytest.fixture
def with_core(engine) -> AnsweringEngine:
    engine.loop.link.script.append([Attached(hello=a_hello())])
    engine.loop.turn()
    return engine


def scrape(engine: AnsweringEngine, **options) -> Samples:
    registry = CollectorRegistry()
    registry.register(StatsCollector(engine, **options))
    return samples_of(generate_latest(registry).decode())


def samples_of(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(samples: Samples, name: str) -> dict[str, float]:
    """By the value of its one label."""
    return {labels[0][1]: value for (key, labels), value in samples.items() if key == name}


def test_counters_are_counters_and_gauges_are_what_holds_now(with_core):
    samples = scrape(with_core)
    plain = {name: value for (name, labels), value in samples.items() if not labels}
    expected = {
        "radixd_requests_submitted_total": 9,
        "radixd_prompt_tokens_total": 100,
        "radixd_cached_tokens_total": 40,
        "radixd_worker_messages_malformed_total": 3,
        "radixd_freed_slots_total": 47,
        "radixd_pool_slots": 60,
        "radixd_tree_nodes": 5,
        "radixd_sessions": 6,
        "radixd_session_tokens": 70,
        "radixd_worker_connected": 1,
        "radixd_requests_running": 0,
        "radixd_reuse_rate": 0.41,
        "radixd_density": 4.2,
        "radixd_tokens_per_gib": 43.5,
        "radixd_turnover": 0.44,
        "radixd_recompute_tax": 0.45,
        "radixd_volatility": 0.46,
        "radixd_context_tokens": 48,
        "radixd_pinned_slots": 49,
    }
    assert plain | expected == plain
    assert labelled(samples, "radixd_slots") == {
        "free": 10,
        "private": 11,
        "evictable": 12,
        "locked": 13,
        "in_flight": 14,
    }
    waiting = labelled(samples, "radixd_requests_waiting")
    assert (waiting["twin"], waiting["no_slots"], len(waiting)) == (1, 0, 9)


def test_every_counter_of_the_core_is_exported(with_core):
    with_core.loop.core.counters = lambda: {"new_one": 5}
    assert scrape(with_core)["radixd_new_one_total", ()] == 5


def test_histograms_are_cumulative_and_in_seconds(with_core):
    samples = scrape(with_core)
    assert labelled(samples, "radixd_block_lifetime_seconds_bucket") == {
        "0.001": 5,
        "2.0": 11,
        "+Inf": 18,
    }
    assert samples["radixd_block_lifetime_seconds_count", ()] == 18
    assert samples["radixd_block_lifetime_seconds_sum", ()] == 9.5


def test_tenants_have_a_label(with_core):
    samples = scrape(with_core)
    acme = (("tenant", "acme"),)
    assert samples["radixd_tenant_recomputed_tokens_total", acme] == 59
    assert samples["radixd_tenant_held_slots", acme] == 53
    assert samples["radixd_tenant_retractions_total", acme] == 60
    per_tenant = [key for key in samples if key[0].startswith("radixd_tenant_")]
    assert len(per_tenant) == 10


def test_time_of_steps_by_kind_and_phase(with_core):
    sums = with_core.loop.profile.prompt
    sums.num_steps, sums.num_rows, sums.num_tokens, sums.num_sampled = 61, 62, 63, 64
    sums.busy_ns, sums.products_ns, sums.apply_ns = 6_500_000_000, 660_000_000, 67
    samples = scrape(with_core)
    prompt, decode = (("kind", "prompt"),), (("kind", "decode"),)
    names = ("steps_answered", "step_rows", "step_tokens", "step_sampled_tokens")
    assert [samples[f"radixd_{name}_total", prompt] for name in names] == [61, 62, 63, 64]
    assert samples["radixd_step_busy_seconds_total", prompt] == 6.5
    assert samples["radixd_step_busy_seconds_total", decode] == 0
    phases = {
        labels[1][1]: value
        for (name, labels), value in samples.items()
        if name == "radixd_step_phase_seconds_total" and labels[0] == ("kind", "prompt")
    }
    assert (phases["products"], phases["apply"], phases["attention"]) == (0.66, 6.7e-8, 0)
    assert len(phases) == 7


def test_a_tenant_may_be_called_anything():
    stats = pb.GetStatsResponse()
    stats.tenants['a"b\\c\nd'].running = 1
    stats.tenants[""].running = 2
    registry = CollectorRegistry()

    class Once:
        def collect(self):
            return metrics_of(stats)

    registry.register(Once())
    running = labelled(samples_of(generate_latest(registry).decode()), "radixd_tenant_running")
    assert running == {'a"b\\c\nd': 1, "": 2}


def test_before_the_first_worker_a_scrape_works(engine):
    samples = scrape(engine)
    assert samples["radixd_worker_connected", ()] == 0
    assert samples["radixd_pool_slots", ()] == 0
    assert labelled(samples, "radixd_requests_waiting")["no_worker"] == 0


def test_nothing_is_remembered_between_scrapes(with_core):  # field case 146
    core = with_core.loop.core
    core.num_running = 106
    assert scrape(with_core)["radixd_requests_running", ()] == 106
    core.num_running = 0
    assert scrape(with_core)["radixd_requests_running", ()] == 0


def test_a_hung_loop_is_an_error_and_is_asked_once(engine):
    engine.hangs = True
    collector = StatsCollector(engine, timeout_s=0.01)
    for _ in range(5):
        with pytest.raises(ScrapeFailed, match=r"no answer within 0\.01 s"):
            collector.collect()
    assert len(engine.asked) == 1
    engine.answer()
    engine.hangs = False
    assert list(collector.collect())
    assert len(engine.asked) == 2


def test_a_full_inbox_is_an_error_at_once(engine):
    engine.is_full = True
    collector = StatsCollector(engine, timeout_s=60.0)
    with pytest.raises(ScrapeFailed, match="too many commands"):
        collector.collect()
    engine.is_full = False
    assert list(collector.collect())


def test_a_question_that_fails_fails_the_scrape_and_not_the_next(engine):
    collector = StatsCollector(engine)
    answer: Future[pb.GetStatsResponse] = Future()
    answer.set_exception(AssertionError("books do not balance"))
    collector._pending = answer
    assert list(collector.collect())
    engine.loop.link = None  # what the question looks at is gone
    engine.hangs = True
    with pytest.raises(ScrapeFailed):
        StatsCollector(engine, timeout_s=0.01).collect()


def test_the_names_are_written_down(with_core):
    documented = set(re.findall(r"radixd_[a-z_]+", DESIGN.read_text(encoding="utf-8")))
    counters = {*answers.stats(with_core.loop).counters, "requests_submitted"}
    of_counters = {f"radixd_{name}_total" for name in counters}
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in scrape(with_core)}
    assert len(names) > 20
    assert names - of_counters <= documented
