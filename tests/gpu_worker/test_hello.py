"""What the engines say of themselves."""

from pathlib import Path

from gpu_worker.fake_engine import FakeEngine, FakeModel
from tests.gpu_worker.tiny_models import make_engine, make_oracle


def test_the_model_says_what_a_slot_takes(tmp_path: Path) -> None:
    oracle = make_oracle(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    hello = make_engine(oracle, tmp_path, num_slots=10).hello()
    assert hello.kv_bytes_per_slot == 2 * 3 * 2 * 16 * 4  # K and V, layers, heads, head_dim, fp32


def test_the_fake_says_so_too() -> None:
    engine = FakeEngine(FakeModel(), num_slots=10, max_rows=1, max_length=10)
    assert engine.hello().kv_bytes_per_slot == 8
