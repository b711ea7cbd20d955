"""The output of a response, item by item, and the events that tell of it.

A whole reply is what the last event of the same output says.
"""

from collections.abc import Iterator
from typing import Any

from tokenizer_svc.http.json_reply import LazyList
from tokenizer_svc.http.sse import event
from tokenizer_svc.tokenizers.tokenizer import ToolCall

_LONG_LOGPROBS = 64
"""Of tokens, each with the likeliest in its place."""

_TEXT, _REASONING = "output_text", "reasoning_text"


class ResponseOutput:
    """Items in the order in which they begin; one of text at most is open."""

    def __init__(self, response_id: str, *, is_told: bool) -> None:
        """`is_told`: there are events; else only the items are wanted."""
        self._response_id = response_id
        self._is_told = is_told
        self._num_events = 0
        self._open: str | None = None
        """What the last item collects, until it is closed."""
        self._parts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._num_logprobs = 0
        """Of tokens, in all items."""
        self.items: list[dict[str, Any]] = []

    def named(self, event_name: str, **fields: Any) -> bytes:
        """An event of this stream, with its number; nothing where there are none."""
        if not self._is_told:
            return b""
        number = self._num_events
        self._num_events += 1
        body = {"type": event_name, "sequence_number": number, **fields}
        return event(body, name=event_name, is_long=self.is_long)

    @property
    def is_long(self) -> bool:
        """The event loop has no time to write all of it."""
        return self._num_logprobs > _LONG_LOGPROBS

    @property
    def closed_items(self) -> list[dict[str, Any]]:
        """Those that are complete."""
        return self.items if self._open is None else self.items[:-1]

    @property
    def is_in_text(self) -> bool:
        """The item that is open is the answer."""
        return self._open == _TEXT

    def text(self, delta: str, logprobs: list[dict[str, Any]]) -> Iterator[bytes]:
        """More of the answer, and the log probabilities of its tokens where they are wanted."""
        yield from self._open_as(_TEXT)
        self._parts.append(delta)
        self._logprobs += logprobs
        self._num_logprobs += len(logprobs)
        lazy = LazyList(lambda: logprobs)
        yield self._of_part(
            "response.output_text.delta", content_index=0, delta=delta, logprobs=lazy
        )

    def reasoning(self, delta: str) -> Iterator[bytes]:
        """More of what was thought before it."""
        yield from self._open_as(_REASONING)
        self._parts.append(delta)
        yield self._of_part("response.reasoning_text.delta", content_index=0, delta=delta)

    def call(self, call: ToolCall) -> Iterator[bytes]:
        """A call of a function, complete."""
        yield from self.close()
        item = {
            "type": "function_call",
            "id": self._item_id("fc"),
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        self.items.append(item)
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._of_item("response.output_item.added", item=begun)
        arguments = "response.function_call_arguments"
        yield self._of_part(f"{arguments}.delta", delta=call.arguments)
        yield self._of_part(f"{arguments}.done", arguments=call.arguments, name=call.name)
        yield self._of_item("response.output_item.done", item=item)

    def close(self, *, status: str = "completed") -> Iterator[bytes]:
        """Ends the item that is open, if one is."""
        if self._open is None:
            return
        entries = self._logprobs
        kind, text, logprobs = self._open, "".join(self._parts), LazyList(lambda: entries)
        self._open, self._parts, self._logprobs = None, [], []
        item, part = self.items[-1], _part(kind, text, logprobs)
        item["content"] = [part]
        if kind == _TEXT:
            item["status"] = status
        extra: dict[str, Any] = {"logprobs": logprobs} if kind == _TEXT else {}
        yield self._of_part(f"response.{kind}.done", content_index=0, text=text, **extra)
        if kind == _TEXT:
            yield self._of_part("response.content_part.done", content_index=0, part=part)
        yield self._of_item("response.output_item.done", item=item)

    def _open_as(self, kind: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self.close()
            yield from self._begin(kind)

    def _begin(self, kind: str) -> Iterator[bytes]:
        item: dict[str, Any]
        if kind == _TEXT:
            item = {
                "type": "message",
                "id": self._item_id("msg"),
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
        else:
            item = {"type": "reasoning", "id": self._item_id("rs"), "summary": [], "content": []}
        self._open = kind
        self.items.append(item)
        yield self._of_item("response.output_item.added", item=item)
        if kind == _TEXT:
            part = _part(kind, "", LazyList(list))
            yield self._of_part("response.content_part.added", content_index=0, part=part)

    def _of_item(self, name: str, *, item: dict[str, Any]) -> bytes:
        return self.named(name, output_index=len(self.items) - 1, item=item)

    def _of_part(self, event_name: str, **fields: Any) -> bytes:
        item_id, index = self.items[-1]["id"], len(self.items) - 1
        return self.named(event_name, item_id=item_id, output_index=index, **fields)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._response_id}_{len(self.items)}"


def _part(kind: str, text: str, logprobs: LazyList) -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind, "text": text}
    return part | {"annotations": [], "logprobs": logprobs} if kind == _TEXT else part
