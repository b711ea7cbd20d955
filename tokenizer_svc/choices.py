"""All outputs of a request, from its checked value to the last piece; the same for every reply.

The way of a request: open its id, wait for a model, tokenise, fit, submit once for each choice,
turn tokens into text, close.  Whatever happens, including the client's leaving, it is closed.

Each choice is a request of its own for the scheduler, where the others find the first one's
prompt in the cache; for the client all of them have one id.  When one fails, all do.
"""

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from protos.errors import DeadlineExceeded, InvalidRequest
from tokenizer_svc.chat.asked import call_constraint, parser_for, parser_rules, without_calls
from tokenizer_svc.chat.output_parser import ParserRules
from tokenizer_svc.constraints.compiler import ConstraintCompiler
from tokenizer_svc.delivery import ChoicePiece, Delivery
from tokenizer_svc.fit import checked_ids, fit_to_model, stop_rules
from tokenizer_svc.generate import Piece, RunningOutput
from tokenizer_svc.generation_request import GenerationRequest, TextPrompt
from tokenizer_svc.live_request import LiveRequest, Submission
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.served_model import ServedModel
from tokenizer_svc.sink import Collected, Sink
from tokenizer_svc.text_output import StopRules, TextOutput
from tokenizer_svc.tokenizer_pool import TokenizerPool

AWAY_WAIT_S = 10.0
"""How long a new request waits for a scheduler and a worker that are away."""

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    submission: Submission
    """Choice 0's."""
    rules: StopRules
    parser_rules: ParserRules | None
    """None: all of the outputs is text."""
    echo: str


class Choices:
    """Runs generations; holds nothing of them once they are over."""

    def __init__(
        self,
        *,
        pool: TokenizerPool,
        live: LiveRequests,
        link: SchedulerLink,
        constraints: ConstraintCompiler,
    ) -> None:
        self._pool = pool
        self._constraints = constraints
        self._live = live
        self._link = link

    async def run(
        self, request: GenerationRequest, sink: Sink[ChoicePiece], *, deadline_s: float | None
    ) -> None:
        """Puts the pieces of all choices into the sink as they come, and returns when it has passed
        on the last; `deadline_s` is on the event loop's clock.

        With best_of above n they come at the end, likeliest choice first.  Cancel it to end the
        request.

        Raises:
            RadixdError: refused, ended without a result, or the sink takes no more.
        """
        if request.best_of <= request.n:
            await self._compute(request, sink, deadline_s)
            return
        computed: Collected[ChoicePiece] = Collected()
        await self._compute(request, computed, deadline_s)
        for piece in likeliest(computed.values, request):
            sink.put(piece)
            await sink.ready()

    async def _compute(
        self, request: GenerationRequest, sink: Sink[ChoicePiece], deadline_s: float | None
    ) -> None:
        """All best_of choices."""
        lives = self._live.open_all(request.request_id, request.best_of)
        try:
            prepared = await self._prepared(lives[0], request, deadline_s)
            outputs = [
                self._started(choice, lives, prepared, request) for choice in range(len(lives))
            ]
            await Delivery(outputs, sink).run()
        finally:
            for live in lives:
                self._link.close(live)

    async def _prepared(
        self, live: LiveRequest, request: GenerationRequest, deadline_s: float | None
    ) -> _Prepared:
        tokenizer = self._pool.tokenizer
        try:
            async with asyncio.timeout_at(deadline_s):
                until_s = asyncio.get_running_loop().time() + AWAY_WAIT_S
                model = await self._link.wait_ready(live, until_s=until_s)
                ids = await self._pool.encode(request.prompt)
                prompt_ids = checked_ids(request.prompt, ids, model)
                echo = await self._echo(request, prompt_ids)
                parser = parser_rules(request, tokenizer, prompt_ids)
                request = without_calls(request, tokenizer, vocab_size=model.vocab_size)
                request = await self._constrained(request, parser, model)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request could start") from None
        rules = stop_rules(request, tokenizer.special_ids, model)
        return _Prepared(
            submission=fit_to_model(request, prompt_ids, model, rules, deadline_s=deadline_s),
            rules=rules,
            parser_rules=parser,
            echo=echo,
        )

    async def _constrained(
        self, request: GenerationRequest, parser: ParserRules | None, model: ServedModel
    ) -> GenerationRequest:
        grammar = None
        if request.constraint is not None:
            # Also where a demanded call leaves it no say: a bad form is never passed over.
            grammar = await self._constraints.grammar(request.constraint, model)
        calls = await call_constraint(request, parser, self._pool.tokenizer, grammar)
        if calls is not None:
            try:
                grammar = await self._constraints.grammar(calls, model)
            except InvalidRequest as error:
                # No client wrote it, but the schemas in it.
                raise InvalidRequest(f"{request.prompt.field}.tools", error.message) from None
        if grammar is None:
            return request
        # An end of sequence is drawn where the form is complete: ignored, it would be nothing.
        return replace(
            request, ignore_eos=False, sampling=replace(request.sampling, grammar=grammar)
        )

    async def _echo(self, request: GenerationRequest, prompt_ids: "array[int]") -> str:
        if not request.echo:
            return ""
        if isinstance(request.prompt, TextPrompt):
            return request.prompt.text
        skips = request.skip_special_tokens
        (text,) = await self._pool.decode_all([prompt_ids], skip_special_tokens=skips)
        return text

    def _started(
        self,
        choice: int,
        lives: Sequence[LiveRequest],
        prepared: _Prepared,
        request: GenerationRequest,
    ) -> RunningOutput:
        submission = of_choice(prepared.submission, choice, scored=request.best_of > request.n)
        tokenizer, asked = self._pool.tokenizer, prepared.parser_rules
        decoder = tokenizer.decoder(
            skip_special_tokens=request.skip_special_tokens,
            context_ids=submission.prompt_ids,
            shown_tokens=() if asked is None else asked.markers,
        )
        output = RunningOutput(
            lives[choice],
            TextOutput(decoder, prepared.rules),
            request=request,
            siblings=lives,
            link=self._link,
            parser=parser_for(asked, request.request_id, submission.sampling.seed),
        )
        output.begin_with(prepared.echo)
        self._link.submit(lives[choice], submission)
        return output


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice, in [0, 2**63): the request's own for choice 0.

    For the others Steele, Lea and Flood's SplitMix64 (Fast splittable pseudorandom number
    generators, 2014): output number `choice` of the generator with this seed, less its lowest bit.
    It is a promise: the same request gives the same choices in every release.
    """
    if choice == 0:
        return seed
    mixed = (seed + choice * 0x9E3779B97F4A7C15) & _MASK64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK64
    return (mixed ^ mixed >> 31) >> 1


def of_choice(submission: Submission, choice: int, *, scored: bool) -> Submission:
    """Choice 0's submission as that of another choice; `scored` ones need log probabilities."""
    sampling = submission.sampling
    return replace(
        submission,
        sampling=replace(
            sampling,
            seed=choice_seed(sampling.seed, choice),
            logprobs=max(sampling.logprobs, 0) if scored else sampling.logprobs,
            # The prompt is the same for all: one of them computes it anew and says them.
            prompt_logprobs=sampling.prompt_logprobs if choice == 0 else -1,
        ),
        # Of several answers a session keeps one, as the conversation goes on with one.
        session=submission.session if choice == 0 else "",
    )


def likeliest(pieces: Iterable[ChoicePiece], request: GenerationRequest) -> list[ChoicePiece]:
    """The pieces of the n choices of the highest mean log probability, likeliest first.

    Of equally likely ones the earlier goes first; one without any token goes last.
    """
    by_choice: dict[int, list[Piece]] = {choice: [] for choice in range(request.best_of)}
    usage = None
    for each in pieces:
        by_choice[each.choice].append(each.piece)
        usage = each.usage or usage
    ranked = sorted(by_choice.values(), key=_mean_logprob, reverse=True)[: request.n]
    shown = [
        ChoicePiece(choice=rank, piece=_shown(piece, request))
        for rank, kept in enumerate(ranked)
        for piece in kept
    ]
    # Choice 0 said the prompt's log probabilities, and may not be among the likeliest.
    said = by_choice[0][0]
    first = replace(
        shown[0].piece, prompt_ids=said.prompt_ids, prompt_logprobs=said.prompt_logprobs
    )
    shown[0] = replace(shown[0], piece=first)
    shown[-1] = replace(shown[-1], usage=usage)
    return shown


def _shown(piece: Piece, request: GenerationRequest) -> Piece:
    asked = request.sampling.logprobs >= 0
    return replace(
        piece,
        logprobs=piece.logprobs if asked else None,
        prompt_ids=None,
        prompt_logprobs=None,
    )


def _mean_logprob(pieces: Iterable[Piece]) -> float:
    all_of_them = [p for piece in pieces if piece.logprobs for p in piece.logprobs.chosen]
    return sum(all_of_them) / len(all_of_them) if all_of_them else float("-inf")
