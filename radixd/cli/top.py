"""`radixd top`: the books of a running server, live: who owns the slots, what flows, what it is
worth.

The server sends the books by itself; how they look is in `top_view`.
"""

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError
from radixd.cli.options import takes
from radixd.cli.server_options import ServerOptions
from radixd.cli.silence import watched
from radixd.cli.terminal import Json, out, print_json
from radixd.cli.top_view import Look, compare, look_dict, render

SILENT_S = 2.0
"""Beyond the interval: then a screen says that there is no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions(ServerOptions):
    """What the user typed."""

    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0
    once: Annotated[bool, typer.Option("--once", help="One look, one interval long.")] = False
    json: Json = False


@takes(TopOptions)
def top(options: TopOptions) -> None:
    """Watch the books: slots by owner, requests, tokens a second, reuse, economy."""
    with options.connect() as client:
        try:
            if options.json or options.once:
                _print(client, options)
            else:
                _draw(client, options)
        except KeyboardInterrupt:
            return


def looks(client: Client, interval_s: float) -> Generator[Look, None, None]:
    """A look for every message of the server but the first, which only rates need.

    Raises:
        CommandError: the server is away or refuses.
    """
    before: admin_pb2.GetStatsResponse | None = None
    before_s = 0.0
    with contextlib.closing(client.watch_stats(interval_s)) as messages:
        for message in messages:
            now_s = time.monotonic()
            if before is not None:
                yield compare(before, message.stats, now_s - before_s)
            before, before_s = message.stats, now_s


def _print(client: Client, options: TopOptions) -> None:
    with contextlib.closing(looks(client, options.interval)) as found:
        for look in found:
            if options.json:
                print_json(look_dict(look))
            else:
                out.print(render(look, client.target))
            if options.once:
                return


def _draw(client: Client, options: TopOptions) -> None:
    screen = Screen(client, options.interval)
    with Live(screen.shown, console=out, auto_refresh=False, screen=out.is_terminal) as live:
        screen.live = live
        while True:
            try:
                with (
                    contextlib.closing(looks(client, options.interval)) as found,
                    contextlib.closing(watched(found, screen.ask_why_silent)) as heard,
                ):
                    for look in heard:
                        screen.show(look)
            except CommandError as error:
                # A server that comes back is shown again; the last books stay on the screen.
                screen.note(str(error))
            time.sleep(options.interval)


class Screen:
    """The last look, and a line below it when there is no newer one."""

    def __init__(self, client: Client, interval_s: float) -> None:
        self._client = client
        self._silent_after_s = interval_s + SILENT_S
        self._news_at_s = time.monotonic()
        self.shown: RenderableType = Text(f"looking at {client.target}", "dim")
        self.live: Live | None = None

    def show(self, look: Look) -> None:
        """Draws a look."""
        self._news_at_s = time.monotonic()
        self.shown = render(look, self._client.target)
        self._update(self.shown)

    def note(self, text: str) -> None:
        """Says something below the last look."""
        self._update(Group(self.shown, Text(text, "red")))

    def ask_why_silent(self) -> str | None:
        """From another thread: why no books come; None: it is not long yet, or all is well."""
        if time.monotonic() - self._news_at_s < self._silent_after_s:
            return None
        try:
            self._client.stats()
        except CommandError as error:
            self.note(str(error))
            return str(error)
        return None

    def _update(self, content: RenderableType) -> None:
        if self.live is not None:
            self.live.update(content, refresh=True)
