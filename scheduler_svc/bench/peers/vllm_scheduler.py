"""vLLM's `KVCacheManager` on the workload of the prefix tree, and its `Scheduler` on that of steps.

Its blocks are of 16 tokens; "match" includes hashing the prompt, which it does once a request.
Where its pool is full, its scheduler cuts requests back rather than let them wait, so steps are
compared where rows are what is short.
"""

from __future__ import annotations

import json
import os
from array import array
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scheduler_svc.bench.peers.cycles import match_insert, steady_cycle
from scheduler_svc.bench.scale import LENGTH, Scale, make_prompts, make_sequences, num_tree_tokens
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us, settle

BLOCK = 16
MAX_TOKENS = 8000
_REPETITIONS = 3
_MAX_LENGTH = 100_000
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 50_000,
    "max_position_embeddings": _MAX_LENGTH,
    "torch_dtype": "float32",
}
"""The smallest that its configuration takes; no weights are ever asked for."""


def measure(scale: Scale) -> dict[str, Any]:
    """Its figures, at its page size."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    parts = _Parts()
    sequences = make_sequences(scale)
    num_blocks = num_tree_tokens(sequences) // BLOCK
    settle()
    fresh = [_Blocks(parts, sequences, num_blocks + 2 * LENGTH) for _ in range(_REPETITIONS)]
    matched = match_insert([*fresh], scale)
    del fresh
    steady = steady_cycle(_Blocks(parts, sequences, num_blocks // 2), scale)
    return {
        "match_insert_us": {"page16": matched},
        "steady_cycle_us": {"page16": steady},
        "schedule_apply_us": {"rows_taken": _steps(parts, scale)},
    }


class _Parts:
    """What of the package is used."""

    def __init__(self) -> None:
        kv_cache_utils = import_module("vllm.v1.core.kv_cache_utils")
        sha256 = import_module("vllm.utils.hashing").sha256
        self.manager = import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        self.request = import_module("vllm.v1.request").Request
        self.sampling = import_module("vllm").SamplingParams
        self.interface = import_module("vllm.v1.kv_cache_interface")
        kv_cache_utils.init_none_hash(sha256)
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)

    def cache_config(self, num_blocks: int) -> Any:
        """One group of full attention with so many blocks."""
        torch = self.interface.torch
        spec = self.interface.FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        group = self.interface.KVCacheGroupSpec(["layer"], spec)
        return self.interface.KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        )

    def new_request(self, name: str, prompt: array[int], hasher: Any) -> Any:
        """A greedy request; without a hasher its prompt is not hashed yet."""
        sampling = self.sampling(max_tokens=MAX_TOKENS, ignore_eos=True)
        return self.request(name, prompt.tolist(), sampling, None, block_hasher=hasher)


class _Blocks:
    def __init__(self, parts: _Parts, sequences: list[array[int]], num_blocks: int) -> None:
        self._parts = parts
        self._sequences = sequences
        self._manager = parts.manager(
            parts.cache_config(num_blocks),
            max_model_len=_MAX_LENGTH,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self._num_taken, self._num_blocks = 0, num_blocks
        self.num_evictions = 0

    def cycle(self, number: int, watch: Stopwatch, *, evicts: bool) -> None:
        """See Prefixes."""
        manager, hasher = self._manager, self._parts.hasher
        request = self._parts.new_request(f"r{number}", self._sequences[number], None)
        watch.start()
        request.block_hashes = hasher(request)
        blocks, num_computed, _ = manager.get_computed_blocks(request)
        taken = manager.allocate_slots(request, LENGTH - num_computed, num_computed, blocks)
        manager.free(request)
        watch.stop()
        watch.lap()
        assert taken is not None
        # Its free blocks keep what they held until they are taken again, in turn.
        self._num_taken += (LENGTH - num_computed) // BLOCK
        self.num_evictions = max(0, self._num_taken - self._num_blocks)


def _steps(parts: _Parts, scale: Scale) -> dict[str, float]:
    """µs of `schedule` and `update_from_output` together."""
    output = import_module("vllm.v1.outputs").ModelRunnerOutput
    watches = []
    for _ in range(_REPETITIONS):
        scheduler = _scheduler(parts, scale)
        settle()
        prompts = make_prompts(scale.num_running + scale.num_waiting)
        for number, prompt in enumerate(prompts):
            scheduler.add_request(parts.new_request(f"r{number}", prompt, parts.hasher))
        for _ in range(20):
            _step(scheduler, output, Stopwatch())
        watches.append(watch := Stopwatch())
        for _ in range(scale.num_steps):
            _step(scheduler, output, watch)
        assert len(scheduler.running) == scale.num_running, len(scheduler.running)
        assert len(scheduler.waiting) == scale.num_waiting, len(scheduler.waiting)
    return figures_us(watches)


def _scheduler(parts: _Parts, scale: Scale) -> Any:
    config = import_module("vllm.config")
    structured_output = import_module("vllm.v1.structured_output")
    num_blocks = scale.num_running * 1000 // BLOCK + 1000
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        model = config.ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=_MAX_LENGTH
        )
        limits = config.SchedulerConfig(
            max_num_seqs=scale.num_running,
            max_num_batched_tokens=8192,
            max_model_len=_MAX_LENGTH,
            is_encoder_decoder=False,
        )
        cache = config.CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        whole = config.VllmConfig(model_config=model, scheduler_config=limits, cache_config=cache)
    cache.num_gpu_blocks = num_blocks
    scheduler = import_module("vllm.v1.core.sched.scheduler").Scheduler
    manager = structured_output.StructuredOutputManager(whole)
    return scheduler(whole, parts.cache_config(num_blocks), manager, BLOCK)


def _step(scheduler: Any, output: Any, watch: Stopwatch) -> None:
    watch.start()
    plan = scheduler.schedule()
    watch.stop()
    names = list(plan.num_scheduled_tokens)
    result = output(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
    )
    watch.start()
    scheduler.update_from_output(plan, result)
    watch.stop()
    watch.lap()
