"""Runs the tokenizer in threads, so that no prompt holds up the event loop or the other prompts.

Long texts have a thread of their own: a megabyte takes seconds, and short ones do not wait for it.
Long replies have one, too.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from protos.errors import QueueFull
from tokenizer_svc.generation_request import ChatPrompt, Prompt, TextPrompt
from tokenizer_svc.tokenizers.conversation import num_characters
from tokenizer_svc.tokenizers.tokenizer import Tokenizer, decode

LONG_CHARACTERS = 32_768
MAX_PENDING_SHORT = 8192
MAX_PENDING_LONG = 64

T = TypeVar("T")


class TokenizerPool:
    """A tokenizer behind threads: one for short texts, one for long ones, one for long replies."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._short = _Lane("tokenizer-short", MAX_PENDING_SHORT)
        self._long = _Lane("tokenizer-long", MAX_PENDING_LONG)
        self._replies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long-replies")

    async def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt; token ids come back as they are.

        Raises:
            InvalidRequest: the chat template refuses the messages.
            QueueFull: too many prompts wait for a thread.
        """
        if isinstance(prompt, TextPrompt):
            text = prompt.text
            return await self._lane(len(text)).run(lambda: self.tokenizer.encode_text(text))
        if isinstance(prompt, ChatPrompt):
            chat = prompt
            return await self._lane(num_characters(chat.turns, chat.tools)).run(
                lambda: self.tokenizer.encode_chat(
                    chat.turns,
                    add_generation_prompt=chat.add_generation_prompt,
                    tools=chat.tools,
                    continue_final_message=chat.continue_final_message,
                    template_arguments=chat.template_arguments,
                )
            )
        return prompt.ids.tolist()

    async def decode_all(
        self, outputs: Iterable[Iterable[int]], *, skip_special_tokens: bool
    ) -> list[str]:
        """The text of each of these lists of ids."""
        return await self._long.run(
            lambda: [
                decode(self.tokenizer, ids, skip_special_tokens=skip_special_tokens)
                for ids in outputs
            ]
        )

    async def aside(self, work: Callable[[], T]) -> T:
        """The result of work on a long reply, in the thread that those have.

        Nobody is refused: whoever asks has a request that was let in.
        """
        return await asyncio.get_running_loop().run_in_executor(self._replies, work)

    def close(self) -> None:
        """Lets go of the threads; what waits is dropped."""
        self._short.close()
        self._long.close()
        self._replies.shutdown(wait=False, cancel_futures=True)

    def _lane(self, num_characters: int) -> "_Lane":
        return self._short if num_characters <= LONG_CHARACTERS else self._long


class _Lane:
    """One thread and a bounded number of those who wait for it."""

    def __init__(self, name: str, max_pending: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._max_pending = max_pending
        self._num_pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        if self._num_pending >= self._max_pending:
            raise QueueFull(f"{self._max_pending} prompts wait to be tokenised; try again later")
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
