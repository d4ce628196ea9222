"""Products of int8 matrices: exact wherever they are taken."""

import os
import subprocess
import sys

import pytest
import torch
from daily import only

from kvc.schema.torch_ops import int8_rows, multiply_int8

INT8 = torch.int8


def random_matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=INT8)


@pytest.fixture(params=["chosen", "widened"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply as this processor does, and as one without int8 products does."""
    if request.param == "widened":
        monkeypatch.setattr(int8_rows, "_multiplies_int8", lambda: False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rows", [0, 1, 5, 18])
@pytest.mark.parametrize(
    ("inner", "columns"), [(1, 1), (1, 9), (33, 7), (576, 300), (2050, 3)]
)
def test_a_product_is_exact(rows: int, inner: int, columns: int) -> None:
    left, right = random_matrix(rows, inner), random_matrix(columns, inner).t()
    product = multiply_int8(left, right)
    assert product.dtype is torch.int32
    assert torch.equal(product, left.int() @ right.int())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("inner", [1023, 1024, 1025, 4096])
def test_so_is_one_of_the_greatest_sums(inner: int) -> None:
    least = torch.full((3, inner), -128, dtype=INT8)
    assert (multiply_int8(least, least.t()) == inner * 128 * 128).all()
    least[:, 0] = 1
    assert (multiply_int8(least, least.t()) == (inner - 1) * 128 * 128 + 1).all()


SATURATING = """
import torch
from kvc.schema.torch_ops import (multiply_int8)
x = torch.full((9, 64), 127, dtype=torch.int8)
assert (multiply_int8(x, x.t()) == 64 * 127 * 127).all()
"""


@only(instructions=["AVX2"])
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_and_where_onednn_is_kept_from_the_instructions(instructions: str) -> None:
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-c", SATURATING], env=limited, check=True)
