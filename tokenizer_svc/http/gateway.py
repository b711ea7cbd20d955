"""What every endpoint that generates needs, in one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizer_svc.delivery import Usage
from tokenizer_svc.http.cache_hints import CacheHints, Marks, terms_of, up_to
from tokenizer_svc.http.field_names import in_words_of
from tokenizer_svc.http.generations import Asked, Generations, deadline_of
from tokenizer_svc.http.json_body import BodyReader
from tokenizer_svc.http.json_reply import JsonReply, long_json
from tokenizer_svc.http.models import Models
from tokenizer_svc.http.prompt_ids import PromptIds
from tokenizer_svc.http.token_texts import TokenTexts
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.tokenizer_pool import TokenizerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts that endpoints share; made once."""

    read: BodyReader
    pool: TokenizerPool
    generations: Generations
    models: Models
    texts: TokenTexts
    hints: CacheHints
    preheater: Preheater
    prompt_ids: PromptIds
    keep_alive_s: float

    async def whole(
        self, body: Callable[[], Mapping[str, Any]], *, is_long: bool, headers: Mapping[str, str]
    ) -> JsonReply:
        """A reply of this body, made and written aside where that is long."""

        def written() -> bytes:
            return long_json(body())

        content = await self.pool.aside(written) if is_long else written()
        return JsonReply(content, headers=dict(headers))

    async def prewarm(self, all_asked: Sequence[Asked], marks: Marks) -> list[Usage]:
        """Computes prompts into the cache and generates nothing.

        Raises:
            RadixdError: one of them cannot be computed; names fields as the body does.
        """
        usages = []
        for asked in all_asked:
            request = asked.request
            deadline_s = deadline_of(request)
            with in_words_of(asked.names):
                for num_messages, ttl_ms in marks:
                    terms = terms_of(request, ttl_ms=ttl_ms)
                    prompt = up_to(request, num_messages)
                    await self.preheater.warm_or_fail(prompt, terms, deadline_s=deadline_s)
                found = await self.preheater.warm_or_fail(
                    request.prompt, terms_of(request, ttl_ms=None), deadline_s=deadline_s
                )
            usages.append(
                Usage(
                    num_prompt_tokens=found.num_tokens,
                    num_output_tokens=0,
                    num_cached_tokens=found.cached_tokens,
                )
            )
        return usages
