"""A model without weights: what it says is a hash of what it reads.

Next tokens and log probabilities are pure functions of the context, and of whatever else may
matter to a real sampler, so that a reference is one loop and any mistake shows.  Not here: rows,
slots, plans.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from protos.plan import LogprobColumns, SamplingParams
from radixd.chassis.grammars import Grammars, Matcher, allowed_ids
from radixd.chassis.vocabulary import fake_vocabulary

SCRIPT_TOKEN = 258
"""Opens a script: the tokens up to GO_TOKEN are what the model says, then end of sequence."""
GO_TOKEN = 259
PERIOD = 6
LEAST_LOGIT = -95


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a row knows of its tokens besides their KV."""

    history: Sequence[int] = ()
    """Every token of the row, where penalties need them; else empty."""
    num_prompt: int = 0
    suppressed_ids: Collection[int] = ()
    """Not to be sampled now."""
    allowed_ids: Collection[int] | None = None
    """What a grammar lets follow; None: anything.  It is above suppression."""

    @property
    def barred_ids(self) -> Collection[int]:
        """Not to be sampled, as far as a grammar leaves anything else."""
        allowed = self.allowed_ids
        if allowed is not None and all(token in self.suppressed_ids for token in allowed):
            return ()
        return self.suppressed_ids


_FREE = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """Next token as a pure function of the context, and of (seed, position) when it samples."""

    vocab_size: int = 264
    eos_token_ids: tuple[int, ...] = (257,)
    eos_every: int = 0
    """On average one token in so many is the first end-of-sequence token; 0: none."""
    surprise_every: int = 0
    """On average one token in so many is new, and the others say again what was said PERIOD tokens
    before, as a text that is edited does; 0: all are new."""

    def next_token(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sampling: SamplingParams,
        constraints: Constraints = _FREE,
    ) -> int:
        """The token after a context, given as read back from the pool.

        With penalties it depends on them, the history and where its output begins as well.  A
        suppressed token gives way to the next one that may be said; scripts feel no penalties.
        With a grammar it is one of the printable tokens and ends that may follow, if there are any.
        Each token has a logit one below that of the one it gives way to, and none is below
        LEAST_LOGIT; so a bias of 100 forces a token and one of -100 bans it.
        """
        barred, allowed = constraints.barred_ids, constraints.allowed_ids
        liked = self._liked(tokens, positions, sampling, constraints)
        if not sampling.logit_bias:
            return next((token for token in liked if token not in barred), 0)
        logits: dict[int, float] = {}
        for rank, token in enumerate(liked):
            logits.setdefault(token, max(-rank, LEAST_LOGIT))
        for token, bias in sampling.logit_bias:
            if allowed is not None and token not in allowed:
                continue
            logits[token] = logits.get(token, LEAST_LOGIT) + bias
        free = (token for token in logits if token not in barred)
        return max(free, key=logits.__getitem__, default=0)

    def _liked(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sampling: SamplingParams,
        constraints: Constraints,
    ) -> Iterator[int]:
        """Tokens that may follow, the likeliest first."""
        allowed = constraints.allowed_ids
        scripted = self._scripted(tokens)
        if scripted is not None and (allowed is None or scripted in allowed):
            yield scripted
        state = blake2b(array("i", tokens).tobytes(), digest_size=8)
        state.update(array("i", positions).tobytes())
        if sampling.temperature > 0:
            drawn = (
                f"SamplingParams(temperature={sampling.temperature}, top_k={sampling.top_k}, "
                f"top_p={sampling.top_p}, min_p={sampling.min_p}, seed={sampling.seed})"
            )
            state.update(f"{sampling.seed} {len(tokens)} {drawn}".encode())
        if sampling.has_penalties:
            state.update(_penalties(sampling, constraints))
        value = int.from_bytes(state.digest(), "little")
        if allowed is not None:
            yield from self._rotated(allowed, value)
            return
        if self.eos_every and value % self.eos_every == 0:
            yield self.eos_token_ids[0]
        value //= max(1, self.eos_every)
        if self.surprise_every and len(tokens) >= PERIOD and value % self.surprise_every:
            again = tokens[-PERIOD]
            if 0 <= again < self.vocab_size:
                yield again
        first, count = (32, 95) if self.vocab_size > 256 else (0, self.vocab_size)
        for step in range(count):  # printable, so that people can read along
            yield first + (value + step) % count

    def _rotated(self, allowed: Collection[int], value: int) -> Iterator[int]:
        ends = self.eos_token_ids
        plain = [token for token in allowed if 32 <= token < 127 or token in ends]
        others = [token for token in allowed if token not in plain]
        for tokens in (plain, others):
            for step in range(len(tokens)):
                yield tokens[(value + step) % len(tokens)]

    def logprobs(
        self, tokens: Sequence[int], positions: Sequence[int], token_id: int, num_top: int
    ) -> LogprobColumns:
        """Of one token after a context, with `num_top` alternatives; the raw distribution, so
        sampling plays no part.

        The hash of the context gives the likeliest token and its log probability; each id after it
        (around the vocabulary) is a hundredth less likely.
        """
        state = blake2b(array("i", tokens).tobytes(), digest_size=8)
        state.update(array("i", positions).tobytes())
        value = int.from_bytes(state.digest(), "big")
        best, first = value % self.vocab_size, value // self.vocab_size % 1000 + 1
        ranks = range(num_top)
        return LogprobColumns(
            chosen=array("f", [-(first + (token_id - best) % self.vocab_size) / 100]),
            top_ids=array("i", [(best + rank) % self.vocab_size for rank in ranks]),
            top_logprobs=array("f", [-(first + rank) / 100 for rank in ranks]),
        )

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
        *,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
    ) -> list[int]:
        """The reference: what any scheduler must make this model say."""
        stops = {*stop_token_ids, *(() if ignore_eos else self.eos_token_ids)}
        context = list(prompt)
        matcher = self._matcher(sampling.grammar) if sampling.grammar else None
        while len(context) - len(prompt) < max_tokens:
            is_early = len(context) - len(prompt) < sampling.min_tokens
            constraints = Constraints(
                history=context if sampling.needs_context else (),
                num_prompt=len(prompt),
                suppressed_ids=stops if is_early else (),
                allowed_ids=None if matcher is None else allowed_ids(matcher.mask()),
            )
            token = self.next_token(context, range(len(context)), sampling, constraints)
            context.append(token)
            if matcher is not None:
                matcher.take((token,))
            if token in stops:
                break
        return context[len(prompt) :]

    def generate_logprobs(
        self, prompt: Sequence[int], output: Sequence[int], num_top: int
    ) -> LogprobColumns:
        """The reference for log probabilities of an output: of all its tokens, one after the
        other."""
        context = list(prompt)
        all_of_them = no_logprobs()
        for token_id in output:
            extend(all_of_them, self.logprobs(context, range(len(context)), token_id, num_top))
            context.append(token_id)
        return all_of_them

    def score_prompt(self, prompt: Sequence[int], num_top: int) -> LogprobColumns:
        """The reference for log probabilities of a prompt: of all its tokens but the first."""
        return self.generate_logprobs(prompt[:1], prompt[1:], num_top)

    def _matcher(self, grammar: str) -> Matcher:
        return Grammars(
            fake_vocabulary(), vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids
        ).matcher(grammar)

    def _scripted(self, tokens: Sequence[int]) -> int | None:
        if self.vocab_size <= GO_TOKEN or SCRIPT_TOKEN not in tokens or GO_TOKEN not in tokens:
            return None
        start, go = tokens.index(SCRIPT_TOKEN) + 1, tokens.index(GO_TOKEN)
        said = start + len(tokens) - go - 1
        return tokens[said] if said < go else self.eos_token_ids[0]


def no_logprobs() -> LogprobColumns:
    """Empty columns, to be extended."""
    return LogprobColumns(chosen=array("f"), top_ids=array("i"), top_logprobs=array("f"))


def extend(columns: LogprobColumns, more: LogprobColumns) -> None:
    """Appends the log probabilities of further tokens."""
    columns.chosen.extend(more.chosen)
    columns.top_ids.extend(more.top_ids)
    columns.top_logprobs.extend(more.top_logprobs)


def _penalties(sampling: SamplingParams, constraints: Constraints) -> bytes:
    # As float32, which is how they travel: the reference then says the same on both sides.
    strengths = array(
        "f", (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    )
    ids = array("i", (constraints.num_prompt, *constraints.history))
    return strengths.tobytes() + ids.tobytes()
