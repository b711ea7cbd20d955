"""Random histories: whatever happens, the books balance and every answer is the reference's."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gpu_worker.fake_engine import FakeEngine, FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core import invariants
from scheduler_svc.core.config import POLICY_NAMES, TenantPolicy
from scheduler_svc.core.messages import Ending, PinLevel
from tests.scheduler_svc.core.harness import Bench

# Two tokens: small alphabets share prefixes and break sooner.
MODEL = FakeModel(vocab_size=2, eos_token_ids=(), eos_every=0, surprise_every=6)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24)
TENANTS = {
    "small": TenantPolicy(guaranteed_share=0.2, most_share=0.5, pin_share=0.5),
    "large": TenantPolicy(guaranteed_share=0.5, weight=2.0),
}
POLICIES = st.fixed_dictionaries(
    {
        **{name: st.sampled_from(list(names)) for name, names in POLICY_NAMES.items()},
        "decode_reserve": st.sampled_from([0.0, 0.2, 1.0]),
        "most_passes": st.sampled_from([1, 4, 64]),
        "high_watermark": st.sampled_from([0.8, 0.95, 1.0]),
        "low_watermark": st.sampled_from([0.0, 0.5, 0.8]),
        "prefill_share": st.sampled_from([0.1, 1.0]),
        "max_batch_tokens": st.sampled_from([1, 4, 12]),
        "chunk_size": st.sampled_from([1, 3, 8]),
        "itl_target_ms": st.sampled_from([0.0, 1.0]),
        "pin_budget": st.sampled_from([0.0, 0.5, 1.0]),
        "max_drafts": st.sampled_from([1, 8]),
        "speculation_rows": st.sampled_from([1, 4]),
        "session_ttl_s": st.sampled_from([0.0, 20e-6, 40e-6]),
        "max_sessions": st.sampled_from([1, 3]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Submit, cancel, step, expire, flush, lose the worker; in tiny pools."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        num_slots=st.sampled_from([16, 32, 48, 96]),
        depth=st.sampled_from([1, 2]),
        least_stem=st.sampled_from([0, 1, 5]),
        policies=POLICIES,
    )
    def start(self, page_size, num_slots, depth, least_stem, policies):
        self.bench = Bench(
            N=num_slots,
            p=page_size,
            r=4,
            L=64,
            s=least_stem,
            model=MODEL,
            depth=depth,
            wire=True,
            max_waiting=12,
            tenants=TENANTS,
            public_domains=("public",),
            **policies,
        )
        self.num_submitted = 0
        self.wanted = {}
        self.prompts = {}

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 24),
        seed=st.integers(0, 2),
        no_store=st.booleans(),
        domain=st.sampled_from(["", "public"]),
        tenant=st.sampled_from(["", "small", "large"]),
        priority=st.integers(-1, 1),
        budget_ns=st.one_of(st.none(), st.integers(1000, 60_000)),
        carried=st.integers(0, 3),
        scored=st.sampled_from([-1, -1, 0, 2]),
        biases=st.sampled_from([(), (), ((1, 2.0),), ((0, -100.0),)]),
        session=st.sampled_from(["", "a", "b"]),
    )
    def submit(
        self,
        prompt,
        max_tokens,
        seed,
        no_store,
        domain,
        tenant,
        priority,
        budget_ns,
        carried,
        scored,
        biases,
        session,
    ):
        request_id = f"r{self.num_submitted}"
        self.num_submitted += 1
        sampling = SamplingParams(
            temperature=1.0 if seed else 0.0, seed=seed, prompt_logprobs=scored, logit_bias=biases
        )
        if scored >= 0 and max_tokens == 24:
            max_tokens = 0  # the prompt alone is wanted
        self.prompts[request_id] = prompt
        deadline_ns = None if budget_ns is None else self.bench.now_ns + budget_ns
        wanted = MODEL.generate(prompt, max_tokens, sampling)
        carried = max(0, min(carried, max_tokens - 1))
        self.wanted[request_id] = wanted[carried:]
        self.bench.submit(
            request_id,
            prompt,
            max_tokens,
            sampling=sampling,
            no_store=no_store,
            cache_domain=domain,
            tenant=tenant,
            priority=priority,
            deadline_ns=deadline_ns,
            resume_output_ids=wanted[:carried] or None,
            session="" if no_store else session,
        )

    @rule(
        prompt=PROMPTS,
        pin=st.sampled_from(PinLevel),
        tenant=st.sampled_from(["", "small"]),
        ttl_ns=st.sampled_from([0, 20_000]),
    )
    def preheat(self, prompt, pin, tenant, ttl_ns):
        request_id = f"r{self.num_submitted}"
        self.num_submitted += 1
        self.wanted[request_id] = []
        self.bench.submit(
            request_id, prompt, 0, preheat=True, pin=pin, tenant=tenant, pin_ttl_ns=ttl_ns
        )

    @rule(pick=st.integers(0, 5))
    def unpin(self, pick):
        pins = self.bench.core.list_pins(self.bench.now_ns)
        if pins:
            pin_id = pins[pick % len(pins)].pin_id
            assert self.bench.core.unpin([pin_id], self.bench.now_ns) == ([pin_id], [])

    @rule(name=st.sampled_from("ab"), tenant=st.sampled_from([None, "", "small"]))
    def close_session(self, name, tenant):
        core, now_ns = self.bench.core, self.bench.now_ns
        core.close_session(name, now_ns, tenant=tenant)
        left = [view for view in core.list_sessions(now_ns, tenant) if view.cache_domain == ""]
        assert name not in [view.name for view in left]
        per_tenant = [view.tenant for view in core.list_sessions(now_ns)]
        most = core.config.max_sessions
        assert all(per_tenant.count(each) <= most for each in per_tenant)

    @rule(policies=POLICIES)
    def set_policy(self, policies):
        config = self.bench.core.set_policy(policies)
        assert all(getattr(config, name) == value for name, value in policies.items())

    @rule()
    def ask_why(self):
        core, now_ns = self.bench.core, self.bench.now_ns
        views, _ = core.list_requests(now_ns, 100)
        assert len(views) == len(core.state.live)
        for request_id in core.state.live:
            assert core.explain(request_id, now_ns).summary
        reasons = [view.waiting_reason.name for view in views if view.waiting_reason]
        found = {name: num for name, num in core.waiting_by_reason().items() if num}
        assert found == {name: reasons.count(name) for name in reasons}
        ranks = [core.explain(r.request_id, now_ns).rank for r in core.state.waiting.requests()]
        assert sorted(ranks) == list(range(1, core.num_waiting + 1))
        books, counters = core.tenant_books().values(), core.counters()
        for name in ("prompt_tokens", "computed_tokens", "recomputed_tokens", "retractions"):
            assert sum(getattr(view, name) for view in books) == counters[name], name

    @rule(pick=st.integers(0, 50))
    def cancel(self, pick):
        live = list(self.bench.core.state.live)
        if live:
            request_id = live[pick % len(live)]
            self.bench.cancel(request_id)
            assert self.bench.endings[request_id].ending is Ending.CANCELLED

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps):
        for _ in range(num_steps):
            self.bench.step()

    @rule()
    def schedule(self):
        self.bench.schedule()

    @precondition(lambda self: self.bench.sent)
    @rule()
    def answer(self):
        self.bench.answer()

    @rule()
    def flush(self):
        self.bench.core.flush()
        assert all(not node.pages or node.num_holds for node in self.bench.core.state.tree.nodes())

    @rule()
    def lose_worker(self):
        self.bench.lose_worker()

    @rule(num_slots=st.sampled_from([16, 32, 48]), max_rows=st.sampled_from([1, 4]))
    def exchange_worker(self, num_slots, max_rows):
        self.bench.engine = FakeEngine(MODEL, num_slots=num_slots, max_rows=max_rows, max_length=64)
        self.bench.lose_worker()

    @rule(pick=st.integers(0, 50))
    def retract(self, pick):
        running = list(self.bench.core.state.running.values())
        if running:
            self.bench.core.state.retract(running[pick % len(running)])

    @invariant()
    def books_balance(self):
        if hasattr(self, "bench"):
            invariants.check(self.bench.core)

    @invariant()
    def nothing_in_flight_is_free(self):
        if not hasattr(self, "bench"):
            return
        free = set(self.bench.core.state.pool.free_pages())
        size = self.bench.config.page_size
        for plan in self.bench.sent:
            assert not free & {slot // size for slot in plan.out_slots}

    @invariant()
    def every_answer_is_a_prefix_of_the_reference(self):
        if not hasattr(self, "bench"):
            return
        for request_id, tokens in self.bench.tokens.items():
            assert tokens == self.wanted[request_id][: len(tokens)], request_id

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        self.bench.run()
        assert set(self.bench.endings) == set(self.wanted), "somebody was left waiting"
        for request_id, output in self.bench.endings.items():
            if output.ending in (Ending.STOP, Ending.LENGTH):
                assert self.bench.tokens[request_id] == self.wanted[request_id]
        for request_id, scores in self.bench.scores.items():
            k = self.bench.num_top[request_id]
            wanted = MODEL.score_prompt(self.prompts[request_id], k)
            count = len(scores.chosen)
            assert scores.chosen == wanted.chosen[:count], request_id
            assert scores.top_ids == wanted.top_ids[: count * k], request_id
            if self.bench.endings[request_id].ending in (Ending.STOP, Ending.LENGTH):
                assert count == len(wanted.chosen), request_id


SchedulerMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler = SchedulerMachine.TestCase
