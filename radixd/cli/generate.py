"""`radixd generate`: one prompt in, one answer out, for people and for programs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.radixd.v1 import inference_pb2
from radixd.cli.answer import answer_dict, joined, paragraphs, usage_line
from radixd.cli.client import CommandError
from radixd.cli.options import takes
from radixd.cli.request import (
    ROLE_USER,
    chat_message,
    fill,
    parse_biases,
    parse_ids,
    read_text,
)
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, err, print_json, write_text

Option = typer.Option


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(ServerOptions):
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
    n: Annotated[int | None, Option("--n", help="So many answers, 1 to 16.")] = None
    best_of: Annotated[int | None, Option(help="The n likeliest of so many.")] = None
    echo: Annotated[bool, Option("--echo", help="The prompt before the answer.")] = False
    prompt_logprobs: Annotated[int | None, Option(help="The same of the prompt's tokens.")] = None
    logit_bias: Annotated[
        list[str], Option(metavar="ID=BIAS", help="Added to a token's logit; repeatable.")
    ] = field(default_factory=list)
    stream_interval: Annotated[int | None, Option(help="So many tokens a message.")] = None
    session: Annotated[str | None, Option(help="The conversation, kept warm.")] = None
    json_schema: Annotated[
        Path | None, Option(help="A file with a JSON Schema that the answer follows; - is stdin.")
    ] = None
    json_object: Annotated[bool, Option("--json-object", help="Any JSON object.")] = False
    regex: Annotated[str | None, Option(help="What the whole answer matches.")] = None
    ebnf: Annotated[Path | None, Option(help="A file with the answer's grammar, GBNF.")] = None
    choice: Annotated[list[str], Option(help="One of these texts; repeatable.")] = field(
        default_factory=list
    )
    stream: Annotated[bool, Option(help="Show tokens as they come.")] = True
    json: Json = False


@takes(GenerateOptions)
def generate(options: GenerateOptions) -> None:
    """Generate a continuation of one prompt."""
    request = build_request(options)
    with options.connect() as client:
        # Of several answers at once, no terminal shows the pieces as they come.
        shows = options.stream and not options.json and (options.n or 1) == 1
        if options.stream:
            answer = joined(_shown(client.generate(request)) if shows else client.generate(request))
        else:
            unary = inference_pb2.GenerateUnaryRequest.FromString(request.SerializeToString())
            answer = client.generate_unary(unary)
    if options.json:
        print_json(answer_dict(answer))
        return
    write_text("\n" if shows else "".join(f"{text}\n" for text in paragraphs(answer)))
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
        n=options.n,
        best_of=options.best_of,
        echo=True if options.echo else None,
        prompt_logprobs=options.prompt_logprobs,
        stream_interval=options.stream_interval,
        session=options.session,
    )
    _set_constraint(request, options)
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
    request.sampling.logit_bias.update(parse_biases(options.logit_bias))
    return request


def _shown(pieces: Iterable[inference_pb2.GenerateResponse]) -> Iterator[Any]:
    for piece in pieces:
        write_text(piece.text)
        yield piece


def _set_constraint(request: inference_pb2.GenerateRequest, options: GenerateOptions) -> None:
    forms: dict[str, Any] = {
        "json_schema": options.json_schema,
        "json_object": options.json_object or None,
        "regex": options.regex,
        "ebnf": options.ebnf,
        "choice": options.choice or None,
    }
    given = {name: value for name, value in forms.items() if value is not None}
    if len(given) > 1:
        raise CommandError("give one of --json-schema, --json-object, --regex, --ebnf and --choice")
    for name, value in given.items():
        if name == "choice":
            fill(request.constraint.choice, texts=value)
        elif isinstance(value, Path):
            flag = f"--{name.replace('_', '-')}"
            fill(request.constraint, **{name: read_text(value, flag)})
        else:
            fill(request.constraint, **{name: value})


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
