"""All outputs of a request, from its checked value to the last piece; the same for every reply.

The way of a request: open its id, wait for a model, tokenise, fit, submit once for each choice,
turn tokens into text, close.  Whatever happens, including the client's leaving, it is closed.

Each choice is a request of its own for the scheduler, where the others find the first one's
prompt in the cache; for the client all of them have one id.  When one fails, all do.
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from protos.errors import DeadlineExceeded, InvalidRequest
from tokenizer_svc.chat.asked import parser_for, parser_rules, with_demanded_call
from tokenizer_svc.chat.output_parser import ParserRules
from tokenizer_svc.constraints.compiler import ConstraintCompiler
from tokenizer_svc.fit import checked_ids, fit_to_model, stop_rules
from tokenizer_svc.generate import Finish, Piece, RunningOutput
from tokenizer_svc.generation_request import GenerationRequest, TextPrompt
from tokenizer_svc.live_request import LiveRequest, Submission, any_changed
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.served_model import ServedModel
from tokenizer_svc.text_output import StopRules, TextOutput
from tokenizer_svc.tokenizer_pool import TokenizerPool

AWAY_WAIT_S = 10.0
"""How long a new request waits for a scheduler and a worker that are away."""

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The bill of a request."""

    num_prompt_tokens: int
    """Once, however many choices there are."""
    num_output_tokens: int
    """Of all choices, those that best_of dropped among them."""
    num_cached_tokens: int
    """Of choice 0, which is the first to ask for the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePiece:
    """A piece of one choice."""

    choice: int
    """From 0."""
    piece: Piece
    usage: Usage | None = None
    """Set in the last piece of all, and only there."""


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

    def pieces(
        self, request: GenerationRequest, *, deadline_s: float | None
    ) -> AsyncGenerator[ChoicePiece, None]:
        """The pieces of all choices as they come; `deadline_s` is on the event loop's clock.

        With best_of above n they come at the end, likeliest choice first.  Close it
        (contextlib.aclosing) to cancel.

        Raises:
            RadixdError: refused, or ended without a result.
        """
        if request.best_of > request.n:
            return self._likeliest(request, deadline_s)
        return self._computed(request, deadline_s)

    async def _likeliest(
        self, request: GenerationRequest, deadline_s: float | None
    ) -> AsyncGenerator[ChoicePiece, None]:
        async with aclosing(self._computed(request, deadline_s)) as computed:
            for piece in likeliest([piece async for piece in computed], request):
                yield piece

    async def _computed(
        self, request: GenerationRequest, deadline_s: float | None
    ) -> AsyncGenerator[ChoicePiece, None]:
        """Of all best_of choices."""
        lives = self._live.open_all(request.request_id, request.best_of)
        try:
            prepared = await self._prepared(lives[0], request, deadline_s)
            running = {
                choice: self._started(choice, lives, prepared, request)
                for choice in range(len(lives))
            }
            finishes: dict[int, Finish] = {}
            while running:
                await any_changed([output.live for output in running.values()])
                for choice, output in list(running.items()):
                    piece = output.take()
                    if piece is None:
                        continue
                    if piece.finish is not None:
                        del running[choice]
                        finishes[choice] = piece.finish
                    usage = None if running else _usage(finishes)
                    yield ChoicePiece(choice=choice, piece=piece, usage=usage)
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
                request = await with_demanded_call(request, parser, tokenizer)
                request = await self._constrained(request, model)
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
        self, request: GenerationRequest, model: ServedModel
    ) -> GenerationRequest:
        if request.constraint is None:
            return request
        try:
            grammar = await self._constraints.grammar(request.constraint, model)
        except InvalidRequest as error:
            if request.constraint.kind != "lark":
                raise
            # That of the calls it demands: no client wrote it, but the schemas in it.
            raise InvalidRequest(f"{request.prompt.field}.tools", error.message) from None
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
            shown_tokens=() if asked is None else tokenizer.chat_format.markers,
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


def _usage(finishes: Mapping[int, Finish]) -> Usage:
    return Usage(
        num_prompt_tokens=finishes[0].num_prompt_tokens,
        num_output_tokens=sum(finish.num_output_tokens for finish in finishes.values()),
        num_cached_tokens=finishes[0].num_cached_tokens,
    )
