"""A fake worker whose steps take a known time: for what depends on predicted times.

Not here: the wall clock, which the plain fake worker reports and no test can count on.
"""

from dataclasses import replace

from gpu_worker.fake_engine import FakeEngine
from protos.plan import NOT_SCORED

MS = 1_000_000


class TimedEngine(FakeEngine):
    """Its steps take base + per_row * rows that sample and their drafts + per_token * the other
    tokens + per_scored * those that are scored, by its own word; no time passes."""

    base_ns = per_row_ns = per_token_ns = per_scored_ns = 0
    last_ns = 0
    """Of the step before."""

    def execute(self, plan):
        """See FakeEngine."""
        result = super().execute(plan)
        new = {row.row for row in plan.new_rows}
        columns = zip(plan.rows, plan.extend_lens, plan.samples, strict=True)
        decodes = sum(n for row, n, samples in columns if n == samples and row not in new)
        prefill = sum(plan.extend_lens) - decodes
        spent = self.base_ns + decodes * self.per_row_ns + prefill * self.per_token_ns
        scored = sum(token != NOT_SCORED for token in plan.next_ids)
        self.last_ns = max(1, spent + scored * self.per_scored_ns)
        return replace(result, forward_ns=self.last_ns)


def use_timed_engine(bench, *, base_ns=0, per_row_ns=0, per_token_ns=0, per_scored_ns=0):
    """Exchanges the worker of a bench that has not begun; times in ns."""
    hello = bench.engine.hello()
    engine = TimedEngine(
        bench.model,
        num_slots=hello.num_slots,
        max_rows=hello.max_rows,
        max_length=hello.max_length,
    )
    engine.base_ns, engine.per_row_ns, engine.per_token_ns = base_ns, per_row_ns, per_token_ns
    engine.per_scored_ns = per_scored_ns
    bench.engine = engine
    return engine
