"""Every path of the gateway, and the parts of the front behind each."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from radixd.chassis.tls import ServerTls
from tokenizer_svc.books import Books
from tokenizer_svc.choices import Choices
from tokenizer_svc.client_streams import ClientStreams
from tokenizer_svc.http.cache_hints import CacheHints
from tokenizer_svc.http.cancels import Cancels
from tokenizer_svc.http.chat_completions import ChatCompletions
from tokenizer_svc.http.completions import Completions
from tokenizer_svc.http.config import HttpConfig, max_body_bytes
from tokenizer_svc.http.door import Endpoint, HttpDoor
from tokenizer_svc.http.gateway import Gateway
from tokenizer_svc.http.generations import Generations
from tokenizer_svc.http.json_body import BodyReader
from tokenizer_svc.http.metrics import HttpMetrics
from tokenizer_svc.http.models import Models
from tokenizer_svc.http.openapi import show_openapi
from tokenizer_svc.http.preheats import Preheats
from tokenizer_svc.http.probes import Probes
from tokenizer_svc.http.prompt_ids import PromptIds
from tokenizer_svc.http.responses import Responses
from tokenizer_svc.http.sessions import Sessions
from tokenizer_svc.http.token_texts import TokenTexts
from tokenizer_svc.http.tokens import Tokens
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.scheduler_questions import SchedulerQuestions
from tokenizer_svc.tenancy import Access
from tokenizer_svc.tokenizer_pool import TokenizerPool

_GENERATE = "/radixd.v1.InferenceService/Generate"
_CANCEL = "/radixd.v1.InferenceService/Cancel"
_TOKENIZE = "/radixd.v1.TokenizerService/Tokenize"
_PREHEAT = "/radixd.v1.AdminService/Preheat"
_STATS = "/radixd.v1.AdminService/GetStats"
_SESSIONS = "/radixd.v1.AdminService/ListSessions"
_CLOSE_SESSION = "/radixd.v1.AdminService/CloseSession"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontParts:
    """What the gateway takes from the front."""

    access: Access
    streams: ClientStreams
    tls: ServerTls | None
    pool: TokenizerPool
    choices: Choices
    preheater: Preheater
    owners: RequestOwners
    live: LiveRequests
    link: SchedulerLink
    books: Books
    questions: SchedulerQuestions
    cancel: Callable[[str], None]
    is_serving: Callable[[], bool]
    model_id: str
    max_prompt_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The door, and what works behind it beside the requests."""

    door: HttpDoor
    hints: CacheHints


def build_app(parts: FrontParts, config: HttpConfig) -> App:
    """Puts the gateway together."""
    read = BodyReader(max_bytes=max_body_bytes(parts.max_prompt_bytes))
    hints = CacheHints(parts.preheater)
    gateway = Gateway(
        read=read,
        pool=parts.pool,
        generations=Generations(
            choices=parts.choices, owners=parts.owners, max_prompt_bytes=parts.max_prompt_bytes
        ),
        models=Models(
            parts.model_id,
            config.model_names,
            served=lambda: parts.link.model,
            created_s=int(time.time()),
        ),
        texts=TokenTexts(parts.pool.tokenizer),
        hints=hints,
        preheater=parts.preheater,
        prompt_ids=PromptIds(),
        keep_alive_s=config.keep_alive_s,
    )
    metrics = HttpMetrics(
        books=parts.books.lately,
        num_live=lambda: len(parts.live),
        is_serving=parts.is_serving,
    )
    endpoints = [*_open_endpoints(parts), *_endpoints(parts, gateway, metrics)]
    door = HttpDoor(
        endpoints,
        access=parts.access,
        streams=parts.streams,
        metrics=metrics,
        names=config.names,
    )
    return App(door=door, hints=hints)


def _open_endpoints(parts: FrontParts) -> list[Endpoint]:
    probes = Probes(parts.is_serving)
    return [
        Endpoint(path="/health", verb="GET", handler=probes.health),
        Endpoint(path="/ready", verb="GET", handler=probes.ready),
        Endpoint(path="/openapi.json", verb="GET", handler=show_openapi),
    ]


def _endpoints(parts: FrontParts, gateway: Gateway, metrics: HttpMetrics) -> list[Endpoint]:
    models, read = gateway.models, gateway.read
    tokens = Tokens(
        pool=parts.pool, models=models, read=read, max_prompt_bytes=parts.max_prompt_bytes
    )
    preheats = Preheats(parts.preheater, read=read)
    cancels = Cancels(parts.cancel, prompt_ids=gateway.prompt_ids, read=read)
    sessions = Sessions(parts.questions)
    chat, plain, responses = ChatCompletions(gateway), Completions(gateway), Responses(gateway)
    table = (
        ("POST", "/v1/chat/completions", chat.create, _GENERATE),
        ("POST", "/v1/completions", plain.create, _GENERATE),
        ("POST", "/v1/responses", responses.create, _GENERATE),
        ("GET", "/v1/models", models.all, _TOKENIZE),
        ("GET", "/v1/models/{model:any}", models.one, _TOKENIZE),
        ("POST", "/tokenize", tokens.tokenize, _TOKENIZE),
        ("POST", "/detokenize", tokens.detokenize, _TOKENIZE),
        ("POST", "/preheat", preheats.preheat, _PREHEAT),
        ("POST", "/cancel", cancels.cancel, _CANCEL),
        ("GET", "/v1/sessions", sessions.all, _SESSIONS),
        ("DELETE", "/v1/sessions/{session:any}", sessions.close, _CLOSE_SESSION),
        ("GET", "/metrics", metrics.show, _STATS),
    )
    return [
        Endpoint(path=path, verb=verb, handler=handler, grpc_method=method)
        for verb, path, handler, method in table
    ]
