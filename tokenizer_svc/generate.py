"""One output of a request: from the tokens that come in to the pieces its client gets.

Waits for nothing: `delivery` calls it when there is news, `choices` sees to it that all is closed.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from protos.errors import RadixdError
from protos.plan import LogprobColumns
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as public
from tokenizer_svc.chat.output_parser import OutputParser
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.live_request import LiveRequest, Outcome
from tokenizer_svc.outcomes import finish_reason
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.text_output import TextOutput
from tokenizer_svc.tokenizers.tokenizer import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What the last piece of an output says besides its text."""

    reason: int
    """A value of radixd.v1.FinishReason."""
    matched_stop: str | None
    matched_token_id: int | None
    message: str
    num_prompt_tokens: int
    num_output_tokens: int
    """Of this output alone."""
    num_cached_tokens: int
    num_reasoning_tokens: int = 0
    """Up to the end of the thoughts, where they came apart from the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New text and the new ids it came from; the text of some ids may come with a later piece."""

    text: str
    token_ids: "array[int]"
    logprobs: LogprobColumns | None = None
    """Of these ids, where they were asked for."""
    prompt_ids: "array[int] | None" = None
    """The prompt, beside its log probabilities."""
    prompt_logprobs: LogprobColumns | None = None
    """Of each prompt token but the first: where they were asked for, in choice 0's first piece."""
    reasoning_text: str = ""
    """What was thought before the answer; not in `text`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that are complete; their text is not in `text`."""
    finish: Finish | None = None
    """Set in the last piece, and only there."""

    @property
    def is_plain(self) -> bool:
        """There is text, and nothing to say besides."""
        return bool(
            self.text
            and self.finish is None
            and self.logprobs is None
            and self.prompt_ids is None
            and not self.reasoning_text
            and not self.tool_calls
        )


class RunningOutput:
    """Turns the news of one live request into pieces."""

    def __init__(
        self,
        live: LiveRequest,
        output: TextOutput,
        *,
        request: GenerationRequest,
        siblings: Sequence[LiveRequest],
        link: SchedulerLink,
        parser: OutputParser | None = None,
    ) -> None:
        """`siblings` are the live requests of all outputs of this request, its own among them.

        Without a parser all of the output is text.
        """
        self.live = live
        self._output = output
        self._request = request
        self._siblings = siblings
        self._link = link
        # Ids and log probabilities are cut from the log by one range: [num_sent, num_output).
        self._num_sent = self._num_output = 0
        self._unsent_text = ""
        self._has_said_prompt = False
        self._parser = parser
        self._unsent_reasoning = ""
        self._num_thinking = 0
        """Tokens up to the end of the thoughts, if there are any."""
        self._unsent_calls: tuple[ToolCall, ...] = ()

    def begin_with(self, text: str) -> None:
        """Puts this before the output's own text; no stop text is looked for in it."""
        self._unsent_text = text + self._unsent_text

    def take(self) -> Piece | None:
        """The next piece, where the news since the last call make one; not after the last.

        Raises:
            RadixdError: it ended without a result.
        """
        outcome, new_ids = self.live.outcome, self.live.take()
        if isinstance(outcome, RadixdError):
            raise outcome
        if self._parser is not None and self._parser.is_thinking:
            new_ids = self._think(new_ids, self._parser)
        text = "" if self._output.stopped else self._fed(new_ids)
        finish = None
        is_stopped = self._output.stopped
        if outcome is not None and not is_stopped:
            text += self._output.finish()
        self._parse(text, is_over=is_stopped or outcome is not None)
        if is_stopped:
            self._link.cancel(self.live, Outcome(ending=internal.ENDING_STOP))
            finish = self._finish(public.FINISH_REASON_STOP)
        elif outcome is not None:
            finish = self._ended(outcome)
        num_unsent = self._num_output - self._num_sent
        has_news = self._unsent_text or self._unsent_reasoning or self._unsent_calls
        has_piece = has_news and num_unsent >= self._request.stream_interval
        return self._piece(finish) if has_piece or finish is not None else None

    def _fed(self, ids: "array[int]") -> str:
        """The text that these tokens bring; those after a stop are never looked at again."""
        text, num_ids = self._output.feed(ids)
        self._num_output += num_ids
        return text

    def _think(self, ids: "array[int]", parser: OutputParser) -> "array[int]":
        """Takes the tokens of thoughts one by one, as they are counted; returns the others."""
        num_taken = 0
        while num_taken < len(ids) and parser.is_thinking and not self._output.stopped:
            self._parse(self._fed(ids[num_taken : num_taken + 1]))
            num_taken += 1
        self._num_thinking += num_taken
        return ids[num_taken:]

    def _parse(self, text: str, *, is_over: bool = False) -> None:
        if self._parser is None:
            self._unsent_text += text
            return
        parsed = [self._parser.feed(text)]
        if is_over:
            parsed.append(self._parser.finish())
        for each in parsed:
            self._unsent_text += each.text
            self._unsent_reasoning += each.reasoning
            self._unsent_calls += each.tool_calls

    def _piece(self, finish: Finish | None) -> Piece:
        start, end = self._num_sent, self._num_output
        text, self._unsent_text = self._unsent_text, ""
        reasoning, self._unsent_reasoning = self._unsent_reasoning, ""
        calls, self._unsent_calls = self._unsent_calls, ()
        self._num_sent = end
        prompt_ids, prompt_logprobs = self._prompt_to_say()
        return Piece(
            text=text,
            token_ids=self.live.token_ids[start:end],
            logprobs=self.live.log.logprobs(start, end),
            prompt_ids=prompt_ids,
            prompt_logprobs=prompt_logprobs,
            reasoning_text=reasoning,
            tool_calls=calls,
            finish=finish,
        )

    def _prompt_to_say(self) -> tuple["array[int] | None", LogprobColumns | None]:
        """The prompt and its log probabilities, once: they are complete before the first token."""
        submission, scores = self.live.submission, self.live.scores
        if self._has_said_prompt or submission is None or scores is None:
            return None, None
        self._has_said_prompt = True
        columns = scores.columns()
        return (None, None) if columns is None else (submission.prompt_ids, columns)

    def _ended(self, outcome: Outcome) -> Finish:
        # A stop text may be complete only now, with the character left unfinished.
        if self._output.stopped:
            return self._finish(public.FINISH_REASON_STOP, outcome.message)
        reason = finish_reason(
            outcome,
            # What any of them produced is a partial result of the request.
            num_tokens=sum(len(live.token_ids) for live in self._siblings),
            prompt_field=self._request.prompt.field,
        )
        return self._finish(reason, outcome.message)

    @property
    def _num_reasoning(self) -> int:
        has_thoughts = self._parser is not None and self._parser.has_thoughts
        return self._num_thinking if has_thoughts else 0

    @property
    def _ended_in_calls(self) -> bool:
        """True where it made calls, and nothing that the client had named ended it."""
        return (
            self._parser is not None
            and self._parser.has_calls
            and self._output.matched_text is None
            and self._output.matched_token_id not in self._request.stop_token_ids
        )

    def _finish(self, reason: int, message: str = "") -> Finish:
        submission = self.live.submission
        num_prompt_tokens = 0 if submission is None else len(submission.prompt_ids)
        if reason == public.FINISH_REASON_STOP and self._ended_in_calls:
            reason = public.FINISH_REASON_TOOL_CALLS
        return Finish(
            reason=reason,
            matched_stop=self._output.matched_text,
            matched_token_id=self._output.matched_token_id,
            message=message,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=self._num_output,
            num_cached_tokens=min(self.live.cached_tokens or 0, num_prompt_tokens),
            num_reasoning_tokens=self._num_reasoning,
        )
