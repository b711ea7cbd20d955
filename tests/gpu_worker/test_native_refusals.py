"""What the compiled library refuses: in one line, with nothing computed and nothing changed."""

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from gpu_worker.blocks import quantise
from gpu_worker.native import library as library_module
from gpu_worker.native.library import AUTO, NativeError, NativeModel, open_library
from gpu_worker.native.packing import Panels, pack_blocks, pack_float32
from tests.arch.source import ROOT
from tests.gpu_worker.backends import needs_compiler
from tests.gpu_worker.kernel_tables import TABLES
from tests.gpu_worker.native_calls import (
    HIDDEN,
    INNER,
    LAYERS,
    LONGEST,
    PADDED_VOCAB,
    SLOTS,
    VOCAB,
    Wanted,
    give_all,
    library,
    make_model,
    matrix,
    matrix_shapes,
    sizes,
)

pytestmark = needs_compiler
MARK = 12345.0


@pytest.fixture(scope="module", params=TABLES or [AUTO])
def model(request: pytest.FixtureRequest) -> NativeModel:
    return make_model(kernels=request.param)


def call(model: NativeModel, wanted: Wanted, *, room: int = 3 * PADDED_VOCAB, **counts: int) -> Any:
    """The C function itself: what it gives, its line, and the logits it was given room for."""
    columns = wanted.columns()
    logits = np.full(max(room, 3 * PADDED_VOCAB), MARK, np.float32)
    phases = (ctypes.c_int64 * 3)(7, 7, 7)
    addresses = np.array([slots.ctypes.data for slots in columns.slots], np.uint64)
    step = library_module._Step(
        counts.get("num_rows", len(columns.prefix_lens)),
        counts.get("num_tokens", len(columns.token_ids)),
        columns.prefix_lens.ctypes.data,
        columns.extend_lens.ctypes.data,
        columns.num_samples.ctypes.data,
        addresses.ctypes.data,
        columns.token_ids.ctypes.data,
        columns.out_slots.ctypes.data,
    )
    functions = model._library
    succeeded = functions.radixd_forward(
        model._handle, ctypes.byref(step), logits.ctypes.data, room, phases
    )
    return succeeded, functions.radixd_error().decode(), logits, list(phases)


def test_a_step_that_can_be_is_computed(model: NativeModel) -> None:
    """Or the refusals below would prove nothing."""
    first = Wanted(
        prefix_lens=[0], extend_lens=[2], num_samples=[0], slots=[[5, 6]], token_ids=[3, 4],
        out_slots=[5, 6],
    )  # fmt: skip
    assert call(model, first, room=0)[0] == 1
    succeeded, _, logits, phases = call(model, Wanted())
    assert succeeded == 1
    assert np.isfinite(logits).all()
    assert not (logits == MARK).any()
    assert phases != [7, 7, 7]
    assert (model.forward(Wanted().columns())[0] == logits.reshape(3, -1)[:, :VOCAB]).all()


BAD_STEPS = {
    "a token is not in the vocabulary": [
        {"token_ids": [VOCAB, 0, 1, 2]},
        {"token_ids": [20, 0, 1, -1]},
    ],
    "an out slot is not in the pool": [
        {"out_slots": [7, 8, SLOTS, 0]},
        {"out_slots": [-1, 8, 63, 0]},
    ],
    "a slot is not in the pool": [
        {"slots": [[5, SLOTS, 7], [8, 63, 0]]},
        {"slots": [[5, 6, 7], [8, -5, 0]]},
        {"slots": [[5, 6, 7], [8, 63, 2**31 - 1]]},
    ],
    "a length cannot be": [
        {"prefix_lens": [-1, 0]},
        {"extend_lens": [0, 3]},
        {"extend_lens": [-2, 3]},
        {"extend_lens": [2, 3], "slots": [[5, 6, 7, 9], [8, 63, 0]]},
        {"extend_lens": [2**31 - 1, 3]},
    ],
    "rows and tokens do not match": [{"extend_lens": [1, 2], "slots": [[5, 6, 7], [8, 63]]}],
    "a row is longer than can be": [
        {"prefix_lens": [LONGEST, 0], "slots": [[5] * (LONGEST + 1), [8, 63, 0]]},
        {"prefix_lens": [2**31 - 1, 0]},
    ],
    "num_samples cannot be": [
        {"num_samples": [2, 2]},
        {"num_samples": [1, 4]},
        {"num_samples": [-1, 2]},
    ],
}


@pytest.mark.parametrize(
    ("problem", "changes"),
    [(problem, changes) for problem, cases in BAD_STEPS.items() for changes in cases],
)
def test_a_bad_step_is_refused_whole(
    model: NativeModel, problem: str, changes: dict[str, Any]
) -> None:
    before = call(model, Wanted())[2]
    succeeded, line, logits, phases = call(model, Wanted(**changes))
    assert (succeeded, line) == (0, problem)
    assert (logits == MARK).all()
    assert phases == [7, 7, 7]
    assert (call(model, Wanted())[2] == before).all()


@pytest.mark.parametrize("counts", [{"num_rows": 0}, {"num_rows": -3}, {"num_tokens": 0}])
def test_an_empty_step_is_refused(model: NativeModel, counts: dict[str, int]) -> None:
    assert call(model, Wanted(), **counts)[:2] == (0, "an empty step")


def test_tokens_that_no_row_has_are_refused(model: NativeModel) -> None:
    assert call(model, Wanted(), num_rows=1)[:2] == (0, "rows and tokens do not match")
    assert call(model, Wanted(), num_tokens=3)[:2] == (0, "a length cannot be")


@pytest.mark.parametrize("room", [0, 3 * PADDED_VOCAB - 1, 3 * VOCAB, 4 * PADDED_VOCAB])
def test_room_for_other_logits_is_refused(model: NativeModel, room: int) -> None:
    succeeded, line, logits, _ = call(model, Wanted(), room=room)
    assert (succeeded, line) == (0, "room for other logits")
    assert (logits == MARK).all()


def test_the_wrapper_raises_the_line(model: NativeModel) -> None:
    with pytest.raises(NativeError, match=r"^a token is not in the vocabulary$"):
        model.forward(Wanted(token_ids=[VOCAB, 0, 1, 2]).columns())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_samples": [1]},
        {"out_slots": [7, 8, 63]},
        {"slots": [[5, 6, 7]]},
        {"slots": [[5, 6], [8, 63, 0]]},
        {"prefix_lens": [2]},
    ],
)
def test_columns_of_other_lengths_do_not_get_there(
    model: NativeModel, changes: dict[str, Any]
) -> None:
    """The library could not see it: a pointer has no length."""
    with pytest.raises(NativeError, match=r"^columns of a step differ in length$"):
        model.forward(Wanted(**changes).columns())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layers": 0}, "a size is below 1"),
        ({"hidden": -8}, "a size is below 1"),
        ({"inner": 0}, "a size is below 1"),
        ({"vocab": 0}, "a size is below 1"),
        ({"max_length": 0}, "a size is below 1"),
        ({"heads": 3}, "heads are not a multiple of kv_heads"),
        ({"heads": 1}, "heads are not a multiple of kv_heads"),
        ({"kv_heads": 0}, "heads are not a multiple of kv_heads"),
        ({"head_dim": 0}, "head_dim is not a multiple of 16"),
        ({"head_dim": 24}, "head_dim is not a multiple of 16"),
        ({"hidden": 36}, "hidden or intermediate size is not a multiple of 8"),
        ({"inner": 41}, "hidden or intermediate size is not a multiple of 8"),
        ({"num_slots": 0}, "no slots"),
    ],
)
def test_sizes_that_cannot_be_computed(changes: dict[str, int], problem: str) -> None:
    with pytest.raises(NativeError, match=f"^{problem}$"):
        NativeModel(library(), sizes(**changes))


def test_matrices_of_another_shape_size_or_place() -> None:
    model = NativeModel(library(), sizes())
    right = matrix(*matrix_shapes()[0])
    for wrong in (right[:-1], right[:, :-1], matrix(*matrix_shapes()[1])):
        with pytest.raises(NativeError, match=r"^a matrix of another shape$"):
            model.set_matrix(0, pack_float32(wrong), 0)
    for layer, part in ((-1, 2), (-1, -1), (-2, 0), (0, 4), (0, -1), (LAYERS, 0)):
        with pytest.raises(NativeError, match=r"^no such matrix$"):
            model.set_matrix(part, pack_float32(right), layer)
    packed = pack_float32(right)
    short = Panels(format="float32", num_outputs=128, num_inputs=HIDDEN, data=packed.data[:-1])
    with pytest.raises(NativeError, match=r"^a matrix of another size$"):
        model.set_matrix(0, short, 0)
    named_otherwise = Panels(format="int8", num_outputs=128, num_inputs=HIDDEN, data=packed.data)
    with pytest.raises(NativeError, match=r"^a matrix of another size$"):
        model.set_matrix(0, named_otherwise, 0)


def test_formats_that_there_are_not() -> None:
    model = NativeModel(library(), sizes())
    panels = pack_float32(matrix(*matrix_shapes()[0])).data
    for format in (-1, 3):
        given = (
            model._handle,
            0,
            0,
            format,
            *matrix_shapes()[0],
            panels.ctypes.data,
            panels.nbytes,
        )
        assert model._library.radixd_model_matrix(*given) == 0
        assert model._library.radixd_error() == b"no such format"


def test_inputs_that_are_no_whole_groups() -> None:
    model = NativeModel(library(), sizes())
    down = Panels(
        format="int8", num_outputs=HIDDEN, num_inputs=INNER, data=np.zeros((4, 1, 288), np.uint8)
    )
    with pytest.raises(NativeError, match=r"^inputs are not a multiple of 32$"):
        model.set_matrix(3, down, 0)


def test_vectors_of_another_length_or_place() -> None:
    model = NativeModel(library(), sizes())
    for layer, part, count in ((-1, 0, HIDDEN + 1), (-1, 1, HIDDEN), (0, 0, 0), (1, 1, 1)):
        with pytest.raises(NativeError, match=r"^a vector of another length$"):
            model.set_vector(part, np.ones(count, np.float32), layer)
    for layer, part in ((-1, 3), (0, 2), (0, -1), (-1, -1), (LAYERS, 0), (-2, 0)):
        with pytest.raises(NativeError, match=r"^no such vector$"):
            model.set_vector(part, np.ones(HIDDEN, np.float32), layer)


def test_a_model_without_all_weights_does_not_start() -> None:
    for missing in range(4 * LAYERS + 2 * LAYERS + 5):
        model = NativeModel(library(), sizes())
        model._library = Forgetful(model._library, missing)
        give_all(model)
        model._library = model._library.library
        with pytest.raises(NativeError, match=r"^weights are missing$"):
            model.start(1)
        with pytest.raises(NativeError, match=r"^not started$"):
            model.forward(Wanted().columns())
        model.poison()  # no pool yet: nothing to do


class Forgetful:
    """A library that is given everything but one thing."""

    def __init__(self, library: ctypes.CDLL, missing: int) -> None:
        self.library, self._left = library, missing

    def __getattr__(self, name: str) -> Any:
        self._left -= 1
        return (lambda *_: 1) if self._left == -1 else getattr(self.library, name)


@pytest.mark.parametrize("num_threads", [0, -1])
def test_a_team_of_nobody_is_refused(num_threads: int) -> None:
    model = NativeModel(library(), sizes())
    give_all(model)
    with pytest.raises(NativeError, match=r"^no threads$"):
        model.start(num_threads)


def test_more_threads_than_the_system_gives_are_refused() -> None:
    """In a process of its own, whose room for stacks is small."""
    code = """
import resource
from gpu_worker.native.library import NativeError, NativeModel
from tests.gpu_worker.native_calls import give_all, library, sizes
model = NativeModel(library(), sizes())
give_all(model)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    model.start(4000)
except NativeError as error:
    print("refused")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_pool_larger_than_memory_is_refused() -> None:
    with pytest.raises(NativeError, match="no memory"):
        make_model(num_slots=2**31 - 1, head_dim=2**13)  # more than there are addresses


def test_a_file_that_is_no_library_cannot_be_had(tmp_path) -> None:
    path = tmp_path / "libradixd.so"
    path.write_bytes(b"no library")
    with pytest.raises(library_module.NativeUnavailable, match=r"libradixd\.so"):
        open_library(path)
    with pytest.raises(library_module.NativeUnavailable, match=r"nowhere\.so"):
        open_library(tmp_path / "nowhere.so")


def test_quantised_panels_are_taken() -> None:
    """The wrapper's names of formats are the library's: the same values, the same logits nearly."""
    exact, coarse = make_model(), NativeModel(library(), sizes())
    give_all(coarse)
    coarse.set_matrix(1, pack_blocks(quantise(matrix(VOCAB, HIDDEN), "int8")))
    coarse.start(1)
    step = Wanted(prefix_lens=[0], extend_lens=[3], num_samples=[3], slots=[[1, 2, 3]],
                  token_ids=[4, 5, 6], out_slots=[1, 2, 3]).columns()  # fmt: skip
    wanted, found = exact.forward(step)[0], coarse.forward(step)[0]
    assert 0 < np.abs(wanted - found).max() < 0.05
