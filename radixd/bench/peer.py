"""A server of another make, known by the OpenAI API: its name, its address, its model.

Not here: playing a workload against it (peer_player.py).
"""

from dataclasses import dataclass
from typing import Any

import httpx2

from radixd.cli.client import CommandError

CONNECT_S = 10.0
SILENCE_S = 600.0
"""A peer that says nothing for longer than this is taken for hung; a small machine may need
minutes for the prompts of a workload."""

OURS = "radixd"
"""What no peer can be called, because our own figures stand under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where a peer is and what to call it."""

    name: str
    url: str
    """Without a path: what comes before /v1."""
    model: str = ""
    """As the peer calls it; empty until `find_model`."""

    def failure(self, problem: str) -> CommandError:
        """What went wrong, in one line that names the peer."""
        return CommandError(f"{self.name} at {self.url}: {' '.join(problem.split())}")


def parse_peers(texts: list[str]) -> list[Peer]:
    """Peers as people write them: NAME=URL, or a URL alone, whose host and port are the name.

    Raises:
        CommandError: a URL is none, or two peers have one name.
    """
    peers = [_parse(text) for text in texts]
    names = [OURS, *(peer.name for peer in peers)]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(f"--vs: two are called {name}; give NAME=URL with another name")
    return peers


def _parse(text: str) -> Peer:
    name, equals, address = text.partition("=")
    if not equals or "/" in name:  # an equals sign of the URL's own
        name, address = "", text
    try:
        url = httpx2.URL(address.strip())
    except httpx2.InvalidURL as error:
        raise CommandError(f"--vs {text}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise CommandError(f"--vs {text}: [NAME=]http://127.0.0.1:8080 was expected")
    if url.path.rstrip("/") not in ("", "/v1") or url.query:
        raise CommandError(f"--vs {text}: give the address without a path; /v1 is known")
    return Peer(
        name=name.strip() or url.netloc.decode(), url=f"{url.scheme}://{url.netloc.decode()}"
    )


def http_client(peer: Peer) -> httpx2.AsyncClient:
    """A client of this peer alone; proxies of the environment are meant for the web.

    Connections are not kept: a server may close an idle one just as the next request is sent on
    it, and a run with a hole has no figures.  On the loopback a new one costs far less than a
    token.
    """
    return httpx2.AsyncClient(
        base_url=peer.url,
        trust_env=False,
        timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )


async def find_model(peer: Peer) -> str:
    """The first model that the peer lists.

    Raises:
        CommandError: nothing answers there, or nothing that speaks this API.
    """
    async with http_client(peer) as client:
        try:
            response = await client.get("/v1/models")
        except httpx2.HTTPError as error:
            raise peer.failure(explain_http(error)) from None
    if not response.is_success:
        raise peer.failure(f"/v1/models: {refusal_text(response)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise peer.failure("/v1/models names no model") from None


def explain_http(error: httpx2.HTTPError, *, has_answered: bool = False) -> str:
    """Why a call failed before it was answered, or in the middle of the answer."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "nothing answers there"
    if isinstance(error, httpx2.ReadTimeout):
        return f"it said nothing for {SILENCE_S:g} s"
    if isinstance(error, httpx2.SSEError):
        return str(error)
    where = "in the middle of an answer" if has_answered else "without an answer"
    return f"it went away {where} ({str(error) or type(error).__name__})"


def refusal_text(response: httpx2.Response) -> str:
    """Status and message of an error whose body has been read."""
    try:
        value = response.json()
    except ValueError:
        value = response.text
    status = f"{response.status_code} {response.reason_phrase}".strip()
    return f"{status}: {error_text(value)}"


def error_text(value: Any) -> str:
    """The message of an error, in the forms that servers give it."""
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if key in value), None)
    return str(value)[:500]
