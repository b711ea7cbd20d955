"""Generations whose texts go into the log, because the operator has asked for that."""

import structlog

from tokenizer_svc.choices import Choices
from tokenizer_svc.delivery import ChoicePiece
from tokenizer_svc.generation_request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from tokenizer_svc.sink import Sink, Translated

log = structlog.get_logger()


class LoggedChoices(Choices):
    """As its base, and says what was asked and what came out, cut short or not."""

    async def run(
        self, request: GenerationRequest, sink: Sink[ChoicePiece], *, deadline_s: float | None
    ) -> None:
        """As the base's."""
        log.info("prompt_received", request_id=request.request_id, prompt=_said(request.prompt))
        texts: dict[int, str] = {}

        def noted(each: ChoicePiece) -> ChoicePiece:
            text = each.piece.reasoning_text + each.piece.text
            texts[each.choice] = texts.get(each.choice, "") + text
            return each

        try:
            await super().run(request, Translated(noted, sink), deadline_s=deadline_s)
        finally:
            log.info("answer_sent", request_id=request.request_id, texts=texts)


def _said(prompt: Prompt) -> object:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, ChatPrompt):
        return [{"role": turn.role, "content": turn.content} for turn in prompt.turns]
    return list(prompt.ids)
