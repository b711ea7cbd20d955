"""What one `schedule` and the `apply` of its result cost, with many running and waiting."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from math import ceil

from protos.plan import BatchPlan, BatchResult, Hello
from scheduler_svc.bench.scale import NUM_PROMPT, Scale, make_prompts
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us, settle
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.page_need import MOST_TOKENS_EXPECTED
from scheduler_svc.core.radix_node import Namespace, PrefixKey
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.waiting_index import NEW_PER_STEP

STEP_NS = 10_000_000
"""Time that passes from step to step, as told to the core."""

_MAX_TOKENS = 8000

_SLOTS_EACH = {"worst_case": NUM_PROMPT + _MAX_TOKENS, "ratio": NUM_PROMPT + MOST_TOKENS_EXPECTED}
"""Of a running request, as these estimates count them when told to reserve all they may."""

_MOST_STEPS = 20
"""Steps in which all that run are admitted, and some more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What keeps the waiting ones waiting, and how many of everything there are."""

    num_waiting: int
    slots_short: bool
    """Rows are free, and in each step a candidate is looked at that does not fit; else all rows
    are taken and nobody is looked at."""
    num_tree_nodes: int = 0
    estimate: str = "ratio"
    """`ratio`, the default; `worst_case` where a tree of a million idle pages, all of which may be
    evicted, must leave no room for the candidate."""


class Bench:
    """A core with its decodes running and its queue full, ready for timed steps."""

    def __init__(self, setting: Setting, scale: Scale) -> None:
        settle()
        self._now_ns = 0
        self.num_waiting = setting.num_waiting
        self.core = _core(setting, scale)
        prompts = make_prompts(scale.num_running + setting.num_waiting)
        for prompt in prompts[: scale.num_running]:
            self._submit(prompt)
        for _ in range(_MOST_STEPS):
            self.step()
        assert len(self.core.state.decoding) == scale.num_running, self.core.num_running
        _grow_leaves(self.core, setting.num_tree_nodes)
        for prompt in prompts[scale.num_running :]:
            self._submit(prompt)
        self.intake = Stopwatch()
        """The steps in which the newcomers got their places."""
        for _ in range(ceil(setting.num_waiting / NEW_PER_STEP)):
            self.timed_step(self.intake)
        self.step()

    def step(self) -> BatchPlan:
        """One step that nobody times."""
        return self.timed_step(Stopwatch())

    def timed_step(self, watch: Stopwatch) -> BatchPlan:
        """One step, as a lap."""
        self._now_ns += STEP_NS
        watch.start()
        plan = self.core.schedule(self._now_ns).plan
        watch.stop()
        assert plan is not None
        result = BatchResult(
            step_id=plan.step_id, token_ids=array("i", [7] * sum(map(bool, plan.samples)))
        )
        watch.start()
        self.core.apply(result, self._now_ns)
        watch.stop()
        watch.lap()
        return plan

    def check(self, setting: Setting) -> None:
        """What was meant to be measured is what was."""
        counters = self.core.counters()
        assert self.core.num_waiting == setting.num_waiting, self.core.num_waiting
        assert not counters["retractions"], counters
        verdict = self.core.state.verdict
        assert verdict is not None
        assert (verdict.reason.name == "NO_SLOTS") == setting.slots_short, verdict

    def _submit(self, prompt: array[int]) -> None:
        number = self.core.state.counters.submitted
        submission = Submission(
            request_id=f"r{number}", prompt_ids=prompt, max_tokens=_MAX_TOKENS, ignore_eos=True
        )
        refused = self.core.submit(submission, self._now_ns)
        assert not refused, refused


def schedule_apply(setting: Setting, scale: Scale) -> dict[str, float]:
    """µs of a step: `schedule` and `apply` together, without the worker's part."""
    watches = []
    bench: Bench | None = None
    for _ in range(scale.num_repetitions):
        if bench is None or setting.estimate == "ratio":  # whose room lasts for one repetition
            bench = Bench(setting, scale)
        watches.append(watch := Stopwatch())
        for _ in range(scale.num_steps):
            bench.timed_step(watch)
        bench.check(setting)
    return figures_us(watches)


def intake(setting: Setting, scale: Scale) -> dict[str, float]:
    """µs of a step while all that wait have come at once and get their places in the order."""
    return figures_us([Bench(setting, scale).intake for _ in range(scale.num_repetitions)])


def _core(setting: Setting, scale: Scale) -> Scheduler:
    """As many slots as keep those that run, by the estimate, and let nobody in beside them."""
    rows = scale.num_running + (8 if setting.slots_short else 0)
    # Each step of the start takes a slot a stream; what is left then is less than one needs.
    wanted = scale.num_running * (_SLOTS_EACH[setting.estimate] + _MOST_STEPS // 2)
    slots = ceil(wanted / SchedulerConfig().high_watermark)
    hello = Hello(
        instance_id=1,
        model_id="bench",
        model_hash="bench",
        vocab_size=50_000,
        eos_token_ids=(2,),
        num_slots=slots,
        max_rows=rows,
        max_length=100_000,
        kv_dtype="float32",
        device="cpu",
        kind="fake",
    )
    config = SchedulerConfig(
        max_running=rows,
        max_waiting=setting.num_waiting + scale.num_running,
        pipeline_depth=1,
        max_batch_tokens=8192,
        chunk_size=8192,
        admission_estimate=setting.estimate,
        decode_reserve=1.0,
    )
    return Scheduler(config, hello)


def _grow_leaves(core: Scheduler, num_nodes: int) -> None:
    """Leaves of one page each, in a namespace of their own."""
    state = core.state
    namespace = Namespace("others", "", "", "bench", "float32")
    for number in range(num_nodes):
        key = PrefixKey(namespace, array("i", [number]).tobytes())
        state.tree.release(state.tree.insert(key, state.pool.take(1)).lease)
