"""Starts a group from rank 0: what can be refused is refused before there is a second process.

Not here: what a rank loads, how ranks live.
"""

import socket

import structlog

from gpu_worker.backend_choice import let_idle_threads_sleep
from gpu_worker.device.gpu import NoGpu, find_gpu
from gpu_worker.open_model import open_model
from gpu_worker.parallel.followers import Ending, Followers, end_process
from gpu_worker.parallel.leader import LeaderEngine
from gpu_worker.parallel.shard import check_split
from protos.errors import InvalidRequest
from radixd.chassis.backends import GPU, cannot_be_had, possible
from radixd.chassis.command import argv_from_settings
from radixd.chassis.model_source import resolve_model
from radixd.chassis.settings import Settings

_log = structlog.get_logger(__name__)


def lead_group(settings: Settings, *, end: Ending = end_process) -> LeaderEngine:
    """Starts `settings.tp` - 1 processes beside this one; returns when all have loaded their part.

    `end` ends this process when a rank is lost; see Followers.

    Raises:
        ModelError: see load_rank.
        InvalidRequest: likewise; or the ranks are too many for the model or the machine.
    """
    let_idle_threads_sleep()
    settings = settings.model_copy(update={"device": _device(settings)})
    with open_model(resolve_model(settings.model)) as model:
        check_split(model.config, settings.tp)
    # A port of this machine alone, taken from here on; who comes early waits there.
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    flags = argv_from_settings(settings)
    followers = Followers(
        [
            ["-m", "gpu_worker.parallel.follower", str(rank), str(port), *flags]
            for rank in range(1, settings.tp)
        ],
        end=end,
    )
    try:
        # Late: the others import torch at the same time.
        from gpu_worker.parallel.group import load_rank

        engine = load_rank(settings, 0, port, listening)
        followers.await_ready()
    except BaseException:
        followers.dismiss()
        raise
    finally:
        listening.close()
    _log.info("group_complete", num_ranks=settings.tp, pids=followers.pids)
    return LeaderEngine(engine, followers)


def _device(settings: Settings) -> str:
    """Where all ranks compute: decided once, as they must agree."""
    kinds = possible(settings)
    if kinds[0] is not GPU:
        return "cpu"
    try:
        find_gpu()
    except NoGpu as error:
        if len(kinds) == 1:
            raise cannot_be_had(settings, [(GPU, str(error))]) from None
        _log.info("gpu_not_used", reason=str(error))
        return "cpu"
    import torch  # the GPU was found with it

    num_gpus = torch.cuda.device_count()
    if settings.tp > num_gpus:
        raise InvalidRequest("tp", f"{settings.tp} ranks need a GPU each, there are {num_gpus}")
    return "cuda"
