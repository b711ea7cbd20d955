"""A public server in this process that says what it is told to: no model, no scheduler.

It records what it is asked, so that tests see the requests of the command line on the wire.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from protos.radixd.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc


def refuse(context: Any, code: grpc.StatusCode, message: str, *details: Message) -> None:
    """Ends a call as our servers do: with google.rpc.Status and its details."""
    packed = []
    for detail in details:
        box = any_pb2.Any()
        box.Pack(detail)
        packed.append(box)
    status = status_pb2.Status(code=code.value[0], message=message, details=packed)
    context.abort_with_status(rpc_status.to_status(status))


class FakeInference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers `pieces`, one message a piece, or refuses with `refusal`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.pieces = ["Hel", "lo", "!"]
        self.refusal: tuple[grpc.StatusCode, str, list[Message]] | None = None
        self.bare_error: tuple[grpc.StatusCode, str] | None = None
        self.breaks_after: int | None = None
        """Pieces after which the connection breaks, as its client sees it."""
        self.num_choices = 1
        """Of each stream; each says all pieces."""
        self.pause_s = 0.0
        self.logprobs: list[inference_pb2.TokenLogprobs] = []
        """Of each piece."""
        self.cancelled = threading.Event()

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Streams the pieces."""
        self.requests.append(request)
        context.add_callback(self.cancelled.set)
        if self.refusal is not None:
            code, message, details = self.refusal
            refuse(context, code, message, *details)
        if self.bare_error is not None:
            context.abort(*self.bare_error)
        if request.sampling.ignore_eos and request.WhichOneof("prompt") == "tokens":
            yield from self._fixed_length(request)
            return
        for position, piece in enumerate(self.pieces):
            if position == self.breaks_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            for choice in range(self.num_choices):
                yield inference_pb2.GenerateResponse(
                    request_id="r-1",
                    text=piece,
                    token_ids=[100 + position],
                    seed=request.sampling.seed if position == 0 else None,
                    logprobs=self.logprobs,
                    choice=choice,
                )
            time.sleep(self.pause_s)
        for choice in range(1, self.num_choices):
            reason = inference_pb2.FINISH_REASON_STOP
            yield inference_pb2.GenerateResponse(
                request_id="r-1", choice=choice, finish_reason=reason, matched_stop="stop"
            )
        yield self._last(request, len(self.pieces))

    def GenerateUnary(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The same as one reply."""
        self.requests.append(request)
        answer = inference_pb2.GenerateUnaryResponse.FromString(
            self._last(request, len(self.pieces)).SerializeToString()
        )
        answer.text = "".join(self.pieces)
        answer.token_ids.extend(range(100, 100 + len(self.pieces)))
        return answer

    def _fixed_length(self, request: Any) -> Iterator[Any]:
        left = request.sampling.max_tokens
        while left:
            time.sleep(self.pause_s)
            num_tokens = min(2, left)
            left -= num_tokens
            yield inference_pb2.GenerateResponse(request_id="r-1", token_ids=[7] * num_tokens)
        yield self._last(request, request.sampling.max_tokens)

    def _last(self, request: Any, num_tokens: int) -> Any:
        return inference_pb2.GenerateResponse(
            request_id="r-1",
            finish_reason=inference_pb2.FinishReason.FINISH_REASON_LENGTH,
            usage=inference_pb2.Usage(
                prompt_tokens=9, completion_tokens=num_tokens, cached_tokens=4
            ),
            seed=request.sampling.seed,
        )


class FakeAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Answers with the messages it holds; tests change them."""

    def __init__(self) -> None:
        self.stats = admin_pb2.GetStatsResponse(
            model=admin_pb2.ModelInfo(name="tiny", device="cpu", vocab_size=1000),
            slots=admin_pb2.SlotBooks(
                total=100, free=50, private=5, evictable=25, locked=15, in_flight=5, page_size=1
            ),
            requests=admin_pb2.RequestBooks(running=2, waiting=1, submitted=9, finished=6),
            tokens=admin_pb2.TokenCounters(prompt=80, cached=20, generated=40, computed=100),
            worker_connected=True,
            uptime_ms=61_000,
            peak_rss_bytes={"scheduler_svc": 1 << 20, "tokenizer_svc": 2 << 20},
        )
        self.tree = admin_pb2.DumpTreeResponse()
        self.pins = admin_pb2.ListPinsResponse()
        self.sessions = admin_pb2.ListSessionsResponse()
        self.requests = admin_pb2.ListRequestsResponse()
        self.explanation: admin_pb2.ExplainResponse | None = None
        self.policies = admin_pb2.GetPolicyResponse()
        self.asked: list[Any] = []
        """Every request of the calls below that have fields."""
        self.num_watches = 0
        self.preheat_error = ""
        self.pin_error = ""
        self.num_flushes = 0
        self.preheats: list[Any] = []

    def GetStats(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The books; each look finds ten more generated tokens."""
        self.stats.tokens.generated += 10
        return self.stats

    def WatchStats(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """The books every interval; each look finds ten more generated tokens."""
        self.asked.append(request)
        self.num_watches += 1
        while context.is_active():
            yield admin_pb2.WatchStatsResponse(stats=self.GetStats(None, context))
            time.sleep(request.interval_ms / 1000)

    def ListPins(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The pins."""
        return self.pins

    def Unpin(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Removes those it has."""
        self.asked.append(request)
        ids = [pin.pin_id for pin in self.pins.pins]
        wanted = ids if request.all else request.pin_ids
        return admin_pb2.UnpinResponse(
            removed=[pin_id for pin_id in wanted if pin_id in ids],
            unknown=[pin_id for pin_id in wanted if pin_id not in ids],
        )

    def ListSessions(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The sessions."""
        self.asked.append(request)
        return self.sessions

    def CloseSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Knows those that it lists."""
        self.asked.append(request)
        names = [session.session for session in self.sessions.sessions]
        return admin_pb2.CloseSessionResponse(found=request.session in names)

    def ListRequests(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The requests."""
        self.asked.append(request)
        return self.requests

    def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The one explanation, or NOT_FOUND."""
        self.asked.append(request)
        if self.explanation is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "request_id: no such request")
        return self.explanation

    def GetPolicy(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The policies."""
        return self.policies

    def SetPolicy(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Sets what is given."""
        self.asked.append(request)
        self.policies.policies.MergeFrom(request.policies)
        return admin_pb2.SetPolicyResponse(policies=self.policies.policies)

    def Preheat(self, request: Any, context: Any) -> Any:  # noqa: N802
        """One token a byte, the first of them cached; pinned when asked, unless `pin_error`."""
        self.preheats.append(request)
        texts = [*request.prefixes, *(chat.messages[0].content for chat in request.chats)]
        sizes = [len(text.encode()) for text in texts]
        return admin_pb2.PreheatResponse(
            prefixes=[
                admin_pb2.PreheatedPrefix(
                    num_tokens=size,
                    cached_tokens=1,
                    computed_tokens=size - 1,
                    error=self.preheat_error,
                    pin_id="" if self.pin_error or not request.pin else f"pin-{size}",
                    pinned_tokens=0 if self.pin_error or not request.pin else size,
                    pin_error=self.pin_error,
                )
                for size in sizes
            ]
        )

    def FlushCache(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Counts the flush."""
        self.num_flushes += 1
        return admin_pb2.FlushCacheResponse(flushed_tokens=3)

    def DumpTree(self, request: Any, context: Any) -> Any:  # noqa: N802
        """As many nodes as asked for."""
        nodes = self.tree.nodes[: request.max_nodes]
        left_out = len(self.tree.nodes) - len(nodes)
        return admin_pb2.DumpTreeResponse(nodes=nodes, num_left_out=left_out)


class Keys(grpc.ServerInterceptor):
    """Writes down the key of every call; None where it has none."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Lets every call pass."""
        metadata = dict(handler_call_details.invocation_metadata)
        self.seen.append(metadata.get("authorization"))
        return continuation(handler_call_details)


class FakeServer:
    """The server on a free port of the loopback; `with` starts and ends it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.inference = FakeInference()
        self.admin = FakeAdmin()
        self.health = health.HealthServicer()
        self.keys = Keys()
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=20),
            interceptors=[self.keys],
            options=[("grpc.so_reuseport", 0)],
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.inference, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.admin, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        self.port = self._server.add_insecure_port(f"{host}:0")
        self.target = f"{host}:{self.port}"

    def __enter__(self) -> "FakeServer":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()


def invalid_field(field: str, description: str) -> error_details_pb2.BadRequest:
    """The detail our servers add to INVALID_ARGUMENT."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])
