"""Curves in float16 lose little more than one rounding, on numpy and on the library."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import other_libraries
import pytest

from kvc.runtime.delegates.qnn import curves
from kvc.runtime.delegates.qnn.context import Context
from kvc.runtime.delegates.qnn.curves import HalfEmitter
from kvc.runtime.delegates.qnn.plan import Made, Plan, Whole

Array = np.ndarray
Curve = Callable[[HalfEmitter, str, str], str]
X = np.linspace(-8, 8, 4096).astype(np.float16).reshape(1, 1, 64, 64)


@pytest.fixture(params=["numpy", "library"], scope="module")
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with pytest.MonkeyPatch.context() as patch:
        other_libraries.use("qnn", request.param, patch)
        made = Context(75)
        yield made
        made.close()


def computed(context: Context, name: str, curve: Curve, x: Array) -> Array:
    emitter = HalfEmitter()
    made = curve(emitter, emitter.input("x", x.shape), "y")
    model = emitter.model(name, [made])
    plan = Plan(model, (), (Whole("x", 0),), ((Made(made, 0),),), (), {})
    call = context.call(plan, lambda stored: x, None)
    call.arrays["x"][:] = x
    call.run()
    found = call.arrays[made].astype(np.float64)
    call.close()
    return found


def root_mean_square(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


CURVES = {
    "sigmoid": (curves.sigmoid, sigmoid),
    "silu": (curves.silu, lambda x: x * sigmoid(x)),
    "gelu": (partial(curves.gelu, kind="gelu"), gelu),
    "gelu_tanh": (partial(curves.gelu, kind="gelu_tanh"), gelu_tanh),
    "exponential": (curves.exponential, np.exp),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_off_by_twice_a_rounding(context: Context, name: str):
    """The library's own sigmoid is off by three times as much, its GELU by 25."""
    curve, right = CURVES[name]
    exact = right(X.astype(np.float64))
    found = computed(context, name, lambda e, i, o: curve(e, i, output=o), X)
    rounding = exact.astype(np.float16) - exact
    assert root_mean_square(found - exact) <= 2 * root_mean_square(rounding)
    assert np.abs(found - exact).max() <= 4 * np.abs(rounding).max()


@pytest.mark.parametrize("spread", [1, 4])
def test_a_softmax_is_off_by_as_much_as_its_exponents(context: Context, spread: int):
    """The library's own is off by three times as much."""
    x = (np.random.default_rng(0).standard_normal(X.shape) * spread).astype(np.float16)
    exact = softmax(x.astype(np.float64))
    found = computed(context, f"softmax{spread}", curves.softmax, x)
    assert root_mean_square(found - exact) <= 6e-4 * root_mean_square(exact)


def test_what_is_far_away_has_a_number(context: Context):
    far = np.array([-300, -60000, -20, 0, 11, 12, 300, 60000], np.float16)
    x = far.reshape(1, 1, 1, 8)
    found = computed(context, "far", curves.exponential, x).ravel()
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3] == 1
    assert found[4] == pytest.approx(math.exp(11), rel=2e-3)
    assert np.all(found[5:] == found[5])
    assert 65000 < found[5] < 65504
    shares = computed(context, "shares", curves.softmax, x).ravel()
    assert shares.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    for name in ("silu", "gelu", "gelu_tanh"):
        curve, _ = CURVES[name]
        made = partial(lambda e, i, o, curve: curve(e, i, output=o), curve=curve)
        found = computed(context, f"far_{name}", made, x)
        assert found.ravel().tolist() == [0, 0, 0, 0, 11, 12, 300, 60000]


def test_a_softmax_takes_a_factor_for_each_row(context: Context):
    x = np.array([[1, 2, 0, -1], [0, 5, 4, 3], [-0.5, 0, 0, 1]], np.float16)[None, None]

    def curve(emitter: HalfEmitter, name: str, output: str) -> str:
        first = emitter.part(name, "first", 3, range(1))
        return curves.softmax(emitter, name, output, first)

    exact = softmax(x.astype(np.float64)) * x[..., :1]
    assert computed(context, "rows", curve, x) == pytest.approx(exact, abs=1e-3)
