"""What scheduler and worker say to each other, as plain values.

A plan names rows and slots; the worker keeps `row -> slots` and gets only what changed.  Nothing
here knows text, queues, deadlines or tensors.  `protos.wire` turns these values into bytes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

DUMP_SLOT = 0
"""Writes that nobody may read go to this slot; it is never handed out."""

MAX_PAGE_SIZE = 64
"""A worker's pool has this many slots more than `Hello.num_slots`, so that any page size up to
it can skip page 0, the page of the dump slot, without losing a slot."""

MAX_CONTEXT_TOKENS = 4 << 20
"""Longest context anybody serves: a request on its way to the scheduler and a new row of a plan
name each of its tokens, some of them twice, and must fit a message."""

TOKEN_FROM_STEP_BEFORE = -1
"""As an input id: the token that this row sampled in the plan before."""

NOT_SCORED = -1
"""As a next id: no log probability is wanted of what follows this input."""


STEM_FIELDS = 4
"""Numbers that name a stem in `BatchPlan.stems`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one row samples.  Random numbers are a function of (seed, position) alone."""

    temperature: float = 0.0
    """0 is greedy; the other fields then have no effect."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens that reaches this probability."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest."""
    seed: int = 0
    """In [0, 2**63)."""
    min_tokens: int = 0
    """So many output tokens come before one that ends the generation may be sampled."""
    repetition_penalty: float = 1.0
    """Logits of tokens seen in prompt or output: divided by it when positive, else multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token seen in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time the token was seen in the output."""
    logprobs: int = -1
    """Alternatives to report with each token's log probability; -1: none at all.  Of the raw
    distribution: before temperature, penalties and cuts."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its raw logit, in fp32), ids ascending; before penalties,
    suppression and temperature."""
    prompt_logprobs: int = -1
    """Alternatives to report with the log probability of each prompt token but the first; -1: none
    at all.  Of the raw distribution, too."""
    grammar: str = ""
    """What the output must look like, as the worker's constraints take it; empty: anything."""

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that occurred count."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def needs_context(self) -> bool:
        """Whether the sampler must know the tokens before."""
        return self.has_penalties or bool(self.grammar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a worker offers; the scheduler sizes itself from it."""

    instance_id: int
    """Random for each start of the worker.  A new one means that the pool is empty."""
    model_id: str
    model_hash: str
    """Of configuration and weights; part of every prefix namespace."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_slots: int
    """Usable slots: ids 1 to num_slots at page size 1."""
    max_rows: int
    """Rows of the table `row -> slots`: requests that can run at once."""
    max_length: int
    """Longest context of a row, in tokens."""
    kv_dtype: str
    device: str
    kind: str
    """"model" or "fake"."""
    kv_bytes_per_slot: int = 0
    """Over all layers; 0: not known."""
    weights: str = ""
    """How the model's matrices are kept: "float32", "int8", "int4"; empty where there is none."""
    least_stem_tokens: int = 0
    """Tokens that rows must share, beyond what a stem around them covers, in order to be told of in
    `BatchPlan.stems`; 0: stems are not wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A row the worker sees for the first time since it was free."""

    row: int
    prefix_slots: array[int]
    """[prefix_len] slots that already hold this row's prefix."""
    sampling: SamplingParams
    num_prompt: int = 0
    """Tokens of the prompt; what follows them is output."""
    context_ids: array[int] = field(default_factory=lambda: array("i"))
    """[num_tokens] every known token of the row, where `sampling.needs_context`; else empty.  The
    row's state is a function of them, so a row that comes back samples as if never away."""
    suppressed_ids: tuple[int, ...] = ()
    """Token ids that may not be sampled before `sampling.min_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remap:
    """Positions [start, start + len(slots)) of a live row moved to other slots, same content."""

    row: int
    start: int
    slots: array[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step of the worker.  Order of effects: freed_rows, new_rows, remaps, then the step."""

    step_id: int
    """Counts up by one, on through the epochs."""
    rows: array[int]
    """[num_rows] row of each entry; no row twice."""
    prefix_lens: array[int]
    """[num_rows] tokens of the row whose KV is in place before this step."""
    extend_lens: array[int]
    """[num_rows] tokens to compute now, at least 1."""
    samples: bytes
    """[num_rows] after how many of the row's last inputs it samples, at most `extend_len`.

    0: none.  1: after its last input.  n > 1: the last n - 1 inputs are drafts, guesses at what the
    row samples.  A token is sampled after input -n; as long as it equals the next input, another
    one after that input, and so on to the last.  So 1 to n tokens come out, each sampled as if its
    draft had not been there, and the row then holds prefix_len + extend_len - n + (tokens sampled)
    tokens; the slots of the other drafts hold what nobody reads.  (Leviathan et al., Fast inference
    from transformers via speculative decoding, 2023, with drafts that are certain; prompt lookup is
    Saxena's, 2023.)"""
    input_ids: array[int]
    """[sum(extend_lens)] token ids, or TOKEN_FROM_STEP_BEFORE as a row's first."""
    out_slots: array[int]
    """[sum(extend_lens)] where the KV of each input goes; appended to the row's slots."""
    new_rows: tuple[NewRow, ...] = ()
    remaps: tuple[Remap, ...] = ()
    freed_rows: array[int]
    """[n] rows whose requests are gone."""
    next_ids: array[int] = field(default_factory=lambda: array("i"))
    """[sum(extend_lens)], or empty: of each input the token behind it in the prompt, whose log
    probability is wanted, or NOT_SCORED; only of rows with `sampling.prompt_logprobs`."""
    stems: array[int] = field(default_factory=lambda: array("i"))
    """[num_stems * STEM_FIELDS] first entry, number of entries (2 or more), begin, end: these
    neighbouring entries, each of which computes one token, have positions [begin, end) in the same
    slots, and computed before this step.

    From the root on: a stem begins at 0, or where the last one before it ends that covers any of
    its entries and so covers them all.  Facts, not orders: whoever ignores them computes the same.
    Empty unless `Hello.least_stem_tokens` asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobColumns:
    """Log probabilities of tokens that were sampled, or of a prompt; row after row."""

    chosen: array[float]
    """[n], typecode "f": of the tokens themselves."""
    top_ids: array[int]
    """[sum(k)]: each row's likeliest tokens, likeliest first; k is what the row asked for."""
    top_logprobs: array[float]
    """[sum(k)], typecode "f"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """A row that cannot go on, through what its own request asked for."""

    row: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What a step produced."""

    step_id: int
    token_ids: array[int]
    """[sum of what the rows sampled] in plan order."""
    forward_ns: int = 0
    peak_rss_bytes: int = 0
    logprobs: LogprobColumns | None = None
    """An entry for each token of the rows that asked; None when none did."""
    prompt_logprobs: LogprobColumns | None = None
    """An entry for each of the plan's `next_ids` that is not NOT_SCORED; None where none is."""
    num_sampled: bytes = b""
    """[number of sampling rows] how many tokens each sampled; empty where each sampled one."""
    phases_ns: tuple[int, ...] = ()
    """Where the step's time went: products, attention, rest of the forward pass, sampling, rest of
    the worker; empty where nobody measured."""
    row_faults: tuple[RowFault, ...] = ()
    """Rows whose requests are to end as failed; their tokens of this step mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A step, or the worker itself, failed: its pool is to be taken as empty."""

    step_id: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The scheduler's answer to Hello: all rows are free, plans follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A sign of life.  From the scheduler, instance_id is 0."""

    instance_id: int


Message = Hello | Ready | BatchPlan | BatchResult | Fault | Ping


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message and the attachment it belongs to.

    The scheduler draws an epoch at random whenever a worker attaches or is given up; 0 means that
    the worker knows none yet.
    """

    epoch: int
    message: Message
