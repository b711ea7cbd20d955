"""Log probabilities as OpenAI writes them: with the text and the bytes of every token."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from protos.plan import LogprobColumns
from tokenizer_svc.http.json_reply import LazyList
from tokenizer_svc.long_replies import SLICE_IDS, in_slices
from tokenizer_svc.token_log import Row, rows
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

_MAX_KEPT = 1 << 16


class TokenTexts:
    """Texts of single tokens, which need not be whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int]]] = {}

    def text(self, token_id: int) -> str:
        """What a token stands for; bytes that are no characters are spelled \\xNN."""
        return self._of(token_id)[0]

    def for_chat(self, ids: Sequence[int], columns: LogprobColumns | None) -> dict[str, Any] | None:
        """The `logprobs` of a choice of a chat completion; None where there are none."""
        if columns is None:
            return None
        return {"content": LazyList(lambda: self.entries(ids, columns)), "refusal": None}

    def entries(self, ids: Sequence[int], columns: LogprobColumns | None) -> Iterator[Any]:
        """One for each token, with the likeliest in its place; none where there are no columns."""
        for token_id, logprob, likeliest in rows(ids, columns):
            top = {"top_logprobs": [self._entry(*each) for each in likeliest]}
            yield self._entry(token_id, logprob) | top

    def for_prompt(self, ids: Sequence[int], columns: LogprobColumns) -> LazyList:
        """The `prompt_logprobs` of a reply: null for the first token, by id for the others."""
        return LazyList(lambda: self._of_prompt(ids, columns))

    def _of_prompt(self, ids: Sequence[int], columns: LogprobColumns) -> Iterator[Any]:
        yield None
        for token_id, logprob, likeliest in rows(ids[1:], columns):
            by_id = {token_id: logprob} | dict(likeliest)
            yield {
                str(each): {"logprob": value, "decoded_token": self.text(each)}
                for each, value in by_id.items()
            }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, data = self._of(token_id)
        return {"token": text, "logprob": logprob, "bytes": data}

    def _of(self, token_id: int) -> tuple[str, list[int]]:
        known = self._known.get(token_id)
        if known is None:
            data = self._tokenizer.token_bytes(token_id)
            known = data.decode("utf-8", "backslashreplace"), list(data)
            if len(self._known) < _MAX_KEPT:
                self._known[token_id] = known
        return known


class CompletionLogprobs:
    """The `logprobs` of a choice of a plain completion: columns, with offsets into its text."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._offset = 0

    def part(
        self,
        ids: Sequence[int],
        columns: LogprobColumns | None,
        *,
        echoed: "tuple[array[int], LogprobColumns] | None" = None,
    ) -> dict[str, Any]:
        """The columns of these tokens, after those of the prompt where it is echoed.

        None: there are no tokens but the prompt's.
        """
        said: list[tuple[Sequence[int], LogprobColumns]] = []
        if columns is not None:
            said.append((ids, columns))
        first: tuple[int, ...] = ()
        if echoed is not None:
            prompt_ids, prompt_columns = echoed
            first, said = (prompt_ids[0],), [(prompt_ids[1:], prompt_columns), *said]
        nothing = [None] * len(first)

        def of_rows(take: Callable[[Row], Any]) -> LazyList:
            return LazyList(lambda: chain(nothing, (take(r) for each in said for r in rows(*each))))

        begins = self._offset
        tokens = [*first, *(i for each in said for i in each[0])]
        for part in in_slices(tokens, SLICE_IDS):
            self._offset += sum([len(self._texts.text(each)) for each in part])
        return {
            "tokens": LazyList(lambda: map(self._texts.text, tokens)),
            "token_logprobs": of_rows(lambda row: row[1]),
            "top_logprobs": of_rows(self._likeliest),
            "text_offset": LazyList(lambda: self._offsets(tokens, begins)),
        }

    def _likeliest(self, row: Row) -> dict[str, float]:
        return {self._texts.text(each): value for each, value in row[2]}

    def _offsets(self, tokens: Sequence[int], begins: int) -> Iterator[int]:
        lengths = (len(self._texts.text(each)) for each in tokens)
        return islice(accumulate(lengths, initial=begins), len(tokens))
