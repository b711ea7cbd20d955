"""Answers of generations: pieces of a stream joined, as JSON for programs, as a bill for people."""

from collections.abc import Iterable, Iterator
from typing import Any

from protos.radixd.v1 import inference_pb2
from radixd.cli.terminal import finish_name, usage_dict

Response = inference_pb2.GenerateResponse
Whole = inference_pb2.GenerateUnaryResponse


def joined(pieces: Iterable[Response]) -> Whole:
    """A stream as one answer, the same that GenerateUnary gives."""
    answer = Whole()
    choices: dict[int, inference_pb2.Choice] = {}
    texts: dict[int, list[str]] = {}
    for piece in pieces:
        choice = choices.setdefault(piece.choice, inference_pb2.Choice())
        texts.setdefault(piece.choice, []).append(piece.text)
        _add(choice, piece)
        if piece.request_id:
            answer.request_id = piece.request_id
        if piece.HasField("seed"):
            answer.seed = piece.seed
        if piece.HasField("usage"):
            answer.usage.CopyFrom(piece.usage)
        answer.prompt_logprobs.extend(piece.prompt_logprobs)
    for number, choice in choices.items():
        choice.text = "".join(texts[number])
    if choices:
        first = choices[min(choices)]
        _set_first(answer, first)
    if len(choices) > 1:
        answer.choices.extend(choices[number] for number in sorted(choices))
    return answer


def _add(choice: inference_pb2.Choice, piece: Response) -> None:
    choice.token_ids.extend(piece.token_ids)
    choice.logprobs.extend(piece.logprobs)
    choice.tool_calls.extend(piece.tool_calls)
    choice.reasoning_text += piece.reasoning_text
    if piece.finish_reason:
        choice.finish_reason = piece.finish_reason
        choice.finish_message = piece.finish_message
    _copy_matched(piece, choice)


def _set_first(answer: Whole, first: inference_pb2.Choice) -> None:
    answer.text, answer.reasoning_text = first.text, first.reasoning_text
    answer.token_ids.extend(first.token_ids)
    answer.logprobs.extend(first.logprobs)
    answer.tool_calls.extend(first.tool_calls)
    answer.finish_reason, answer.finish_message = first.finish_reason, first.finish_message
    _copy_matched(first, answer)


def _copy_matched(source: Any, target: Any) -> None:
    matched = source.WhichOneof("matched")
    if matched is not None:
        setattr(target, matched, getattr(source, matched))


def answer_dict(answer: Whole) -> dict[str, Any]:
    """The answer as the one JSON object of `--json`."""
    value = _choice_dict(answer)
    value["usage"] = usage_dict(answer.usage)
    value["seed"] = answer.seed
    value["request_id"] = answer.request_id
    if answer.prompt_logprobs:
        value["prompt_logprobs"] = [_logprobs_dict(entry) for entry in answer.prompt_logprobs]
    if answer.choices:
        value["choices"] = [_choice_dict(choice) for choice in answer.choices]
    return value


def _choice_dict(choice: Whole | inference_pb2.Choice) -> dict[str, Any]:
    value: dict[str, Any] = {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": finish_name(choice.finish_reason),
    }
    matched = choice.WhichOneof("matched")
    if matched is not None:
        value[matched] = getattr(choice, matched)
    if choice.finish_message:
        value["finish_message"] = choice.finish_message
    if choice.logprobs:
        value["logprobs"] = [_logprobs_dict(entry) for entry in choice.logprobs]
    return value


def _logprobs_dict(entry: inference_pb2.TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token.token_id, "logprob": token.logprob} for token in entry.top]
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": top}


def paragraphs(answer: Whole) -> Iterator[str]:
    """The text of each choice, for people."""
    for choice in answer.choices or [answer]:
        yield choice.text


def usage_line(answer: Any) -> str:
    """The bill of an answer in one line, for people."""
    usage = answer.usage
    line = (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} generated, {finish_name(answer.finish_reason)}, "
        f"seed {answer.seed}"
    )
    return f"{line}: {answer.finish_message}" if answer.finish_message else line
