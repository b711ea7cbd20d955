"""Generations whose texts go into the log, because the operator has asked for that."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from tokenizer_svc.choices import ChoicePiece, Choices
from tokenizer_svc.generation_request import ChatPrompt, GenerationRequest, Prompt, TextPrompt

log = structlog.get_logger()


class LoggedChoices(Choices):
    """As its base, and says what was asked and what came out, cut short or not."""

    async def pieces(
        self, request: GenerationRequest, *, deadline_s: float | None
    ) -> AsyncGenerator[ChoicePiece, None]:
        """As the base's."""
        log.info("prompt_received", request_id=request.request_id, prompt=_said(request.prompt))
        texts: dict[int, str] = {}
        try:
            async with aclosing(super().pieces(request, deadline_s=deadline_s)) as pieces:
                async for each in pieces:
                    text = each.piece.reasoning_text + each.piece.text
                    texts[each.choice] = texts.get(each.choice, "") + text
                    yield each
        finally:
            log.info("answer_sent", request_id=request.request_id, texts=texts)


def _said(prompt: Prompt) -> object:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, ChatPrompt):
        return [{"role": turn.role, "content": turn.content} for turn in prompt.turns]
    return list(prompt.ids)
