"""A scheduler of a few lines, for tests: opens rows, deals out slots at random, makes plans."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gpu_worker.engine import Engine
from gpu_worker.model_engine import ModelEngine
from protos.plan import NOT_SCORED, BatchPlan, LogprobColumns, NewRow, Remap, SamplingParams

GREEDY = SamplingParams()


@dataclass(slots=True)
class Row:
    """What the driver knows of one row."""

    row: int
    slots: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler knows of a row's tokens and their end when it opens the row."""

    prompt: Sequence[int]
    output: Sequence[int] = ()
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One row's part of a step."""

    row: Row
    tokens: Sequence[int]
    samples: bool = True
    drafts: Sequence[int] = ()
    """Guesses at what it samples."""
    next_ids: Sequence[int] = ()
    """[tokens] the token behind each whose log probability is wanted, -1: none; empty: nowhere."""

    @property
    def inputs(self) -> list[int]:
        return [*self.tokens, *self.drafts]


class Driver:
    """Runs plans on an engine."""

    def __init__(self, engine: Engine, *, seed: int = 0, page_size: int = 1) -> None:
        self.engine = engine
        self.step_id = 0
        self.logprobs: LogprobColumns | None = None
        """Of the latest step."""
        self.scores: LogprobColumns | None = None
        """Of prompts in the latest step."""
        self.num_sampled: list[int] = []
        """Tokens of each sampling part of the latest step."""
        self._page_size = page_size
        num_slots = engine.hello().num_slots
        pages = list(range(1, num_slots // page_size + 1))
        random.Random(seed).shuffle(pages)
        self._pages = pages
        self._pending: list[NewRow] = []
        self._freed: list[int] = []
        self._remaps: list[Remap] = []
        self._spare: dict[int, list[int]] = {}

    def open(
        self,
        row: int,
        prefix: Sequence[int] = (),
        sampling: SamplingParams = GREEDY,
        known: Known | None = None,
    ) -> Row:
        """A new row behind a prefix that lies in these slots; told with its first step."""
        known = known or Known(prompt=())
        context = array("i", [*known.prompt, *known.output] if sampling.needs_context else ())
        self._pending.append(
            NewRow(
                row=row,
                prefix_slots=array("i", prefix),
                sampling=sampling,
                num_prompt=len(known.prompt),
                context_ids=context,
                suppressed_ids=known.stop_ids if sampling.min_tokens else (),
            )
        )
        return Row(row, list(prefix))

    def free(self, row: Row) -> None:
        """Gives a row back with the next step; its slots are not used again."""
        self._freed.append(row.row)
        self._spare.pop(row.row, None)

    def remap(self, row: Row, start: int, slots: Sequence[int]) -> None:
        """Moves a part of a row to other slots with the next step."""
        row.slots[start : start + len(slots)] = slots
        self._remaps.append(Remap(row=row.row, start=start, slots=array("i", slots)))

    def plan(self, *parts: Part) -> BatchPlan:
        """The next plan."""
        self.step_id += 1
        in_step = {part.row.row for part in parts}
        first_seen = tuple(new for new in self._pending if new.row in in_step)
        outs = [self._take(part.row.row, len(part.inputs)) for part in parts]
        is_scored = any(part.next_ids for part in parts)
        plan = BatchPlan(
            step_id=self.step_id,
            rows=array("i", [part.row.row for part in parts]),
            prefix_lens=array("i", [len(part.row.slots) for part in parts]),
            extend_lens=array("i", [len(part.inputs) for part in parts]),
            samples=bytes(part.samples + len(part.drafts) for part in parts),
            input_ids=array("i", [token for part in parts for token in part.inputs]),
            out_slots=array("i", [slot for out in outs for slot in out]),
            new_rows=first_seen,
            remaps=tuple(self._remaps),
            freed_rows=array("i", self._freed),
            next_ids=array(
                "i",
                [
                    token
                    for part in parts
                    for token in part.next_ids or [NOT_SCORED] * len(part.inputs)
                ]
                if is_scored
                else (),
            ),
        )
        self._pending = [new for new in self._pending if new.row not in in_step]
        self._remaps, self._freed = [], []
        for part, out in zip(parts, outs, strict=True):
            part.row.slots += out
        return plan

    def step(self, *parts: Part) -> list[int]:
        """Executes a step; the sampled tokens, row after row."""
        result = self.engine.begin(self.plan(*parts)).result()
        sampling = [part for part in parts if part.samples]
        self.num_sampled = list(result.num_sampled or b"\1" * len(sampling))
        for part, num_sampled in zip(sampling, self.num_sampled, strict=True):
            refused = len(part.drafts) + 1 - num_sampled
            if refused:
                self._spare[part.row.row] = part.row.slots[len(part.row.slots) - refused :]
                del part.row.slots[len(part.row.slots) - refused :]
        self.logprobs, self.scores = result.logprobs, result.prompt_logprobs
        return list(result.token_ids)

    def logits(self, *parts: Part) -> torch.Tensor:
        """Executes a step without sampling; [rows that would sample or are scored, vocab]."""
        assert isinstance(self.engine, ModelEngine)
        return torch.from_numpy(self.engine.forward(self.plan(*parts))[1]).clone()

    def generate(
        self, row: Row, prompt: Sequence[int], count: int, chunk: int = 1 << 30
    ) -> list[int]:
        """Prefills in chunks, then decodes alone, feeding tokens from the step before."""
        out: list[int] = []
        for start in range(0, len(prompt), chunk):
            piece = prompt[start : start + chunk]
            out = self.step(Part(row, piece, samples=start + chunk >= len(prompt)))
        while len(out) < count:
            out += self.step(Part(row, [-1]))
        return out

    def _take(self, row: int, count: int) -> list[int]:
        spare = self._spare.setdefault(row, [])
        while len(spare) < count:
            first = self._pages.pop() * self._page_size
            spare += range(first, first + self._page_size)
        taken, self._spare[row] = spare[:count], spare[count:]
        return taken
