"""A tile of a matrix product on the emulated Tensor Core: what it must come out as, and what sanitisers say."""

from pathlib import Path

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.bf16 import to_bf16, to_float
from xstage.hw_validate.cuda.emulate import RaceError
from xstage.hw_validate.cuda.fused_megamoe_job import tile_weights
from xstage.hw_validate.cuda.job import HOST, Buffer, Grid, Job, Pointer
from xstage.sim.errors import InputError

from .emulated import BUILDS, needs_compiler

pytestmark = needs_compiler

SOURCE = Path(__file__).parent / "kernels" / "gemm_tile.cu"
PARAMETERS = np.dtype(
    [(name, "u8") for name in "abc"] + [(name, "u4") for name in ("n_rows", "n_slices", "n_parts", "padding")]
)


def multiply(n_rows, depth, parts=1, seeds=(0,), sanitizer=None, defines=None):
    """What comes out for each seed, and the exact product."""
    rng = np.random.default_rng(n_rows + depth)
    a, b = to_bf16(rng.normal(size=(n_rows, depth))), to_bf16(rng.normal(size=(128, depth)))
    buffers = {
        "a": Buffer(a),
        "b": Buffer(tile_weights(b[None])),
        "c": Buffer(np.zeros((n_rows, 128), np.float32), HOST, output=True),
    }
    parameters = np.zeros(1, PARAMETERS)
    parameters["n_rows"], parameters["n_slices"], parameters["n_parts"] = n_rows, depth // 64, parts
    grid = Grid("gemm_tile", 0, 1, 256, 3 * 24576 + 32768, parameters, {name: Pointer(name) for name in buffers})
    kernel = emulate.build(SOURCE, BUILDS, sanitizer, defines)
    exact = to_float(a).astype(float) @ to_float(b).astype(float).T
    return [outcome.buffers["c"] for outcome in emulate.run(kernel, Job(buffers, (grid,)), seeds)], exact


@pytest.mark.parametrize(
    ("n_rows", "depth", "parts"), [(64, 64, 1), (64, 512, 1), (1, 128, 1), (17, 192, 1), (48, 320, 1), (33, 320, 3)]
)
def test_a_tile_is_the_product_of_its_rows_and_columns(n_rows, depth, parts):
    outputs, exact = multiply(n_rows, depth, parts, seeds=range(3))
    for output in outputs:
        assert np.abs(output - exact).max() < 1e-4 * depth**0.5  # sums of floats
        assert (output == outputs[0]).all()


def test_parts_add_up_to_the_whole_to_the_last_bit():
    whole, _ = multiply(40, 256)
    parts, _ = multiply(40, 256, parts=4)
    assert (whole[0] == parts[0]).all()


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_a_tile_is_clean_under_the_sanitisers(sanitizer):
    outputs, exact = multiply(33, 320, parts=2, seeds=range(2), sanitizer=sanitizer)
    assert all(np.abs(output - exact).max() < 1e-2 for output in outputs)


def test_stages_that_are_filled_before_all_have_read_them_are_a_race():
    with pytest.raises(RaceError, match="data race"):
        multiply(64, 320, parts=2, seeds=range(3), sanitizer="thread", defines={"FAULT_NO_MEETING": 1})


def test_weights_that_do_not_divide_into_tiles_are_refused():
    with pytest.raises(InputError, match=r"weights = .*: do not divide into tiles \(allowed: 128 by 64\)"):
        tile_weights(np.zeros((1, 128, 96), np.uint16))
