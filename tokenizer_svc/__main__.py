"""`python -m tokenizer_svc`: the front as a process, from settings to a clean end."""

import asyncio
import gc
import os
import sys
from pathlib import Path

import structlog

from protos.errors import InvalidRequest, ModelError
from radixd.chassis.command import settings_from_argv
from radixd.chassis.exposure import check_exposure, is_loopback
from radixd.chassis.grpc_server import check_port_is_free, join_address, wait_for_stop_signal
from radixd.chassis.logs import configure_logs
from radixd.chassis.model_source import ModelSource, resolve_model
from radixd.chassis.open_files import allow_many_files
from radixd.chassis.preheat_file import load_preheat_file
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import load_tenants
from radixd.chassis.tls import ServerTls, tls_files
from radixd.chassis.vocabulary import fake_vocabulary, read_vocabulary
from tokenizer_svc.front import Front, FrontConfig
from tokenizer_svc.http.config import HttpConfig, own_names
from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

SERVICE = "tokenizer_svc"
USAGE_EXIT_STATUS = 2
DRAIN_GRACE_S = 10.0
_FAKE_MODEL_ID = "fake"
"""What the fake worker calls its model."""
_LIVE_BEYOND_THE_QUEUE = 1024
"""Requests here that are not in the scheduler's queue: in the tokenizer, or preheats."""

log = structlog.get_logger()


def main(argv: list[str]) -> int:
    """Serves until SIGINT or SIGTERM; 2 when it cannot start, with one line that says why."""
    settings = settings_from_argv(SERVICE, argv)
    configure_logs(SERVICE, settings.log_level, shows_values=settings.log_prompts)
    # Its own threads would fight ours for the cores, and it warns of forks that never come.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    allow_many_files()
    try:
        check_port_is_free(settings.host, settings.port)
        source = None if settings.fake_worker else resolve_model(settings.model)
        config = _config(settings, source)
        asyncio.run(_serve(config, _tokenizer(source, settings.chat_template)))
    except (InvalidRequest, ModelError) as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return USAGE_EXIT_STATUS
    return 0


def _tokenizer(source: ModelSource | None, chat_template: Path | None) -> Tokenizer:
    if source is None:
        if chat_template is not None:
            raise InvalidRequest("chat_template", "the fake worker has none to be replaced")
        return ByteTokenizer()
    # Here, so that the fake worker needs none of the libraries behind it.
    from tokenizer_svc.tokenizers.load import load_tokenizer

    return load_tokenizer(source, chat_template=chat_template)


def _config(settings: Settings, source: ModelSource | None) -> FrontConfig:
    tenants = load_tenants(settings.tenants)
    check_exposure(settings, tenants)
    files = tls_files(settings)
    return FrontConfig(
        host=settings.host,
        port=settings.port,
        scheduler_address=join_address(settings.scheduler_host, settings.scheduler_port),
        model_id=_FAKE_MODEL_ID if source is None else source.model_id,
        read_vocabulary=(fake_vocabulary if source is None else lambda: read_vocabulary(source)),
        max_prompt_bytes=settings.max_prompt_bytes,
        max_live=settings.max_waiting + settings.max_running + _LIVE_BEYOND_THE_QUEUE,
        tenants=tenants,
        tenants_file=settings.tenants,
        tls=None if files is None else ServerTls(files),
        probe_socket=settings.probe_socket,
        max_streams_per_client=settings.max_streams_per_client,
        slow_reader_s=settings.slow_reader_s,
        log_prompts=settings.log_prompts,
        preheat=load_preheat_file(
            settings.preheat, max_prompt_bytes=settings.max_prompt_bytes, tenants=tenants.shares
        ),
        http=_http_config(settings),
    )


def _http_config(settings: Settings) -> HttpConfig | None:
    if settings.http_port < 0:
        return None
    # A port that nobody asked for in particular gives way, and does not stop the start.
    is_asked_for = settings.asks_for("http_port")
    return HttpConfig(
        host=settings.http_host or settings.host,
        port=settings.http_port if settings.port or is_asked_for else 0,
        names=own_names(settings),
        gives_way=not is_asked_for,
        keep_alive_s=settings.http_keep_alive_s,
        write_timeout_s=settings.slow_reader_s,
        model_names=frozenset((settings.model,)),
    )


async def _serve(config: FrontConfig, tokenizer: Tokenizer) -> None:
    # Before anything can take long: a signal during the start ends it cleanly too.
    told_to_stop = asyncio.create_task(wait_for_stop_signal())
    await asyncio.sleep(0)
    front = Front(tokenizer, config)
    await front.start()
    # What there is now stays: the collector need not walk a vocabulary again and again.
    gc.collect()
    gc.freeze()
    log.info(
        "front_ready",
        host=config.host,
        port=front.port,
        http_port=front.http_port,
        num_ids=tokenizer.num_ids,
        tls=config.tls is not None,
    )
    if config.tls is None and config.tenants.have_keys and not is_loopback(config.host):
        log.warning("keys_unencrypted", advice="give --tls-cert and --tls-key")
    log.info("front_stopping", signal=await told_to_stop)
    await front.drain(grace_s=DRAIN_GRACE_S)
    log.info("front_stopped")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
