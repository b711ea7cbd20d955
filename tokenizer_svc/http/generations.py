"""Generations for replies of any shape: the same checks, owners and choices as for gRPC."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.choices import Choices
from tokenizer_svc.delivery import ChoicePiece
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.http.field_names import Names, in_words_of
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.sink import Sink, Translated
from tokenizer_svc.tenancy import current_caller
from tokenizer_svc.validation import read_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request, and the names that its body has for fields."""

    request: GenerationRequest
    names: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPiece:
    """A piece of a choice of one of several prompts."""

    prompt: int
    """From 0, as the body lists them."""
    each: ChoicePiece


class Generations:
    """Reads messages and runs what they ask for."""

    def __init__(self, *, choices: Choices, owners: RequestOwners, max_prompt_bytes: int) -> None:
        self._choices = choices
        self._owners = owners
        self._max_prompt_bytes = max_prompt_bytes

    def read(self, message: pb.GenerateRequest, names: Names) -> Asked:
        """The request as a checked value; the tenant is the caller's.

        Raises:
            RadixdError: names the first field that is wrong, as the body does.
        """
        with in_words_of(names):
            request = read_request(message, max_prompt_bytes=self._max_prompt_bytes)
        return Asked(request=replace(request, tenant=current_caller().tenant), names=names)

    async def run(self, asked: Asked, sink: Sink[ChoicePiece]) -> None:
        """Puts the pieces of all choices into the sink; cancel it to end the request.

        Raises:
            RadixdError: refused, or ended without a result; names fields as the body does.
        """
        request = asked.request
        deadline_s = deadline_of(request)
        with in_words_of(asked.names), self._owners.owned(request.request_id, request.tenant):
            await self._choices.run(request, sink, deadline_s=deadline_s)

    async def run_all(self, all_asked: Sequence[Asked], sink: Sink[PromptPiece]) -> None:
        """The same of several requests at once; when one fails, all do.

        Raises:
            RadixdError: of the first that failed.
        """
        runs = [
            self.run(asked, Translated(partial(_of_prompt, number), sink))
            for number, asked in enumerate(all_asked)
        ]
        if len(runs) == 1:
            await runs[0]
            return
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            for task in asyncio.as_completed(tasks):
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _of_prompt(number: int, each: ChoicePiece) -> PromptPiece:
    return PromptPiece(prompt=number, each=each)


def deadline_of(request: GenerationRequest) -> float | None:
    """When a request must be over, on the event loop's clock; None: never."""
    if request.timeout_ms is None:
        return None
    return asyncio.get_running_loop().time() + request.timeout_ms / 1000
