"""Grammars in the sampler of the real engine, on rows of logits made up here."""

import json
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_worker.row_grammar import RowGrammars, no_vocabulary
from gpu_worker.row_sampling import RowSampling
from gpu_worker.sampler import sample_token
from protos.plan import NewRow, SamplingParams
from radixd.chassis.model_source import BUILT_IN, resolve_model
from radixd.chassis.vocabulary import fake_vocabulary, read_vocabulary
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint

VOCAB, EOS = 264, 257
PROMPT = [10, 20, 30]
BYTES = RowGrammars(fake_vocabulary, vocab_size=VOCAB, eos_token_ids=(EOS,))


def regex(text: str) -> str:
    return grammar_of(Constraint(kind="regex", text=text))


def open_row(
    params: SamplingParams,
    output: Sequence[int] = (),
    stop_ids: tuple[int, ...] = (),
    grammars: RowGrammars = BYTES,
    vocab_size: int = VOCAB,
) -> RowSampling:
    new = NewRow(
        row=0,
        prefix_slots=array("i"),
        sampling=params,
        num_prompt=len(PROMPT),
        context_ids=array("i", [*PROMPT, *output]),
        suppressed_ids=stop_ids,
    )
    return RowSampling(new, vocab_size, grammars.open(new))


def say(row: RowSampling, output: list[int], count: int, vocab_size: int = VOCAB) -> list[int]:
    """The next tokens, on logits that are a function of the position."""
    for _ in range(count):
        length = len(PROMPT) + len(output)
        logits = np.random.default_rng(length).normal(size=vocab_size).astype(np.float32) * 4
        before = logits.copy()
        token = sample_token(row.adjusted(logits, length), row.params, length)
        assert np.array_equal(logits, before), "the backend's logits stay as they are"
        row.record(token)
        output.append(token)
        if token == EOS:
            break
    return output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 0.5}, {"top_k": 3, "top_p": 0.5}])
def test_a_row_that_comes_back_says_what_it_would_have_said(
    temperature: float, more: dict[str, float]
) -> None:
    params = SamplingParams(
        temperature=temperature, seed=7, grammar=regex("[a-z]{4,30}(, [a-z]+){3}"), **more
    )
    whole = say(open_row(params), [], 200)
    text = bytes(whole[: whole.index(EOS)]).decode() if EOS in whole else bytes(whole).decode()
    assert text.islower()
    for told in (0, 1, 5, len(whole) - 1):
        row = open_row(params, whole[:told])
        assert row.num_known == len(PROMPT) + told
        assert say(row, whole[:told], len(whole) - told) == whole


def test_only_what_may_follow_has_a_logit() -> None:
    row = open_row(SamplingParams(grammar=regex("[ab]c")))
    adjusted = row.adjusted(np.zeros(VOCAB, np.float32), len(PROMPT))
    assert np.flatnonzero(np.isfinite(adjusted)).tolist() == [97, 98]


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_broken_logits_still_follow_the_grammar(broken: float) -> None:
    logits = np.full(VOCAB, broken, np.float32)
    logits[5] = 1.0
    row = open_row(SamplingParams(grammar=regex("[ab]c"), temperature=1.0))
    assert sample_token(row.adjusted(logits, 3), row.params, 3) in (97, 98)


def test_min_tokens_gives_way_to_the_end_of_the_form() -> None:
    params = SamplingParams(grammar=regex("ab?"), min_tokens=5)
    row = open_row(params, stop_ids=(EOS, 97))
    said: list[int] = []
    for _ in range(3):
        length = len(PROMPT) + len(said)
        logits = np.zeros(VOCAB, np.float32)
        logits[EOS] = 50.0
        said.append(sample_token(row.adjusted(logits, length), params, length))
        row.record(said[-1])
    assert said == [97, 98, EOS], "`a` is all that can follow, `b` goes before an end"


def test_bans_and_biases_do_not_break_the_form() -> None:
    params = SamplingParams(grammar=regex("[ab]"), logit_bias=((97, -100.0), (120, 100.0)))
    assert say(open_row(params), [], 1) == [98]
    only = SamplingParams(grammar=regex("a"), logit_bias=((97, -100.0),))
    assert say(open_row(only), [], 2) == [97, EOS]


@pytest.mark.parametrize(
    ("grammar", "output", "grammars"),
    [
        ("no grammar", (), BYTES),
        (regex("a"), (98,), BYTES),
        (regex("a"), (), RowGrammars(no_vocabulary, vocab_size=VOCAB, eos_token_ids=(EOS,))),
        (regex("a"), (), RowGrammars(fake_vocabulary, vocab_size=VOCAB, eos_token_ids=())),
    ],
)
def test_trouble_is_the_rows_own(
    grammar: str, output: Sequence[int], grammars: RowGrammars
) -> None:  # field case 93
    row = open_row(SamplingParams(grammar=grammar), output, grammars=grammars)
    assert "cannot be followed" in row.problem
    assert 0 <= say(row, list(output), 1)[-1] < VOCAB
    fine = open_row(SamplingParams(grammar=regex("a")))
    assert say(fine, [], 2) == [97, EOS]
    assert not fine.problem


def test_tokens_of_a_real_vocabulary_make_json() -> None:
    source = resolve_model(BUILT_IN)
    grammars = RowGrammars(lambda: read_vocabulary(source), vocab_size=49152, eos_token_ids=(2,))
    grammars.warm()
    vocabulary = read_vocabulary(source)
    assert vocabulary is not None
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    grammar = grammar_of(Constraint(kind="json_schema", text=json.dumps(schema)))
    for seed in range(5):
        params = SamplingParams(grammar=grammar, temperature=1.0, seed=seed, min_tokens=3)
        row = open_row(params, stop_ids=(2,), grammars=grammars, vocab_size=49152)
        said: list[int] = []
        while 2 not in said:
            say(row, said, 1, vocab_size=49152)
            assert len(said) < 100
        text = b"".join(vocabulary.entries[token] for token in said[:-1]).decode()
        assert isinstance(json.loads(text)["n"], int)
