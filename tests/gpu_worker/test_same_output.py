"""Penalties, min_tokens and log probabilities do not depend on what happens to a row: company,
chunks, cached prefixes, retraction.  The same scenarios for the real engine and the fake one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pytest

from gpu_worker.engine import PlanError
from gpu_worker.fake_engine import FakeEngine
from gpu_worker.fake_model import Constraints, FakeModel
from gpu_worker.logprobs import LogprobRecorder
from gpu_worker.model_engine import ModelEngine
from gpu_worker.sampler import sample_token
from protos.plan import LogprobColumns, SamplingParams
from tests.gpu_worker.driver import GREEDY, Driver, Known, Part
from tests.gpu_worker.test_row_sampling import textbook
from tests.gpu_worker.tiny_models import VOCAB, make_engine, make_oracle, random_tokens

NUM_TOP = 3
NUM_TOKENS = 24
STOP_IDS = (2, 5, 33)
PROMPT = random_tokens(19, seed=8)

REPEATING = SamplingParams(repetition_penalty=1.25, logprobs=NUM_TOP)  # field case 43
DRAWN = SamplingParams(temperature=0.75, top_k=40, seed=9, presence_penalty=0.5, logprobs=0)
COUNTED = SamplingParams(frequency_penalty=0.5, min_tokens=6, logprobs=NUM_TOP)
LATE = SamplingParams(temperature=4.0, seed=3, min_tokens=17, logprobs=NUM_TOP)
BIASED = SamplingParams(
    temperature=1.0,
    seed=6,
    logit_bias=((3, 2.5), (7, -100.0), (41, 1.5), (90, 3.0)),
    frequency_penalty=1.5,
    logprobs=NUM_TOP,
)
ALL = [REPEATING, DRAWN, COUNTED, LATE, BIASED]


class Subject(Protocol):
    """An engine and what it must say."""

    @property
    def engine(self) -> ModelEngine | FakeEngine: ...

    def reference(self, params: SamplingParams) -> tuple[list[int], LogprobColumns]:
        """Output after PROMPT, NUM_TOKENS long, and its log probabilities."""
        ...


@dataclass(frozen=True)
class FakeSubject:
    engine: FakeEngine

    def reference(self, params: SamplingParams) -> tuple[list[int], LogprobColumns]:
        model = self.engine.model
        output = model.generate(PROMPT, NUM_TOKENS, params, stop_token_ids=STOP_IDS)
        assert len(output) >= min(NUM_TOKENS, params.min_tokens)
        while len(output) < NUM_TOKENS:  # a worker goes on after stop tokens
            context = PROMPT + output
            history = context if params.needs_context else ()
            constraints = Constraints(history=history, num_prompt=len(PROMPT))
            positions = range(len(context))
            output.append(model.next_token(context, positions, params, constraints))
        return output, model.generate_logprobs(PROMPT, output, params.logprobs)


@dataclass(frozen=True)
class ModelSubject:
    engine: ModelEngine

    def reference(self, params: SamplingParams) -> tuple[list[int], LogprobColumns]:
        driver, recorder = Driver(self.engine), LogprobRecorder()
        output: list[int] = []
        while len(output) < NUM_TOKENS:
            self.engine.reset()
            context = PROMPT + output
            (raw,) = driver.logits(Part(driver.open(0), context)).numpy()
            adjusted = textbook(raw.tolist(), PROMPT, output, params)
            if len(output) < params.min_tokens:
                for stop_id in STOP_IDS:
                    adjusted[stop_id] = -np.inf
            logits = np.array(adjusted, np.float32)
            output.append(sample_token(logits, params, len(context)))
            recorder.add(raw, output[-1], params.logprobs)
        columns = recorder.columns()
        assert columns is not None
        return output, columns


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelEngine:
    oracle = make_oracle(num_attention_heads=6, num_key_value_heads=2, hidden_size=96)
    return make_engine(oracle, tmp_path_factory.mktemp("tiny"), num_slots=4096)


@pytest.fixture(params=["model", "fake"])
def subject(request: pytest.FixtureRequest, tiny: ModelEngine) -> Subject:
    if request.param == "model":
        return ModelSubject(tiny)
    model = FakeModel(vocab_size=VOCAB, eos_token_ids=(2,), eos_every=4)
    return FakeSubject(FakeEngine(model, num_slots=4096, max_rows=16, max_length=512))


class Output:
    """Tokens of one row and their log probabilities, as they come out of steps."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.tokens: list[int] = []
        self.chosen: list[float] = []
        self.top: list[tuple[int, float]] = []

    def is_the(self, reference: tuple[list[int], LogprobColumns]) -> bool:
        """Bit for bit."""
        tokens, columns = reference
        top = list(zip(columns.top_ids, columns.top_logprobs, strict=True))
        return (self.tokens, self.chosen, self.top) == (tokens, list(columns.chosen), top)


def run(driver: Driver, parts: Sequence[Part], outputs: Sequence[Output]) -> None:
    """One step; outputs are those of the parts that sample, in order."""
    tokens = driver.step(*parts)
    columns, at, top_at = driver.logprobs, 0, 0
    counted = zip(outputs, driver.num_sampled, strict=True)
    of_tokens = [output for output, count in counted for _ in range(count)]
    for output, token in zip(of_tokens, tokens, strict=True):
        output.tokens.append(token)
        if output.params.logprobs < 0:
            continue
        assert columns is not None
        output.chosen.append(columns.chosen[at])
        end = top_at + output.params.logprobs
        output.top += zip(
            columns.top_ids[top_at:end], columns.top_logprobs[top_at:end], strict=True
        )
        at, top_at = at + 1, end
    assert columns is None or (at, top_at) == (len(columns.chosen), len(columns.top_ids))


def opened(driver: Driver, row: int, params: SamplingParams, prefix: Sequence[int] = (),
           output: Sequence[int] = ()) -> Part:  # fmt: skip
    """A row's first part: what of prompt and output does not lie in the prefix."""
    known = Known(prompt=PROMPT, output=output, stop_ids=STOP_IDS)
    context = [*PROMPT, *output]
    return Part(driver.open(row, prefix, params, known), context[len(prefix) :])


def decode(driver: Driver, part: Part, output: Output, count: int) -> None:
    for _ in range(count):
        run(driver, [Part(part.row, [-1])], [output])


@pytest.mark.parametrize("params", ALL)
def test_alone(subject: Subject, params: SamplingParams) -> None:
    reference = subject.reference(params)
    subject.engine.reset()
    driver, output = Driver(subject.engine), Output(params)
    part = opened(driver, 0, params)
    run(driver, [part], [output])
    decode(driver, part, output, NUM_TOKENS - 1)
    assert output.is_the(reference)


@pytest.mark.parametrize("params", ALL)
@pytest.mark.parametrize("chunk", [1, 4, 18])
def test_chunks(subject: Subject, params: SamplingParams, chunk: int) -> None:
    """The context is there from the first chunk on; only the last one samples."""
    reference = subject.reference(params)
    subject.engine.reset()
    driver, output = Driver(subject.engine), Output(params)
    whole = opened(driver, 0, params)
    for start in range(0, len(PROMPT), chunk):
        is_last = start + chunk >= len(PROMPT)
        part = Part(whole.row, PROMPT[start : start + chunk], samples=is_last)
        run(driver, [part], [output] if is_last else [])
    decode(driver, whole, output, NUM_TOKENS - 1)
    assert output.is_the(reference)


def test_company_and_cached_prefixes(subject: Subject) -> None:
    # field cases 22, 86
    references = {params: subject.reference(params) for params in ALL}
    subject.engine.reset()
    driver = Driver(subject.engine)
    source = driver.open(15)
    driver.step(Part(source, PROMPT))
    plain = SamplingParams(temperature=1.0, seed=4)
    kinds = [plain, REPEATING, COUNTED, BIASED, DRAWN, LATE, plain, REPEATING]
    parts = [
        opened(driver, row, params, source.slots[: row * 18 // 7])
        for row, params in enumerate(kinds)
    ]
    outputs = [Output(params) for params in kinds]
    run(driver, parts, outputs)
    for _ in range(NUM_TOKENS - 1):
        parts = parts[1:] + parts[:1]
        outputs = outputs[1:] + outputs[:1]
        run(driver, [Part(part.row, [-1]) for part in parts], outputs)
    for output in outputs:
        if output.params is not plain:
            assert output.is_the(references[output.params])


@pytest.mark.parametrize("params", ALL)
@pytest.mark.parametrize("num_kept", [0, 7, 23])
@pytest.mark.parametrize("chunk", [5, 100])
def test_retraction(subject: Subject, params: SamplingParams, num_kept: int, chunk: int) -> None:
    # field cases 41, 43: the row goes and another comes, with all that is known by then.
    reference = subject.reference(params)
    subject.engine.reset()
    driver, output = Driver(subject.engine), Output(params)
    part = opened(driver, 0, params)
    run(driver, [part], [output])
    decode(driver, part, output, 9)
    for row in (3, 0):
        kept = part.row.slots[:num_kept]
        driver.free(part.row)
        part = opened(driver, row, params, kept, output.tokens)
        tokens = part.tokens
        for start in range(0, len(tokens), chunk):
            is_last = start + chunk >= len(tokens)
            piece = Part(part.row, tokens[start : start + chunk], samples=is_last)
            run(driver, [piece], [output] if is_last else [])
        decode(driver, part, output, 5)
    decode(driver, part, output, NUM_TOKENS - len(output.tokens))
    assert output.is_the(reference)


@pytest.mark.parametrize("params", ALL)
@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_drafts(subject: Subject, params: SamplingParams, num_right: int) -> None:
    """Five drafts a step, the first ones right: a token for each of these and one more, with the
    bits they have without drafts, behind prompts in company, and on after wrong ones."""
    reference = subject.reference(params)
    subject.engine.reset()
    driver, output = Driver(subject.engine), Output(params)
    part, mate = opened(driver, 0, params), Part(driver.open(1), PROMPT[:7])
    for steps in range(NUM_TOKENS):
        known = output.tokens
        num_left = NUM_TOKENS - 1 - len(known)
        if num_left < 0:
            break
        drafts = reference[0][len(known) : len(known) + min(5, num_left)]
        drafts[num_right:] = [(draft + 1) % VOCAB for draft in drafts[num_right:]]
        tokens = part.tokens if not known else [-1] if steps % 2 else known[-1:]
        wanted = min(num_right, len(drafts)) + 1
        run(driver, [mate, Part(part.row, tokens, drafts=drafts)], [Output(GREEDY), output])
        assert driver.num_sampled == [1, wanted]
        mate = Part(mate.row, [-1])
    assert output.is_the(reference)


def test_each_kind_shows_in_the_output(subject: Subject) -> None:
    """Or the tests above would prove nothing."""
    plain = SamplingParams(logprobs=NUM_TOP)
    tokens = [tuple(subject.reference(params)[0]) for params in (plain, *ALL)]
    assert len(set(tokens)) == 6
    free = subject.reference(replace(BIASED, logit_bias=()))[0]
    assert 7 not in subject.reference(BIASED)[0]
    assert free != subject.reference(BIASED)[0]
    free = subject.reference(replace(LATE, min_tokens=0))[0]
    late = subject.reference(LATE)[0]
    assert set(STOP_IDS) & set(free[:17])
    assert not set(STOP_IDS) & set(late[:17])


def test_history_and_plan_must_agree(subject: Subject) -> None:
    subject.engine.reset()
    driver = Driver(subject.engine)
    short = driver.open(0, sampling=REPEATING, known=Known(prompt=PROMPT[:-1]))
    with pytest.raises(PlanError, match="sampling knows 18"):
        driver.step(Part(short, PROMPT))


def test_too_many_alternatives_are_refused(subject: Subject) -> None:
    subject.engine.reset()
    driver = Driver(subject.engine)
    greedy = driver.open(0, sampling=SamplingParams(logprobs=VOCAB + 1))
    with pytest.raises(PlanError, match="alternatives"):
        driver.step(Part(greedy, PROMPT))
