"""Stands in for a front: a port whose health is SERVING at once.

HEALTH_FRONT=never: never; HEALTH_FRONT=preheats: never, and it says how far its prefixes are;
HEALTH_FRONT=fails: it says before that of one prefix that it failed.
"""

import asyncio
import json
import os
import sys

from radixd.chassis import grpc_server
from radixd.chassis.command import settings_from_argv


async def serve() -> None:
    settings = settings_from_argv("health_front", sys.argv[1:])
    server = grpc_server.create_server()
    health = await grpc_server.add_health_and_reflection(server, [])
    grpc_server.listen(server, settings.host, settings.port)
    await server.start()
    mode = os.environ.get("HEALTH_FRONT")
    serving = mode not in ("never", "preheats")
    if mode == "preheats":
        event = {"event": "preheat_progress", "done": 1, "total": 4, "tokens": 320}
        sys.stderr.write(json.dumps(event) + "\n")
    if mode == "fails":
        event = {"event": "preheat_prefix_failed", "entry": 2, "problem": "too long"}
        sys.stderr.write(json.dumps(event) + "\n")
        sys.stderr.flush()
    await grpc_server.set_serving(health, [], serving=serving)
    await grpc_server.wait_for_stop_signal()
    sys.stderr.write("front drained\n")
    await grpc_server.stop_gracefully(server, health, grace_s=0.1)


if __name__ == "__main__":
    asyncio.run(serve())
