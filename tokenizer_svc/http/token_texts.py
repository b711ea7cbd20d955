"""Log probabilities as OpenAI writes them: with the text and the bytes of every token."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from protos.plan import LogprobColumns
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
        return {"content": self.entries(ids, columns), "refusal": None}

    def entries(self, ids: Sequence[int], columns: LogprobColumns | None) -> list[dict[str, Any]]:
        """One for each token, with the likeliest in its place; none where there are no columns."""
        return [
            self._entry(token_id, logprob)
            | {"top_logprobs": [self._entry(*each) for each in likeliest]}
            for token_id, logprob, likeliest in rows(ids, columns)
        ]

    def for_prompt(self, ids: Sequence[int], columns: LogprobColumns) -> list[Any]:
        """The `prompt_logprobs` of a reply: null for the first token, by id for the others."""
        found: list[Any] = [None]
        for token_id, logprob, likeliest in rows(ids[1:], columns):
            by_id = {token_id: logprob} | dict(likeliest)
            found.append(
                {
                    str(each): {"logprob": value, "decoded_token": self.text(each)}
                    for each, value in by_id.items()
                }
            )
        return found

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
        part: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        if echoed is not None:
            prompt_ids, prompt_columns = echoed
            self._add(part, prompt_ids[0], None, None)
            for row in rows(prompt_ids[1:], prompt_columns):
                self._add(part, *row)
        for row in rows(ids, columns):
            self._add(part, *row)
        return part

    def _add(
        self,
        part: dict[str, Any],
        token_id: int,
        logprob: float | None,
        likeliest: list[tuple[int, float]] | None,
    ) -> None:
        text = self._texts.text(token_id)
        part["tokens"].append(text)
        part["token_logprobs"].append(logprob)
        part["top_logprobs"].append(
            None
            if likeliest is None
            else {self._texts.text(each): value for each, value in likeliest}
        )
        part["text_offset"].append(self._offset)
        self._offset += len(text)


def rows(
    ids: Sequence[int], columns: LogprobColumns | None
) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """Of each token: its id, its log probability, and the likeliest with theirs."""
    if columns is None or not ids:
        return
    num_top = len(columns.top_ids) // len(ids)
    tops = list(zip(columns.top_ids, columns.top_logprobs, strict=True))
    for at, (token_id, logprob) in enumerate(zip(ids, columns.chosen, strict=True)):
        yield token_id, logprob, tops[at * num_top : at * num_top + num_top]
