"""`python -m tokenizer_svc`: the front as a process, from settings to a clean end."""

import asyncio
import gc
import os
import sys

import structlog

from protos.errors import InvalidRequest, ModelError
from radixd.chassis.command import settings_from_argv
from radixd.chassis.grpc_server import check_port_is_free, join_address, wait_for_stop_signal
from radixd.chassis.logs import configure_logs
from radixd.chassis.model_source import ModelSource, resolve_model
from radixd.chassis.preheat_file import load_preheat_file
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import load_tenants
from tokenizer_svc.front import Front, FrontConfig
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
    configure_logs(SERVICE, settings.log_level)
    # Its own threads would fight ours for the cores, and it warns of forks that never come.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        check_port_is_free(settings.host, settings.port)
        source = None if settings.fake_worker else resolve_model(settings.model)
        config = _config(settings, model_id=_FAKE_MODEL_ID if source is None else source.model_id)
        asyncio.run(_serve(config, _tokenizer(source)))
    except (InvalidRequest, ModelError) as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return USAGE_EXIT_STATUS
    return 0


def _tokenizer(source: ModelSource | None) -> Tokenizer:
    if source is None:
        return ByteTokenizer()
    # Here, so that the fake worker needs none of the libraries behind it.
    from tokenizer_svc.tokenizers.load import load_tokenizer

    return load_tokenizer(source)


def _config(settings: Settings, *, model_id: str) -> FrontConfig:
    tenants = load_tenants(settings.tenants)
    return FrontConfig(
        host=settings.host,
        port=settings.port,
        scheduler_address=join_address(settings.scheduler_host, settings.scheduler_port),
        model_id=model_id,
        max_prompt_bytes=settings.max_prompt_bytes,
        max_live=settings.max_waiting + settings.max_running + _LIVE_BEYOND_THE_QUEUE,
        tenants=tenants,
        preheat=load_preheat_file(
            settings.preheat, max_prompt_bytes=settings.max_prompt_bytes, tenants=tenants.shares
        ),
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
    log.info("front_ready", host=config.host, port=front.port, num_ids=tokenizer.num_ids)
    log.info("front_stopping", signal=await told_to_stop)
    await front.drain(grace_s=DRAIN_GRACE_S)
    log.info("front_stopped")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
