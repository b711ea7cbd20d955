"""`radixd bench kernels`: every rate is there, ceilings follow from them.

Nothing here asks how fast anything is.
"""

import json

import pytest

from gpu_worker.bench.roofline import ROWS, ceilings
from radixd.cli.app import main
from radixd.cli.bench_kernels import ceilings_table, rates_table
from radixd.cli.terminal import out
from tests.gpu_worker.random_models import SHAPES, native_weights

FORMATS = ("float32", "int8", "int4")


def test_the_command_measures_this_machine_and_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "kernels", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["memory_gb_s"] > 0
    assert tuple(value["product_gmac_s"]) == FORMATS
    for rates in value["product_gmac_s"].values():
        assert list(rates) == [str(rows) for rows in ROWS]
        assert all(rate > 0 for rate in rates.values())
    of_format = {ceiling["weights"]: ceiling for ceiling in value["ceilings"]}
    assert tuple(of_format) == FORMATS
    for ceiling in of_format.values():
        by_memory = value["memory_gb_s"] * 1e9 / ceiling["weight_bytes"]
        assert ceiling["one_row_tok_s"] == pytest.approx(by_memory, rel=0.01)
    with capsys.disabled(), out.capture() as printed:
        out.print(rates_table(value))
        out.print(ceilings_table(value))
    assert f"{value['kernels']} kernels" in printed.get()
    assert f"{of_format['int4']['weight_bytes'] / 1e6:.1f}" in printed.get()


def test_a_ceiling_counts_every_weight_once() -> None:
    config = SHAPES["grouped"]
    weights = native_weights(config, "float32")
    rates = {"memory_gb_s": 10.0, "product_gmac_s": {name: {"16": 50.0} for name in FORMATS}}
    ceiling = ceilings(weights, rates)
    num_weights = config.vocab_size * config.hidden_size + sum(
        panels.num_outputs * panels.num_inputs
        for layer in weights.layers
        for panels in layer.matrices
    )
    assert ceiling["macs_a_token"] == num_weights
    assert ceiling["weight_bytes"] >= 4 * num_weights
    assert ceiling["sixteen_rows_tok_s"] == pytest.approx(50e9 / num_weights, rel=0.01)


def test_a_model_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--model", "/nowhere/model.gguf"]) == 1
    assert "/nowhere/model.gguf" in capsys.readouterr().err
