"""How the command line speaks to a server: the public gRPC, and every error as one line.

Not here: what a command prints when all goes well, and anything that starts a server.
"""

import os
import re
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from protos.errors import RadixdError
from protos.radixd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from radixd.chassis.grpc_server import CLIENT_OPTIONS, join_address
from radixd.chassis.setting_sources import API_KEY_VARIABLE, load_settings
from radixd.chassis.settings import Settings
from radixd.cli.encryption import NO_TLS, SCHEME, ClientTls, channel_credentials

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *CLIENT_OPTIONS,
    # A proxy in the environment is meant for the web, not for a server beside us.
    ("grpc.enable_http_proxy", 0),
]

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}

T = TypeVar("T")


class CommandError(RadixdError):
    """A command cannot go on; the message is the one line the user sees, exit code 1."""


def default_target() -> str:
    """Where `radixd up` listens under the same environment.

    Raises:
        InvalidRequest: a RADIXD_ variable is wrong.
    """
    return server_address(load_settings({}))


def server_address(settings: Settings) -> str:
    """Where a server with these settings is reached from this machine."""
    if settings.probe_socket is not None:
        # Who started it needs no certificate to get in.
        return f"unix:{settings.probe_socket}"
    return join_address(reachable(settings.host), settings.port)


def reachable(host: str) -> str:
    """The host to connect to for a host that is listened on."""
    bare = host.strip("[]")
    return _WILDCARDS.get(bare, bare)


def parse_target(text: str) -> str:
    """The gRPC target for an address as people write it.

    Accepts host:port, grpc://host:port, grpcs://host:port, [::1]:port, dns:///name:port and
    unix:path; whether it is encrypted is the business of `encryption`.

    Raises:
        CommandError: says what is wrong with the address.
    """
    target = text.strip().removesuffix("/")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", target)
    if scheme and scheme[1] in ("http", "https"):
        raise CommandError(f"--target {text}: this is an HTTP address; give HOST:PORT of the gRPC")
    if scheme and scheme[1] not in ("grpc", "grpcs", "dns", "unix"):
        raise CommandError(f"--target {text}: unknown scheme {scheme[1]}; give HOST:PORT")
    if target.startswith("unix:"):
        return target
    target = target.removeprefix("grpc://").removeprefix(SCHEME)
    prefix = "dns:///" if target.startswith("dns:///") else ""
    rest = target.removeprefix(prefix)
    host, colon, port = rest.rpartition(":")
    if host.count(":") and not (host.startswith("[") and host.endswith("]")):
        raise CommandError(f"--target {text}: write an IPv6 address as [{rest}]:PORT")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise CommandError(f"--target {text}: HOST:PORT was expected")
    return f"{prefix}{host}:{port}"


def explain(error: grpc.RpcError, target: str, *, has_answered: bool = False) -> CommandError:
    """What a failed call means, in one line; details come from google.rpc.Status.

    `has_answered`: messages came before the failure, so there was a server.
    """
    code, details = error.code(), str(error.details() or "")
    status = _rich_status(error)
    if status is None:
        if code is grpc.StatusCode.UNAVAILABLE and has_answered:
            return CommandError(f"the radixd at {target} went away in the middle of its answer")
        if code is grpc.StatusCode.UNAVAILABLE and (problem := _handshake_problem(details)):
            return CommandError(f"{target}: {problem}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return CommandError(f"no radixd answers at {target}; start one with `radixd up`")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return CommandError(f"the server at {target} is not a radixd of this version")
        return CommandError(f"{_one_line(details) or 'the call failed'} ({code.name})")
    line = _one_line(status.message)
    for detail in status.details:
        line += _detail_text(detail, line)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        line += f"; set {API_KEY_VARIABLE} or give --api-key"
    return CommandError(f"{line} ({code.name})")


def _handshake_problem(details: str) -> str | None:
    """What keeps two that have found each other from an encrypted connection, or from a plain one;
    None: something else."""
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not signed by anybody we trust; --tls-ca FILE names who did"
    if "WRONG_VERSION_NUMBER" in details:
        return "it speaks without encryption; give HOST:PORT alone"
    if "Hostname Verification" in details or "Peer name" in details:
        return "its certificate is for another name than the one it was called by"
    if details.startswith("failed to connect") and "Socket closed" in details:
        return (
            "it ends the connection; perhaps it wants encryption (--target grpcs://HOST:PORT) or "
            "a client's certificate (--tls-cert, --tls-key)"
        )
    return None


def _rich_status(error: grpc.RpcError) -> Any | None:
    try:
        return rpc_status.from_call(error)
    except ValueError:  # a status that contradicts the call it came with
        return None


def _detail_text(detail: Any, line: str) -> str:
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    if detail.Unpack(bad):
        named = [v for v in bad.field_violations if v.field and v.field not in line]
        return "".join(f"; {v.field}: {_one_line(v.description)}" for v in named)
    if detail.Unpack(retry):
        delay_s = retry.retry_delay.ToMilliseconds() / 1000
        return f"; try again in {delay_s:g} s"
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def key_metadata(api_key: str | None = None) -> tuple[tuple[str, str], ...]:
    """The metadata that shows a key, or the one of the environment; empty where there is none.

    Raises:
        CommandError: it cannot be a key; does not quote it.
    """
    key = os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key
    if not key:
        return ()
    if not re.fullmatch(r"[!-~]+", key):
        where = API_KEY_VARIABLE if api_key is None else "--api-key"
        raise CommandError(f"{where}: a key has neither blanks nor characters beyond ASCII")
    return (("authorization", f"Bearer {key}"),)


class Client:
    """A connection to one server; every failed call raises CommandError."""

    def __init__(self, target: str, *, api_key: str | None = None, tls: ClientTls = NO_TLS) -> None:
        self.target = parse_target(target)
        self._metadata = key_metadata(api_key)
        credentials = channel_credentials(target, tls)
        if credentials is None:
            self._channel = grpc.insecure_channel(self.target, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(self.target, credentials, options=CHANNEL_OPTIONS)
        self._inference: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every call on it."""
        self._channel.close()

    def generate(
        self, request: inference_pb2.GenerateRequest
    ) -> Generator[inference_pb2.GenerateResponse, None, None]:
        """The pieces of an answer; closing the generator cancels the request."""
        yield from self._stream(self._inference.Generate, request, _patience_s(request))

    def generate_unary(
        self, request: inference_pb2.GenerateUnaryRequest
    ) -> inference_pb2.GenerateUnaryResponse:
        """The whole answer at once."""
        method, reply = self._inference.GenerateUnary, inference_pb2.GenerateUnaryResponse
        return self._ask(method, request, reply, _patience_s(request))

    def stats(self) -> admin_pb2.GetStatsResponse:
        """The books of the server."""
        request, reply = admin_pb2.GetStatsRequest(), admin_pb2.GetStatsResponse
        return self._ask(self._admin.GetStats, request, reply, 30)

    def watch_stats(self, interval_s: float) -> Generator[admin_pb2.WatchStatsResponse, None, None]:
        """The books at once and every interval; closing the generator ends it."""
        request = admin_pb2.WatchStatsRequest(interval_ms=max(0, round(interval_s * 1000)))
        yield from self._stream(self._admin.WatchStats, request, None)

    def pins(self) -> admin_pb2.ListPinsResponse:
        """Pins that hold."""
        request, reply = admin_pb2.ListPinsRequest(), admin_pb2.ListPinsResponse
        return self._ask(self._admin.ListPins, request, reply, 30)

    def unpin(self, request: admin_pb2.UnpinRequest) -> admin_pb2.UnpinResponse:
        """Removes pins."""
        return self._ask(self._admin.Unpin, request, admin_pb2.UnpinResponse, 30)

    def sessions(self, request: admin_pb2.ListSessionsRequest) -> admin_pb2.ListSessionsResponse:
        """Conversations that are kept warm."""
        return self._ask(self._admin.ListSessions, request, admin_pb2.ListSessionsResponse, 30)

    def close_session(
        self, request: admin_pb2.CloseSessionRequest
    ) -> admin_pb2.CloseSessionResponse:
        """Forgets one of them."""
        return self._ask(self._admin.CloseSession, request, admin_pb2.CloseSessionResponse, 30)

    def requests(self, request: admin_pb2.ListRequestsRequest) -> admin_pb2.ListRequestsResponse:
        """Live requests."""
        return self._ask(self._admin.ListRequests, request, admin_pb2.ListRequestsResponse, 30)

    def explain_request(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        """Why a request is where it is."""
        return self._ask(self._admin.Explain, request, admin_pb2.ExplainResponse, 30)

    def policy(self) -> admin_pb2.GetPolicyResponse:
        """The policies in force, and those there are."""
        request, reply = admin_pb2.GetPolicyRequest(), admin_pb2.GetPolicyResponse
        return self._ask(self._admin.GetPolicy, request, reply, 30)

    def set_policy(self, request: admin_pb2.SetPolicyRequest) -> admin_pb2.SetPolicyResponse:
        """Changes policies at once."""
        return self._ask(self._admin.SetPolicy, request, admin_pb2.SetPolicyResponse, 30)

    def preheat(self, request: admin_pb2.PreheatRequest) -> admin_pb2.PreheatResponse:
        """Computes prefixes into the cache; takes as long as the arithmetic takes."""
        return self._ask(self._admin.Preheat, request, admin_pb2.PreheatResponse, None)

    def flush(self) -> admin_pb2.FlushCacheResponse:
        """Forgets every cached prefix."""
        request, reply = admin_pb2.FlushCacheRequest(), admin_pb2.FlushCacheResponse
        return self._ask(self._admin.FlushCache, request, reply, 60)

    def dump_tree(self, max_nodes: int) -> admin_pb2.DumpTreeResponse:
        """The radix tree, parents before children."""
        request = admin_pb2.DumpTreeRequest(max_nodes=max_nodes)
        return self._ask(self._admin.DumpTree, request, admin_pb2.DumpTreeResponse, 60)

    def is_serving(self, *, timeout_s: float) -> bool:
        """What the standard health service says of the whole server."""
        request, reply = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        answer = self._ask(self._health.Check, request, reply, timeout_s)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _stream(
        self, method: Any, request: Any, timeout_s: float | None
    ) -> Generator[Any, None, None]:
        call = method(request, timeout=timeout_s, metadata=self._metadata)
        has_answered = False
        try:
            for message in call:
                has_answered = True
                yield message
        except grpc.RpcError as error:
            raise explain(error, self.target, has_answered=has_answered) from None
        finally:
            call.cancel()

    def _ask(self, method: Any, request: Any, reply: type[T], timeout_s: float | None) -> T:
        try:
            answer = method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise explain(error, self.target) from None
        assert isinstance(answer, reply), answer
        return answer


def _patience_s(
    request: inference_pb2.GenerateRequest | inference_pb2.GenerateUnaryRequest,
) -> float | None:
    # Later than the request's own deadline, so that the server can end it with partial output.
    return request.timeout_ms / 1000 + 5 if request.HasField("timeout_ms") else None
