"""Requests with a grammar say the same alone, in company, cut back at every step and resumed."""

import json

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.cut_back import CutBack, Records
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint

MODEL = FakeModel()
EOS = MODEL.eos_token_ids[0]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
FORMS = (
    Constraint(kind="json_schema", text=json.dumps(SCHEMA)),
    Constraint(kind="regex", text="(abcabc|xyz){2,6}"),
    Constraint(kind="ebnf", text='root ::= "(" root? ")" | "[" root{1,2} "]"'),
    Constraint(kind="choice", choices=("yes", "yes, but", "no")),
)
GRAMMARS = tuple(map(grammar_of, FORMS))
LONG = grammar_of(Constraint(kind="regex", text="(abc){40}"))


def requests():
    """Every second one has a grammar; some of those have much else besides."""
    more = (
        {},
        {"temperature": 1.0},
        {"min_tokens": 8},
        {"repetition_penalty": 1.25},
        {"logprobs": 1},
    )
    for i in range(40):
        grammar = GRAMMARS[i // 2 % len(GRAMMARS)] if i % 2 else ""
        sampling = {"seed": i, "grammar": grammar, **more[i % len(more)]}
        if i % 7 == 1:
            sampling["logit_bias"] = ((98, 100.0), (EOS, -100.0))
        yield f"g{i}", letters(5 + i % 11, seed=i // 4), 60, SamplingParams(**sampling)


def play(bench):
    for name, prompt, max_tokens, sampling in requests():
        bench.submit(name, prompt, max_tokens, sampling=sampling)
    return bench.run()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4])
def test_cut_back_at_every_step(page_size, depth):
    sizes = {"N": 2048, "p": page_size, "depth": depth, "r": 8, "model": MODEL, "wire": True}
    calm, cut = play(Records(**sizes)), play(CutBack(**sizes))
    assert cut.core.counters()["retractions"] == cut.num_cuts > 300
    for name, prompt, max_tokens, sampling in requests():
        wanted = MODEL.generate(prompt, max_tokens, sampling)
        assert calm.tokens[name] == wanted, name
        assert cut.story(name) == calm.story(name), name


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_the_end_is_an_end_of_sequence(grammar):
    bench = Bench(model=MODEL)
    tokens = bench.ask("a", letters(5), 200, sampling=SamplingParams(grammar=grammar))
    assert tokens[-1] == EOS
    assert EOS not in tokens[:-1]
    assert bench.endings["a"].ending is Ending.STOP


def test_length_cuts_a_form_short():
    bench = Bench(model=MODEL)
    tokens = bench.ask("a", letters(5), 7, sampling=SamplingParams(grammar=LONG))
    assert bytes(tokens) == b"abcabca"
    assert bench.endings["a"].ending is Ending.LENGTH


def test_min_tokens_gives_way_where_nothing_else_can_follow():
    sampling = SamplingParams(grammar=GRAMMARS[3], min_tokens=20)
    assert bytes(Bench(model=MODEL).ask("a", letters(5), 30, sampling=sampling)[:-1]) in (
        b"yes, but",
        b"no",
    ), "`yes` may go on, so it does"


def test_guesses_follow_the_form():
    """What repeats itself is guessed, and each guess is checked against the grammar."""
    sampling = SamplingParams(grammar=LONG)
    guessing = Bench(model=MODEL)
    tokens = guessing.ask("a", letters(5), 200, sampling=sampling)
    assert bytes(tokens[:-1]) == b"abc" * 40
    assert guessing.core.counters()["accepted_tokens"] > 20
    assert (
        Bench(model=MODEL, speculation="off").ask("a", letters(5), 200, sampling=sampling) == tokens
    )


@pytest.mark.parametrize("num_known", [1, 7, 60, 119])
def test_carried_over_from_another_scheduler(num_known):
    sampling, whole = SamplingParams(grammar=LONG, temperature=1.0, seed=3), list(b"abc" * 40)
    bench = Bench(model=MODEL)
    bench.submit("a", letters(5), 200, sampling=sampling, resume_output_ids=whole[:num_known])
    bench.run()
    assert whole[:num_known] + bench.tokens["a"] == [*whole, EOS]


def test_a_lost_worker_changes_nothing():
    sampling = SamplingParams(grammar=GRAMMARS[0], temperature=1.0, seed=5)
    bench = Bench(model=MODEL)
    bench.submit("a", letters(5), 100, sampling=sampling)
    for _ in range(9):
        bench.step()
    bench.lose_worker()
    bench.run()
    assert bench.tokens["a"] == MODEL.generate(letters(5), 100, sampling)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_form_that_cannot_be_followed_ends_its_own_request(depth):  # field case 93
    """The others get what they would have got, and the books balance."""
    bench = Bench(model=MODEL, depth=depth, wire=True)
    bench.submit("good", letters(9), 30)
    bench.submit(
        "bad", letters(20, seed=1), 30, sampling=SamplingParams(grammar="start: /[^\\s\\S]/")
    )
    bench.submit("worse", letters(4, seed=2), 30, sampling=SamplingParams(grammar="no grammar"))
    alien = SamplingParams(grammar=LONG)
    bench.submit("alien", letters(4, seed=3), 30, sampling=alien, resume_output_ids=[120, 121])
    bench.submit("form", letters(4, seed=4), 60, sampling=SamplingParams(grammar=GRAMMARS[1]))
    bench.run()
    for name in ("bad", "worse", "alien"):
        ending = bench.endings[name]
        assert ending.ending is Ending.FAILED
        assert ending.field == "constraint"
        assert "cannot be followed" in ending.message
        assert bench.tokens[name] == []
    assert bench.tokens["good"] == MODEL.generate(letters(9), 30)
    assert bench.endings["form"].ending is Ending.STOP
    assert bench.ask("next", letters(9), 30) == MODEL.generate(letters(9), 30)
