from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvc.compiler.lower.fitting import gains
from kvc.compiler.weights.int4 import Moments
from kvc.compiler.weights.sources import Derived, TensorSource, Transform
from kvc.schema.dtypes import DType
from kvc.schema.model import NamedData
from kvc.schema.types import TensorType

ROWS, COLUMNS = 24, 96


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def order(weights, moments=None, transform=Transform.INT4_SIGNED):
    sources = {
        f"{name}.{transform.value}": Derived(transform, TensorSource(weight), moments)
        for name, weight in weights.items()
    }
    return gains(program_of(weights, transform), sources)


def program_of(weights, transform):
    """Return what of a program counts here: its names, with what int4 takes."""
    names = list[NamedData]()
    for name, weight in weights.items():
        rows, columns = weight.shape
        for ending, kind in (
            ("", TensorType(DType.UINT8, (rows // 8, columns // 8, 8, 4))),
            ("_scale", TensorType(DType.BFLOAT16, (rows // 8, columns // 32, 8))),
        ):
            stored = f"{name}.{transform.value}{ending}"
            names.append(NamedData(stored, 0, kind, "plain", ""))
    return SimpleNamespace(names=names)


def uneven(size=30.0):
    """Return rows with one large value in each block, beside which others are lost."""
    weight = normal(ROWS, COLUMNS)
    weight[:, ::32] *= size
    return weight


@pytest.mark.parametrize("transform", [Transform.INT4, Transform.INT4_SIGNED])
def test_what_int4_rounds_worst_gains_most(transform):
    found = order({"even": normal(ROWS, COLUMNS), "uneven": uneven()}, None, transform)
    assert [one.name for one in found] == ["uneven", "even"]
    assert 0.004 < found[1].error < 0.009  # 1 / 128 or so, of numbers like these
    assert found[0].error > 2 * found[1].error


def test_errors_count_as_much_as_what_inputs_are_like():
    """Where only the large values are multiplied, hardly anything is lost."""
    squares = np.full(COLUMNS, 1e-6, np.float32)
    squares[::32] = 1
    moments = Moments(np.diag(squares))
    found = order({"even": normal(ROWS, COLUMNS), "uneven": uneven()}, moments)
    assert [one.name for one in found] == ["even", "uneven"]


def test_gains_are_what_a_byte_gains():
    weights = {"large": normal(8 * ROWS, COLUMNS), "small": normal(ROWS, COLUMNS)}
    found = order(weights)
    assert [one.name for one in found] == ["small", "large"]
    assert found[1].nbytes == 8 * found[0].nbytes
    values, scales = ROWS * COLUMNS, 4 * ROWS
    assert [*found[0].sizes.values()] == [values, scales]
    assert found[0].nbytes == values + scales - (values // 2 + 2 * values // 32)


def test_zeros_gain_nothing():
    found = order({"zeros": torch.zeros(ROWS, COLUMNS), "some": normal(ROWS, COLUMNS)})
    assert [one.name for one in found] == ["some", "zeros"]
    assert found[1].error == 0


def test_other_sources_are_left_out():
    weight = TensorSource(normal(ROWS, COLUMNS))
    sources = {"a": weight, "a.int8": Derived(Transform.INT8, weight)}
    assert gains(program_of({}, Transform.INT4), sources) == []
