"""`radixd chat`: a conversation; each turn sends all turns before it, which the cache makes cheap.

At a terminal it edits lines, colors its own words and takes commands.  From a pipe each line is
one turn, and only the answers come out.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from protos.radixd.v1 import inference_pb2
from radixd.cli.answer import usage_line
from radixd.cli.client import Client, CommandError
from radixd.cli.options import takes
from radixd.cli.request import (
    ROLE_ASSISTANT,
    ROLE_SYSTEM,
    ROLE_USER,
    chat_message,
    fill,
)
from radixd.cli.server_options import ServerOptions
from radixd.cli.silence import watched
from radixd.cli.terminal import err, write_text

HELP = """/reset          forget the conversation
/system [TEXT]  set the system message and start over; without TEXT: the template's own
/quit           leave; so does Ctrl-D
Ctrl-C          stop the answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(ServerOptions):
    """What the user typed.  A little temperature keeps small models from going in circles."""

    system: Annotated[str | None, typer.Option(help="System message.")] = None
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one answer.")] = 512
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.2
    top_p: Annotated[float, typer.Option(help="Keep the likeliest that reach this.")] = 0.9
    seed: Annotated[int | None, typer.Option(help="Of every turn; drawn when absent.")] = None
    cache_domain: Annotated[str | None, typer.Option(help="Share prefixes only in here.")] = None


@takes(ChatOptions)
def chat(options: ChatOptions) -> None:
    """Hold a conversation with the model."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with options.connect() as client:
        conversation = Conversation(client, options, is_terminal=is_terminal)
        if is_terminal:
            model = client.stats().model
            err.print(f"{model.name} at {client.target}; /help for help", style="dim")
        for line in _lines(is_terminal=is_terminal):
            if not conversation.take(line):
                break


class Conversation:
    """The turns so far, and what a line does to them."""

    def __init__(self, client: Client, options: ChatOptions, *, is_terminal: bool) -> None:
        self._client = client
        self._options = options
        self._is_terminal = is_terminal
        self._system = options.system
        self._turns: list[inference_pb2.ChatMessage] = []

    def take(self, line: str) -> bool:
        """Obeys a command or answers a turn; False: the user leaves.

        Raises:
            CommandError: the server refused, and nobody is there to read it and try again.
        """
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return False
        if command == "/reset":
            self._turns.clear()
            self._note("the conversation is forgotten")
        elif command == "/system":
            self._turns.clear()
            self._system = rest.strip() or None
            which = "this" if self._system else "no"
            self._note(f"a new conversation, with {which} system message")
        elif command == "/help":
            err.print(HELP, style="dim", markup=False)
        elif self._is_terminal and command.startswith("/"):
            self._note(f"{command} is no command; /help lists them")
        elif command:
            self._answer(line)
        return True

    def _why_silent(self) -> str | None:
        try:
            if self._client.stats().worker_connected:
                return None
        except CommandError:
            return None  # the stream itself will tell
        reason = "the worker is away; the answer goes on when it is back"
        self._note(f"\n({reason})")
        return reason

    def _note(self, text: str) -> None:
        if self._is_terminal:
            err.print(text, style="dim", markup=False)

    def _answer(self, line: str) -> None:
        self._turns.append(chat_message(ROLE_USER, line))
        said: list[str] = []
        try:
            self._stream(said)
        except KeyboardInterrupt:
            # What was said stands; the model sees it as its own words in the next turn.
            write_text("\n")
        except CommandError as error:
            self._turns.pop()
            if not self._is_terminal:
                raise
            hint = "; /reset starts over" if self._turns else ""
            err.print(f"{error}{hint}", style="red", markup=False)
            return
        self._turns.append(chat_message(ROLE_ASSISTANT, "".join(said)))

    def _stream(self, said: list[str]) -> None:
        last = inference_pb2.GenerateResponse()
        pieces = self._client.generate(self._request())
        with contextlib.ExitStack() as streams:
            streams.enter_context(contextlib.closing(pieces))
            if self._is_terminal:
                pieces = streams.enter_context(
                    contextlib.closing(watched(pieces, self._why_silent))
                )
            for piece in pieces:
                said.append(piece.text)
                write_text(piece.text)
                last = piece
        write_text("\n")
        if self._is_terminal:
            err.print(usage_line(last), style="dim", markup=False)

    def _request(self) -> inference_pb2.GenerateRequest:
        request = inference_pb2.GenerateRequest()
        if self._system is not None:
            request.chat.messages.append(chat_message(ROLE_SYSTEM, self._system))
        request.chat.messages.extend(self._turns)
        fill(request, cache_domain=self._options.cache_domain)
        fill(
            request.sampling,
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
            top_p=self._options.top_p,
            seed=self._options.seed,
        )
        return request


def _lines(*, is_terminal: bool) -> Iterator[str]:
    """Lines of the user until the end of input; Ctrl-C at the prompt drops the line."""
    if not is_terminal:
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (its import gives input() line editing and history)
    while True:
        try:
            yield input("\n> ")
        except EOFError:
            write_text("\n")
            return
        except KeyboardInterrupt:
            write_text("\n")
