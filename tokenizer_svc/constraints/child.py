"""The process that compiles constraints: one after the other, in frames on stdin and stdout.

A process, as nothing else can be stopped: a schema can keep the library busy for minutes.  Its
parent ends it when an answer takes too long; it ends itself when the parent is gone.

Frames: four bytes of length, little-endian, then JSON.  The first is the vocabulary.
"""

import json
import resource
import signal
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from radixd.chassis.grammars import GrammarError, Grammars
from radixd.chassis.vocabulary import Vocabulary
from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint

MAX_COMPILE_S = 0.5
"""Of CPU: the worker compiles it between two steps, and all its streams wait meanwhile."""
_GIVE_UP_S = 60
"""After so long even a child whose parent was killed ends."""
_MAX_MEMORY_BYTES = 4 << 30
_MAX_STACK_BYTES = 4 << 20
"""Half of what the worker has: what recurses so deep that it ends a process ends this one."""


def main() -> None:
    """Answers until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (_MAX_STACK_BYTES, hard))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read(source)
    if first is None:
        return
    grammars = grammars_of(first)
    while (asked := _read(source)) is not None:
        signal.alarm(_GIVE_UP_S)
        answer = json.dumps(compiled(grammars, Constraint(**asked))).encode()
        signal.alarm(0)
        sink.write(struct.pack("<I", len(answer)) + answer)
        sink.flush()


def grammars_of(described: Mapping[str, Any]) -> Grammars:
    """The compiler for the vocabulary in a first frame."""
    vocabulary = Vocabulary(
        entries=tuple(map(bytes.fromhex, described["entries"])),
        special_ids=frozenset(described["special_ids"]),
    )
    return Grammars(
        vocabulary,
        vocab_size=described["vocab_size"],
        eos_token_ids=described["eos_token_ids"],
    )


def compiled(grammars: Grammars, constraint: Constraint) -> dict[str, str]:
    """`grammar`, or the `problem` with it."""
    try:
        grammar = grammar_of(constraint)
        started_s = time.process_time()
        # The first mask as well: it is where an expression that explodes does so.
        grammars.matcher(grammar).mask()
        took_s = time.process_time() - started_s
    except (FormError, GrammarError) as error:
        return {"problem": str(error)}
    except (MemoryError, RecursionError):
        return {"problem": "too complex"}
    if took_s > MAX_COMPILE_S:
        return {"problem": f"too complex: it takes {took_s:.1f} s to compile"}
    return {"grammar": grammar}


def _read(source: BinaryIO) -> dict[str, Any] | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    frame: dict[str, Any] = json.loads(source.read(struct.unpack("<I", head)[0]))
    return frame


if __name__ == "__main__":
    main()
