"""The compiler at the door: off the loop, bounded in time, and it remembers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from protos.errors import InvalidRequest, QueueFull, Unsupported
from radixd.chassis.vocabulary import Vocabulary, fake_vocabulary
from tests.constraints.test_schema_endings import chain
from tests.tokenizer_svc.client import wait_until
from tokenizer_svc.constraints import compiler as module
from tokenizer_svc.constraints.compiler import ConstraintCompiler
from tokenizer_svc.generation_request import Constraint
from tokenizer_svc.served_model import ServedModel

MODEL = ServedModel(model_id="fake", vocab_size=264, max_length=64, eos_token_ids=frozenset({257}))
PLAIN = Constraint(kind="regex", text="[a-z]+")
BROKEN = Constraint(kind="regex", text="((")


def slow(number: int) -> Constraint:
    """Takes seconds to find out that it is too complex."""
    return Constraint(kind="regex", text=f"x{number}" + "(a{1000}){1000}" * 3)


@pytest.fixture
async def compiler() -> AsyncIterator[ConstraintCompiler]:
    made = ConstraintCompiler(fake_vocabulary, limit_s=0.05)
    yield made
    await made.close()


async def test_answers_are_remembered(compiler: ConstraintCompiler) -> None:
    compiler._limit_s = 30
    first = await compiler.grammar(PLAIN, MODEL)
    with pytest.raises(InvalidRequest) as refused:
        await compiler.grammar(BROKEN, MODEL)
    assert refused.value.field == "constraint.regex"
    await compiler.close()
    compiler._idle = []  # nobody is left to ask
    assert await compiler.grammar(PLAIN, MODEL) == first
    with pytest.raises(InvalidRequest, match="unclosed group"):
        await compiler.grammar(BROKEN, MODEL)


async def test_slow_ones_hold_nothing_up(compiler: ConstraintCompiler) -> None:  # field case 93
    """The loop goes on while one is compiled, and the next one is served."""
    compiler._limit_s = 0.3  # time for many turns, on a busy machine too
    await compiler._idle[0].start(await compiler._setup_for(MODEL))
    asked = asyncio.create_task(compiler.grammar(slow(1), MODEL))
    num_turns = 0
    while not asked.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    with pytest.raises(InvalidRequest, match="too complex"):
        await asked
    assert num_turns > 10
    compiler._limit_s = 30
    assert await compiler.grammar(PLAIN, MODEL)


async def test_one_who_leaves_takes_the_process_along(compiler: ConstraintCompiler) -> None:
    """What it still says is nobody else's answer."""
    compiler._limit_s = 30
    asked = asyncio.create_task(compiler.grammar(slow(2), MODEL))
    await wait_until(lambda: compiler._num_pending == 1)
    await asyncio.sleep(0.2)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await compiler.grammar(PLAIN, MODEL)
    assert len(compiler._idle) == module._NUM_CHILDREN


async def test_what_ends_the_process_ends_nothing_else(compiler: ConstraintCompiler) -> None:
    """References of references recurse in the library, to the end of the stack."""
    compiler._limit_s = 30
    with pytest.raises(InvalidRequest, match="too complex") as refused:
        await compiler.grammar(Constraint(kind="json_schema", text=chain(2500)), MODEL)
    assert refused.value.field == "constraint.json_schema"
    assert await compiler.grammar(Constraint(kind="json_schema", text=chain(150)), MODEL)


async def test_so_many_may_wait(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler._limit_s = 30
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    asked = [asyncio.create_task(compiler.grammar(slow(n), MODEL)) for n in range(3, 5)]
    await wait_until(lambda: compiler._num_pending == 2)
    with pytest.raises(QueueFull):
        await compiler.grammar(PLAIN, MODEL)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_many_who_ask_at_once_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of requests with one schema, the first of all: nobody is turned away."""
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    num_read = 0

    def read() -> Vocabulary:
        nonlocal num_read
        num_read += 1
        return fake_vocabulary()

    compiler = ConstraintCompiler(read, limit_s=30)
    asked = [asyncio.create_task(compiler.grammar(PLAIN, MODEL)) for _ in range(100)]
    await wait_until(lambda: compiler._num_pending > 0)
    asked[0].cancel()  # the others do not leave with the first
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    assert len(set(await asyncio.gather(*asked[1:]))) == 1
    assert num_read == 1
    assert not compiler._under_way
    await compiler.close()


async def test_a_process_that_is_lost_is_not_held_against_a_constraint(
    compiler: ConstraintCompiler,
) -> None:
    compiler._limit_s = 30
    for child in compiler._idle:
        await child.start(await compiler._setup_for(MODEL))
        child._process.kill()
    assert await compiler.grammar(PLAIN, MODEL)


class Dying(module._Child):
    """Its process ends while it is asked, the first so many times."""

    num_deaths = 0

    async def ask(self, question: dict[str, str]) -> dict[str, str]:
        if question["text"] == PLAIN.text and Dying.num_deaths:
            Dying.num_deaths -= 1
            self._process.kill()
        return await super().ask(question)


@pytest.mark.parametrize(("num_deaths", "is_served"), [(1, True), (2, False)])
async def test_one_loss_is_an_accident_and_two_are_not(
    compiler: ConstraintCompiler, num_deaths: int, is_served: bool
) -> None:
    compiler._limit_s = 30
    compiler._idle, Dying.num_deaths = [Dying(), Dying()], num_deaths
    asked = compiler.grammar(PLAIN, MODEL)
    if is_served:
        assert await asked
    else:
        with pytest.raises(InvalidRequest, match="too complex"):
            await asked
    assert await compiler.grammar(Constraint(kind="regex", text="b"), MODEL)


async def test_memory_of_answers_is_bounded(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler._limit_s = 30
    monkeypatch.setattr(module, "_MAX_KEPT", 3)
    for number in range(8):
        await compiler.grammar(Constraint(kind="choice", choices=(str(number),)), MODEL)
    assert [constraint.choices for constraint in compiler._answers] == [("5",), ("6",), ("7",)]
    for constraint in list(compiler._answers):
        compiler._forget(constraint)
    assert compiler._num_bytes == 0


async def test_unknown_vocabularies_are_not_served() -> None:
    def unknown() -> Vocabulary | None:
        return None

    with pytest.raises(Unsupported, match="constraint"):
        await ConstraintCompiler(unknown).grammar(PLAIN, MODEL)
    endless = ServedModel(model_id="fake", vocab_size=264, max_length=64, eos_token_ids=frozenset())
    with pytest.raises(Unsupported, match="end of sequence"):
        await ConstraintCompiler(fake_vocabulary).grammar(PLAIN, endless)
