"""Asks a server whether it is ready, by the standard gRPC health service.

Starts nothing and waits for nothing; `health_probe` is the program around it.
"""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from radixd.chassis.grpc_server import CLIENT_OPTIONS

SERVING = "SERVING"
NOT_SERVING = "NOT_SERVING"
UNREACHABLE = "UNREACHABLE"


def readiness(address: str, *, service: str = "", timeout_s: float = 2.0) -> str:
    """SERVING, NOT_SERVING, or UNREACHABLE (nobody listens, or the answer takes too long)."""
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        return readiness_on(channel, service=service, timeout_s=timeout_s)


def readiness_on(channel: grpc.Channel, *, service: str = "", timeout_s: float = 2.0) -> str:
    """As `readiness`, on a channel that the caller keeps."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.RpcError:
        return UNREACHABLE
    return SERVING if answer.status == health_pb2.HealthCheckResponse.SERVING else NOT_SERVING
