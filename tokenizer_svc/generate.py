"""One generation from a checked request to its last piece; the same for every kind of reply.

The way of a request: open its id, wait for a model, tokenise, fit, submit, turn tokens into text,
close.  Whatever happens, including the client's leaving, it is closed.
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from protos.errors import DeadlineExceeded, RadixdError
from protos.plan import LogprobColumns
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as public
from tokenizer_svc.fit import checked_ids, fit_to_model, stop_rules
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.live_request import LiveRequest, Outcome, Submission
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.outcomes import finish_reason
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.text_output import TextOutput
from tokenizer_svc.tokenizer_pool import TokenizerPool

AWAY_WAIT_S = 10.0
"""How long a new request waits for a scheduler and a worker that are away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What the last piece says besides its text."""

    reason: int
    """A value of radixd.v1.FinishReason."""
    matched_stop: str | None
    matched_token_id: int | None
    message: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New text and the new ids it came from; the text of some ids may come with a later piece."""

    text: str
    token_ids: "array[int]"
    logprobs: LogprobColumns | None = None
    """Of these ids, where they were asked for."""
    finish: Finish | None = None
    """Set in the last piece, and only there."""


class Generator:
    """Runs generations; holds nothing of them once they are over."""

    def __init__(self, *, pool: TokenizerPool, live: LiveRequests, link: SchedulerLink) -> None:
        self._pool = pool
        self._live = live
        self._link = link

    async def pieces(
        self, request: GenerationRequest, *, deadline_s: float | None
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of one generation; `deadline_s` is on the event loop's clock.

        Close it (contextlib.aclosing) to cancel.

        Raises:
            RadixdError: refused, or ended without a result.
        """
        live = self._live.open(request.request_id)
        try:
            submission, output = await self._prepared(live, request, deadline_s)
            self._link.submit(live, submission)
            # Ids and log probabilities are cut from the log by one range: [num_sent, num_output).
            num_sent = num_output = 0
            finish = None
            while finish is None:
                await live.changed()
                outcome, new_ids = live.outcome, live.take()
                if isinstance(outcome, RadixdError):
                    raise outcome
                text, num_ids = output.feed(new_ids)
                num_output += num_ids  # tokens after a stop are never looked at again
                if output.stopped:
                    self._link.cancel(live, Outcome(ending=internal.ENDING_STOP))
                    finish = _finish(live, output, public.FINISH_REASON_STOP, num_output)
                elif outcome is not None:
                    text += output.finish()
                    finish = _ended(live, output, outcome, request.prompt.field)
                if text or finish is not None:
                    yield Piece(
                        text=text,
                        token_ids=live.token_ids[num_sent:num_output],
                        logprobs=live.log.logprobs(num_sent, num_output),
                        finish=finish,
                    )
                    num_sent = num_output
        finally:
            self._link.close(live)

    async def _prepared(
        self, live: LiveRequest, request: GenerationRequest, deadline_s: float | None
    ) -> tuple[Submission, TextOutput]:
        try:
            async with asyncio.timeout_at(deadline_s):
                until_s = asyncio.get_running_loop().time() + AWAY_WAIT_S
                model = await self._link.wait_ready(live, until_s=until_s)
                ids = await self._pool.encode(request.prompt)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request could start") from None
        tokenizer = self._pool.tokenizer
        prompt_ids = checked_ids(request.prompt, ids, model)
        rules = stop_rules(request, tokenizer.special_ids, model)
        decoder = tokenizer.decoder(
            skip_special_tokens=request.skip_special_tokens, context_ids=prompt_ids
        )
        submission = fit_to_model(request, prompt_ids, model, rules, deadline_s=deadline_s)
        return submission, TextOutput(decoder, rules)


def _ended(live: LiveRequest, output: TextOutput, outcome: Outcome, prompt_field: str) -> Finish:
    num_tokens = len(live.token_ids)
    # A stop text may be complete only now, with the character left unfinished.
    reason = (
        public.FINISH_REASON_STOP
        if output.stopped
        else finish_reason(outcome, num_tokens=num_tokens, prompt_field=prompt_field)
    )
    return _finish(live, output, reason, num_tokens, outcome.message)


def _finish(
    live: LiveRequest, output: TextOutput, reason: int, num_output_tokens: int, message: str = ""
) -> Finish:
    submission = live.submission
    num_prompt_tokens = 0 if submission is None else len(submission.prompt_ids)
    return Finish(
        reason=reason,
        matched_stop=output.matched_text,
        matched_token_id=output.matched_token_id,
        message=message,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=min(live.cached_tokens or 0, num_prompt_tokens),
    )
