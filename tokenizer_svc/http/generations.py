"""Generations for replies of any shape: the same checks, owners and choices as for gRPC."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.choices import ChoicePiece, Choices
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.http.field_names import Names, in_words_of
from tokenizer_svc.request_owners import RequestOwners
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

    async def pieces(self, asked: Asked) -> AsyncGenerator[ChoicePiece, None]:
        """The pieces of all choices; close it (contextlib.aclosing) to cancel.

        Raises:
            RadixdError: refused, or ended without a result; names fields as the body does.
        """
        request = asked.request
        deadline_s = deadline_of(request)
        with in_words_of(asked.names), self._owners.owned(request.request_id, request.tenant):
            async with aclosing(self._choices.pieces(request, deadline_s=deadline_s)) as pieces:
                async for piece in pieces:
                    yield piece

    async def of_all(self, all_asked: Sequence[Asked]) -> AsyncGenerator[PromptPiece, None]:
        """The pieces of several requests as they come; when one fails, all do.

        Raises:
            RadixdError: of the first that failed.
        """
        if len(all_asked) == 1:
            async with aclosing(self.pieces(all_asked[0])) as pieces:
                async for each in pieces:
                    yield PromptPiece(prompt=0, each=each)
            return
        news: asyncio.Queue[PromptPiece | BaseException | None] = asyncio.Queue(len(all_asked))
        tasks = [
            asyncio.create_task(self._tell(number, asked, news))
            for number, asked in enumerate(all_asked)
        ]
        try:
            num_running = len(tasks)
            while num_running:
                piece = await news.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    num_running -= 1
                else:
                    yield piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(
        self, number: int, asked: Asked, news: "asyncio.Queue[PromptPiece | BaseException | None]"
    ) -> None:
        try:
            async with aclosing(self.pieces(asked)) as pieces:
                async for each in pieces:
                    await news.put(PromptPiece(prompt=number, each=each))
        except Exception as error:
            await news.put(error)
        else:
            await news.put(None)


def deadline_of(request: GenerationRequest) -> float | None:
    """When a request must be over, on the event loop's clock; None: never."""
    if request.timeout_ms is None:
        return None
    return asyncio.get_running_loop().time() + request.timeout_ms / 1000
