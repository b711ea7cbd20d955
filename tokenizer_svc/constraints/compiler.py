"""Constraints to grammars, off the event loop, with a time limit and a memory of what came out."""

import asyncio
import json
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from protos.errors import InternalFault, InvalidRequest, QueueFull, Unsupported
from radixd.chassis.vocabulary import Vocabulary
from tokenizer_svc.generation_request import Constraint
from tokenizer_svc.served_model import ServedModel

TIME_LIMIT_S = 5.0
"""For one constraint, once its turn has come."""
MAX_PENDING = 64
_START_LIMIT_S = 30.0
_SLOW_KEPT_S = 60.0
_MAX_KEPT = 256
_MAX_KEPT_BYTES = 16 << 20
_NUM_CHILDREN = 2
"""So that one who sends slow constraints does not hold up the others' alone."""

log = structlog.get_logger()


class ConstraintCompiler:
    """Two processes that compile, started when first needed, and the answers they gave."""

    def __init__(
        self, read_vocabulary: Callable[[], Vocabulary | None], *, limit_s: float = TIME_LIMIT_S
    ) -> None:
        self._read_vocabulary = read_vocabulary
        self._limit_s = limit_s
        self._idle = [_Child() for _ in range(_NUM_CHILDREN)]
        self._free = asyncio.Semaphore(_NUM_CHILDREN)
        self._num_pending = 0
        self._setup: bytes | None = None
        """The first frame of a child, for the model `_setup_of`."""
        self._setup_of: tuple[int, tuple[int, ...]] | None = None
        self._setup_lock = asyncio.Lock()
        self._answers: OrderedDict[Constraint, dict[str, str]] = OrderedDict()
        self._num_bytes = 0
        self._under_way: dict[Constraint, asyncio.Event] = {}
        """Set once there is an answer, or whoever asked has gone."""

    async def grammar(self, constraint: Constraint, model: ServedModel) -> str:
        """The grammar of a constraint, as the worker of this model takes it.

        Raises:
            InvalidRequest: it cannot be read, met or compiled in time; names the form.
            QueueFull: too many wait to be compiled.
            Unsupported: the model's vocabulary is not known, or has no end of sequence.
        """
        async with self._setup_lock:  # once for a burst of first requests
            setup = await self._setup_for(model)
        answer = await self._answer(constraint, setup)
        if "problem" in answer:
            # A grammar of our own notation was made of tools.
            is_ours = constraint.kind == "lark"
            field = "chat.tools" if is_ours else f"constraint.{constraint.kind}"
            raise InvalidRequest(field, answer["problem"])
        return answer["grammar"]

    async def close(self) -> None:
        """Ends the processes."""
        for child in self._idle:
            await child.end()

    async def _answer(self, constraint: Constraint, setup: bytes) -> dict[str, str]:
        """What was found out of it, or is being found out for somebody else, or is now."""
        while (answer := self._answers.get(constraint)) is None:
            others = self._under_way.get(constraint)
            if others is not None:
                await others.wait()
                continue
            self._under_way[constraint] = asyncio.Event()
            try:
                answer = await self._compiled(constraint, setup)
                self._keep(constraint, answer)
                return answer
            finally:
                self._under_way.pop(constraint).set()
        self._answers.move_to_end(constraint)
        return answer

    async def _compiled(self, constraint: Constraint, setup: bytes) -> dict[str, str]:
        if self._num_pending >= MAX_PENDING:
            raise QueueFull(f"{MAX_PENDING} constraints wait to be compiled; try again later")
        self._num_pending += 1
        try:
            async with self._free:
                child = self._idle.pop()
                try:
                    try:
                        return await self._asked(child, constraint, setup)
                    except (asyncio.IncompleteReadError, OSError):
                        # Perhaps somebody else ended the process, so once more.
                        return await self._asked(child, constraint, setup)
                except (asyncio.IncompleteReadError, OSError):
                    self._forget_soon(constraint)
                    return {"problem": "too complex to compile"}
                finally:
                    self._idle.append(child)
        finally:
            self._num_pending -= 1

    async def _asked(self, child: "_Child", constraint: Constraint, setup: bytes) -> dict[str, str]:
        whole = False
        try:
            await child.start(setup)
            answer = await asyncio.wait_for(child.ask(asdict(constraint)), self._limit_s)
            whole = True
            return answer
        except TimeoutError:
            log.warning("constraint_too_slow", kind=constraint.kind, limit_s=self._limit_s)
            # Perhaps it is the machine that is slow.
            self._forget_soon(constraint)
            return {"problem": f"too complex: it does not compile in {self._limit_s:g} s"}
        except (asyncio.IncompleteReadError, OSError):
            log.warning("constraint_compiler_lost", kind=constraint.kind)
            raise
        finally:
            if not whole:  # also when whoever asked has gone: the answer would be the next one's
                await child.end()

    async def _setup_for(self, model: ServedModel) -> bytes:
        wanted = model.vocab_size, tuple(sorted(model.eos_token_ids))
        if self._setup is None or self._setup_of != wanted:
            vocabulary = await asyncio.to_thread(self._read_vocabulary)
            if vocabulary is None:
                raise Unsupported("constraint: the model's files do not tell what its tokens spell")
            if not model.eos_token_ids:
                raise Unsupported("constraint: the model has no end of sequence")
            setup = {
                "entries": [entry.hex() for entry in vocabulary.entries],
                "special_ids": sorted(vocabulary.special_ids),
                "vocab_size": model.vocab_size,
                "eos_token_ids": wanted[1],
            }
            self._setup, self._setup_of = json.dumps(setup).encode(), wanted
            self._answers.clear()
            self._num_bytes = 0
        return self._setup

    def _keep(self, constraint: Constraint, answer: dict[str, str]) -> None:
        self._forget(constraint)
        self._num_bytes += _size(constraint, answer)
        self._answers[constraint] = answer
        while len(self._answers) > _MAX_KEPT or self._num_bytes > _MAX_KEPT_BYTES:
            self._num_bytes -= _size(*self._answers.popitem(last=False))

    def _forget_soon(self, constraint: Constraint) -> None:
        """What may not be the constraint's fault is not remembered for long."""
        asyncio.get_running_loop().call_later(_SLOW_KEPT_S, self._forget, constraint)

    def _forget(self, constraint: Constraint) -> None:
        answer = self._answers.pop(constraint, None)
        if answer is not None:
            self._num_bytes -= _size(constraint, answer)


def _size(constraint: Constraint, answer: dict[str, str]) -> int:
    return len(constraint.text) + sum(map(len, (*constraint.choices, *answer.values())))


class _Child:
    """One process of `child`; started anew when it was ended or its setup is another."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._setup = b""

    async def start(self, setup: bytes) -> None:
        if self._process is not None and self._process.returncode is None and self._setup is setup:
            return
        await self.end()
        try:
            await asyncio.wait_for(self._start(setup), _START_LIMIT_S)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            log.exception("constraint_compiler_failed")
            raise InternalFault("the compiler of constraints does not start") from None

    async def _start(self, setup: bytes) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tokenizer_svc.constraints.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._setup = setup
        await self._send(setup)
        # An answer to something small: what comes after it is timed without the start.
        await self.ask(asdict(Constraint(kind="choice", choices=("a",))))

    async def ask(self, question: dict[str, Any]) -> dict[str, str]:
        assert self._process is not None
        assert self._process.stdout is not None
        await self._send(json.dumps(question).encode())
        head = await self._process.stdout.readexactly(4)
        body = await self._process.stdout.readexactly(struct.unpack("<I", head)[0])
        answer: dict[str, str] = json.loads(body)
        return answer

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _send(self, frame: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<I", len(frame)) + frame)
        await self._process.stdin.drain()
