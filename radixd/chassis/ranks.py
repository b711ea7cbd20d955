"""How many ranks a model's heads can be dealt out to: for the worker, and for `radixd doctor`.

Not here: which part a rank gets (gpu_worker.parallel.shard).
"""

from protos.errors import InvalidRequest


def check_heads(num_ranks: int, *, num_heads: int, num_kv_heads: int) -> None:
    """Refuses a number of ranks that heads cannot be dealt out to.

    Raises:
        InvalidRequest: names `tp`.
    """
    if num_ranks > num_heads:
        problem = f"{num_ranks} ranks are more than the model's {num_heads} heads"
        raise InvalidRequest("tp", problem)
    if num_heads % num_ranks:
        raise InvalidRequest("tp", f"{num_heads} heads do not divide among {num_ranks} ranks")
    if max(num_kv_heads, num_ranks) % min(num_kv_heads, num_ranks):
        problem = f"{num_kv_heads} KV heads and {num_ranks} ranks do not divide"
        raise InvalidRequest("tp", problem)
