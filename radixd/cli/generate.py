"""`radixd generate`: one prompt in, one answer out, for people and for programs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.radixd.v1 import inference_pb2
from radixd.cli.client import Client, CommandError, default_target
from radixd.cli.options import takes
from radixd.cli.request import ROLE_USER, chat_message, fill, parse_ids, read_text
from radixd.cli.terminal import (
    ApiKey,
    Json,
    Target,
    err,
    finish_name,
    print_json,
    usage_dict,
    write_text,
)

Option = typer.Option


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What the user typed; None: not given, so the server's default holds."""

    prompt: Annotated[str | None, Option(help="Plain text to continue.")] = None
    prompt_file: Annotated[Path | None, Option(help="The same from a file; - is stdin.")] = None
    chat: Annotated[str | None, Option(help="A user message, put into the chat template.")] = None
    ids: Annotated[str | None, Option(metavar="1,2,3", help="Token ids, as they stand.")] = None
    max_tokens: Annotated[int | None, Option(help="Most tokens to generate.")] = None
    seed: Annotated[int | None, Option(help="Same seed, same tokens; drawn when absent.")] = None
    temperature: Annotated[float | None, Option(help="0, the default, is greedy.")] = None
    top_k: Annotated[int | None, Option(help="Keep the k likeliest tokens; 0: all.")] = None
    top_p: Annotated[float | None, Option(help="Keep the likeliest that reach this.")] = None
    min_p: Annotated[float | None, Option(help="Keep those this likely to the best.")] = None
    min_tokens: Annotated[int | None, Option(help="So many come before an end may.")] = None
    repetition_penalty: Annotated[float | None, Option(help="Above 1: repeat less.")] = None
    presence_penalty: Annotated[float | None, Option(help="Off what occurred.")] = None
    frequency_penalty: Annotated[float | None, Option(help="Off for each occurrence.")] = None
    logprobs: Annotated[
        int | None, Option(help="With so many alternatives a token; --json shows them.")
    ] = None
    stop: Annotated[list[str], Option(help="Text that ends the answer; repeatable.")] = field(
        default_factory=list
    )
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on past end of text.")] = False
    timeout_ms: Annotated[int | None, Option(help="Time the request may take in all.")] = None
    cache_domain: Annotated[str | None, Option(help="Share prefixes only within this.")] = None
    no_store: Annotated[bool, Option("--no-store", help="Keep nothing in the cache.")] = False
    priority: Annotated[int | None, Option(help="Higher goes first; -100 to 100.")] = None
    workload: Annotated[str | None, Option(help="Class: chat, code, longform, ...")] = None
    request_id: Annotated[str | None, Option(help="Chosen id; drawn when absent.")] = None
    stream: Annotated[bool, Option(help="Show tokens as they come.")] = True
    json: Json = False
    target: Target = None
    api_key: ApiKey = None


@takes(GenerateOptions)
def generate(options: GenerateOptions) -> None:
    """Generate a continuation of one prompt."""
    request = build_request(options)
    with Client(options.target or default_target(), api_key=options.api_key) as client:
        if options.stream:
            answer = _collect(client, request, show=not options.json)
        else:
            unary = inference_pb2.GenerateUnaryRequest.FromString(request.SerializeToString())
            answer = client.generate_unary(unary)
            if not options.json:
                write_text(answer.text)
    if options.json:
        print_json(answer_dict(answer))
        return
    write_text("\n")
    err.print(usage_line(answer), style="dim", markup=False)


def build_request(options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """The request the options describe.

    Raises:
        CommandError: not exactly one prompt, or a value that fits no message.
    """
    request = inference_pb2.GenerateRequest()
    _set_prompt(request, options)
    fill(
        request,
        request_id=options.request_id,
        timeout_ms=options.timeout_ms,
        cache_domain=options.cache_domain,
        no_store=True if options.no_store else None,
        priority=options.priority,
        workload=options.workload,
    )
    fill(
        request.sampling,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logprobs=options.logprobs,
        stop=options.stop,
        ignore_eos=True if options.ignore_eos else None,
    )
    return request


def _set_prompt(request: inference_pb2.GenerateRequest, options: GenerateOptions) -> None:
    given = [options.prompt, options.prompt_file, options.chat, options.ids]
    if sum(value is not None for value in given) != 1:
        raise CommandError("give one of --prompt, --prompt-file, --chat and --ids")
    if options.chat is not None:
        request.chat.messages.append(chat_message(ROLE_USER, options.chat))
    elif options.ids is not None:
        request.tokens.SetInParent()
        fill(request.tokens, ids=parse_ids(options.ids))
    elif options.prompt_file is not None:
        fill(request, text=read_text(options.prompt_file, "--prompt-file"))
    else:
        fill(request, text=options.prompt)


def _collect(
    client: Client, request: inference_pb2.GenerateRequest, *, show: bool
) -> inference_pb2.GenerateUnaryResponse:
    """The stream as one answer, the same that GenerateUnary gives."""
    answer = inference_pb2.GenerateUnaryResponse()
    texts: list[str] = []
    for piece in client.generate(request):
        if show:
            write_text(piece.text)
        texts.append(piece.text)
        # Strings would be replaced, repeated fields are appended: text is put in at the end.
        answer.MergeFromString(piece.SerializeToString())
    answer.text = "".join(texts)
    return answer


def answer_dict(answer: inference_pb2.GenerateUnaryResponse) -> dict[str, Any]:
    """The answer as the one JSON object of `--json`."""
    value: dict[str, Any] = {
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "finish_reason": finish_name(answer.finish_reason),
        "usage": usage_dict(answer.usage),
        "seed": answer.seed,
        "request_id": answer.request_id,
    }
    matched = answer.WhichOneof("matched")
    if matched is not None:
        value[matched] = getattr(answer, matched)
    if answer.finish_message:
        value["finish_message"] = answer.finish_message
    if answer.logprobs:
        value["logprobs"] = [_logprobs_dict(entry) for entry in answer.logprobs]
    return value


def _logprobs_dict(entry: inference_pb2.TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token.token_id, "logprob": token.logprob} for token in entry.top]
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": top}


def usage_line(answer: Any) -> str:
    """The bill of an answer in one line, for people."""
    usage = answer.usage
    line = (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} generated, {finish_name(answer.finish_reason)}, "
        f"seed {answer.seed}"
    )
    return f"{line}: {answer.finish_message}" if answer.finish_message else line
