"""Drives the core against the slot-true fake worker, checking the books after every call and what
lies in the slots after every step."""

from array import array
from collections import deque
from dataclasses import replace

from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.fake_model import extend, no_logprobs
from protos.plan import BatchPlan, Envelope, LogprobColumns, SamplingParams
from protos.wire import decode, encode
from scheduler_svc.core import invariants
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending, Output, Submission
from scheduler_svc.core.scheduler import Scheduler
from tests.scheduler_svc.core import contents, sharing


class Bench:
    """A scheduler, a fake worker, and everything that came out so far.

    N = num_slots, p = page_size, c = chunk_size, r = max_running, L = max_length, s = tokens of a
    stem at least, 0: the worker wants none.
    """

    def __init__(
        self, *, N=256, p=1, c=8, r=4, L=256, s=0, model=None, depth=2, wire=False, **config
    ):
        config.setdefault("max_batch_tokens", max(4 * c, r))
        config.setdefault("chunk_size", c)
        self.model = model or FakeModel()
        self.config = SchedulerConfig(page_size=p, max_running=r, pipeline_depth=depth, **config)
        self.engine = FakeEngine(self.model, num_slots=N, max_rows=max(r, 1), max_length=L)
        self.least_stem = s
        self.core = Scheduler(self.config, self.hello())
        self.sent: deque[BatchPlan] = deque()
        self.plans: list[BatchPlan] = []
        self.tokens: dict[str, list[int]] = {}
        self.endings: dict[str, Output] = {}
        self.cached: dict[str, int] = {}
        self.started: list[str] = []
        self.scores: dict[str, LogprobColumns] = {}
        """Log probabilities of prompts, of requests that asked."""
        self.num_to_score: dict[str, int] = {}
        self.num_top: dict[str, int] = {}
        self.now_ns = 0
        self.wire = wire

    def hello(self):
        return replace(self.engine.hello(), least_stem_tokens=self.least_stem)

    def submit(self, request_id, prompt, max_tokens=5, **fields):
        sampling = fields.pop("sampling", SamplingParams())
        resume = fields.pop("resume_output_ids", None)
        submission = Submission(
            request_id=request_id,
            prompt_ids=array("i", prompt),
            max_tokens=max_tokens,
            sampling=sampling,
            resume_output_ids=None if resume is None else array("i", resume),
            **fields,
        )
        self.endings.pop(request_id, None)
        self.tokens[request_id] = []
        if sampling.prompt_logprobs >= 0:
            self.scores[request_id] = no_logprobs()
            self.num_to_score[request_id] = len(prompt) - 1
            self.num_top[request_id] = sampling.prompt_logprobs
        self.take(self.core.submit(submission, self.now_ns))
        return self

    def cancel(self, request_id):
        self.take(self.core.cancel(request_id, self.now_ns))

    def take(self, outputs):
        invariants.check(self.core)
        for output in outputs:
            assert output.request_id not in self.endings, f"news of an ended request: {output}"
            self.take_scores(output)
            self.tokens[output.request_id].extend(output.token_ids)
            if output.token_ids or output.ending:
                self.cached[output.request_id] = output.cached_tokens
            if output.ending is not None:
                self.endings[output.request_id] = output

    def take_scores(self, output):
        """Of the next tokens of the prompt; complete with the first token of the output."""
        name = output.request_id
        if output.prompt_logprobs is not None:
            assert output.prompt_logprobs.chosen
            extend(self.scores[name], output.prompt_logprobs)
        if output.token_ids and name in self.scores:
            assert len(self.scores[name].chosen) == self.num_to_score[name]

    def schedule(self):
        """One call of schedule; True when it produced a plan."""
        step = self.core.schedule(self.now_ns)
        if step.plan is None and not step.outputs:
            return False  # the books are looked at with the next news
        self.take(step.outputs)
        if step.plan is None:
            return False
        plan = step.plan
        sharing.check_complete(self.core, plan)
        if self.wire:
            plan = decode(encode(Envelope(epoch=1, message=plan))).message
            assert plan == step.plan
        self.sent.append(plan)
        self.plans.append(plan)
        for request in self.core.state.running.values():
            if request.is_bound and request.request_id not in self.started:
                self.started.append(request.request_id)
        return True

    def answer(self):
        """The worker answers its oldest plan."""
        plan = self.sent.popleft()
        flight = self.core.state.in_flight[0]
        requests = [*flight.decodes, *(row.request for row in flight.rows)]
        named = [(request.row, request) for request in requests]
        result = self.engine.execute(plan)
        sharing.check(self.engine, plan)
        if type(self.engine) is FakeEngine:
            # Its clock is the wall's; what predictions depend on must come out the same again.
            result = replace(result, forward_ns=10_000 + 500 * len(plan.input_ids))
        self.take(self.core.apply(result, self.now_ns))
        contents.check(self.engine, self.core, named)

    def step(self):
        """Schedules up to the depth, then answers one; False when there was nothing at all."""
        self.now_ns += 1000
        planned = False
        while self.schedule():
            planned = True
        if self.sent:
            self.answer()
            return True
        return planned

    def run(self, limit=100_000):
        """Steps until nothing is left."""
        for _ in range(limit):
            if not self.step():
                break
        else:
            raise AssertionError("does not come to an end")
        invariants.check_idle(self.core)
        return self

    def lose_worker(self):
        self.sent.clear()
        self.engine.reset()
        self.take(self.core.lose_worker(self.now_ns))
        self.take(self.core.regain_worker(self.hello(), self.now_ns))

    def ask(self, request_id, prompt, max_tokens=5, **fields):
        """One request to its end, alone; returns its tokens."""
        self.submit(request_id, prompt, max_tokens, **fields)
        self.run()
        return self.tokens[request_id]

    def reference(self, prompt, max_tokens=5, **fields):
        return self.model.generate(prompt, max_tokens, **fields)


OK_ENDINGS = {Ending.STOP, Ending.LENGTH}
