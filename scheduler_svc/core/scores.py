"""Log probabilities of prompts, as the worker's answers bring them: are they those that were asked
for, and whose are they.

A request that wants them matches no cached prefix further than its prompt is scored, so each
position is computed for it once and scored then, whatever becomes of the request in between.
"""

from __future__ import annotations

from protos.plan import BatchResult, LogprobColumns
from scheduler_svc.core.in_flight import PlanInFlight
from scheduler_svc.core.messages import Output
from scheduler_svc.core.request import Request
from scheduler_svc.core.state import NO_TOKENS


def check_scores(plan: PlanInFlight, result: BatchResult) -> None:
    """Whether a result scores what the plan asked for.

    Raises:
        ValueError: it does not.
    """
    counts = [(row.num_scored, _num_top(row.request)) for row in plan.rows if row.num_scored]
    wanted = sum(n for n, _ in counts), sum(n * k for n, k in counts)
    columns = result.prompt_logprobs
    found = (0, 0) if columns is None else (len(columns.chosen), len(columns.top_ids))
    if wanted != found:
        raise ValueError(
            f"step {result.step_id} scores other tokens of prompts than were asked for"
        )


def scores_by_request(plan: PlanInFlight, result: BatchResult) -> dict[str, LogprobColumns]:
    """Each request's part of the columns, which were checked."""
    columns = result.prompt_logprobs
    if columns is None:
        return {}
    found: dict[str, LogprobColumns] = {}
    at = first = 0
    for row in plan.rows:
        if not row.num_scored:
            continue
        end, last = at + row.num_scored, first + row.num_scored * _num_top(row.request)
        found[row.request.request_id] = LogprobColumns(
            chosen=columns.chosen[at:end],
            top_ids=columns.top_ids[first:last],
            top_logprobs=columns.top_logprobs[first:last],
        )
        at, first = end, last
    return found


def note_scored(request: Request, num_tokens: int) -> None:
    """So many more tokens of its prompt are scored: it may match that much more of the tree."""
    request.num_unscored -= num_tokens
    request.peeked_at = -1


def with_scores(request: Request, scores: LogprobColumns, news: list[Output]) -> list[Output]:
    """The news of a step, and with them what its prompt scored."""
    if news:
        return [news[0]._replace(prompt_logprobs=scores), *news[1:]]
    cached = request.cached_tokens or 0
    return [Output(request.request_id, NO_TOKENS, cached, prompt_logprobs=scores)]


def _num_top(request: Request) -> int:
    return request.submission.sampling.prompt_logprobs
