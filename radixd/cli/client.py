"""How the command line speaks to a server: the public gRPC, and every error as one line.

Not here: what a command prints when all goes well, and anything that starts a server.
"""

import re
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from protos.radixd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from radixd.chassis.grpc_server import CLIENT_OPTIONS, join_address
from radixd.chassis.settings import Settings, load_settings

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *CLIENT_OPTIONS,
    # A proxy in the environment is meant for the web, not for a server beside us.
    ("grpc.enable_http_proxy", 0),
]

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}

T = TypeVar("T")


class CommandError(Exception):
    """A command cannot go on; the message is the one line the user sees, exit code 1."""


def default_target() -> str:
    """Where `radixd up` listens under the same environment.

    Raises:
        InvalidRequest: a RADIXD_ variable is wrong.
    """
    return server_address(load_settings({}))


def server_address(settings: Settings) -> str:
    """Where a server with these settings is reached from this machine."""
    return join_address(reachable(settings.host), settings.port)


def reachable(host: str) -> str:
    """The host to connect to for a host that is listened on."""
    bare = host.strip("[]")
    return _WILDCARDS.get(bare, bare)


def parse_target(text: str) -> str:
    """The gRPC target for an address as people write it.

    Accepts host:port, grpc://host:port, [::1]:port, dns:///name:port and unix:path.

    Raises:
        CommandError: says what is wrong with the address.
    """
    target = text.strip().removesuffix("/")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", target)
    if scheme and scheme[1] in ("http", "https"):
        raise CommandError(f"--target {text}: this is an HTTP address; give HOST:PORT of the gRPC")
    if scheme and scheme[1] not in ("grpc", "dns", "unix"):
        raise CommandError(f"--target {text}: unknown scheme {scheme[1]}; give HOST:PORT")
    if target.startswith("unix:"):
        return target
    target = target.removeprefix("grpc://")
    prefix = "dns:///" if target.startswith("dns:///") else ""
    rest = target.removeprefix(prefix)
    host, colon, port = rest.rpartition(":")
    if host.count(":") and not (host.startswith("[") and host.endswith("]")):
        raise CommandError(f"--target {text}: write an IPv6 address as [{rest}]:PORT")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise CommandError(f"--target {text}: HOST:PORT was expected")
    return f"{prefix}{host}:{port}"


def explain(error: grpc.RpcError, target: str) -> CommandError:
    """What a failed call means, in one line; details come from google.rpc.Status."""
    code, details = error.code(), str(error.details() or "")
    status = _rich_status(error)
    if status is None:
        if code is grpc.StatusCode.UNAVAILABLE:
            return CommandError(f"no radixd answers at {target}; start one with `radixd up`")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return CommandError(f"the server at {target} is not a radixd of this version")
        return CommandError(f"{_one_line(details) or 'the call failed'} ({code.name})")
    line = _one_line(status.message)
    for detail in status.details:
        line += _detail_text(detail, line)
    return CommandError(f"{line} ({code.name})")


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


class Client:
    """A connection to one server; every failed call raises CommandError."""

    def __init__(self, target: str) -> None:
        self.target = parse_target(target)
        self._channel = grpc.insecure_channel(self.target, options=CHANNEL_OPTIONS)
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
        call = self._inference.Generate(request, timeout=_patience_s(request))
        try:
            yield from call
        except grpc.RpcError as error:
            raise explain(error, self.target) from None
        finally:
            call.cancel()

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

    def _ask(self, method: Any, request: Any, reply: type[T], timeout_s: float | None) -> T:
        try:
            answer = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise explain(error, self.target) from None
        assert isinstance(answer, reply), answer
        return answer


def _patience_s(
    request: inference_pb2.GenerateRequest | inference_pb2.GenerateUnaryRequest,
) -> float | None:
    # Later than the request's own deadline, so that the server can end it with partial output.
    return request.timeout_ms / 1000 + 5 if request.HasField("timeout_ms") else None
