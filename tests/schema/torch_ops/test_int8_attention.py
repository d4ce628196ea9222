"""`kvc::attention` over int8 caches equals the same over what the rows stand for.

The expected values are those of the float64 operator, which has tests of its own. Both
ways of multiplying by int8 are tried on every machine.
"""

import math
import random
from collections.abc import Iterator

import pytest
import torch
from int8_ways import take_way
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvc.schema.torch_ops import attend_into, attention, int8_rows, quantize_cache, rows

EXACT = torch.float64


@pytest.fixture(params=["digits", "widened"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take one way of multiplying, whatever the processor and the sizes."""
    monkeypatch.setattr(int8_rows, "DIGITS_KEYS", 1)
    digits = request.param == "digits"
    take_way(digits, monkeypatch)
    monkeypatch.setattr(int8_rows, "PIECE_CELLS", 64)
    monkeypatch.setattr(int8_rows, "PRODUCTS", 96)
    return request.param


def expected_of(q: Tensor, cache: tuple[Tensor, ...], valid: Tensor, options) -> Tensor:
    k, k_scale, v, v_scale = (part.double() for part in cache)
    keys, values = k * k_scale[..., None], v * v_scale[..., None]
    exact = {
        name: x.double() if isinstance(x, Tensor) and name in ("mask", "sinks")
        and x.is_floating_point() else x
        for name, x in options.items()
    }  # fmt: skip
    return attention(q.double(), keys, values, valid, **exact)


def found_of(q: Tensor, cache: tuple[Tensor, ...], valid: Tensor, options) -> Tensor:
    k, k_scale, v, v_scale = cache
    return attention(q, k, v, valid, **options, k_scale=k_scale, v_scale=v_scale)


def caches(batch: int, heads: int, slots: int, width: int, values: int):
    k, k_scale = quantize_cache(torch.randn(batch, heads, slots, width))
    v, v_scale = quantize_cache(torch.randn(batch, heads, slots, values) * 3)
    return k, k_scale, v, v_scale


def poison(cache: tuple[Tensor, ...], valid: Tensor) -> None:
    """Make NaN of every slot of a linear cache that holds nothing."""
    for row, length in enumerate(valid.tolist()):
        cache[1][row, :, length:] = math.nan
        cache[3][row, :, length:] = math.nan


def some_options(dice: random.Random, batch: int, heads: int, seq: int):
    """Return options of a call, each on or off by chance."""

    def perhaps(make):
        return make() if dice.random() < 0.3 else None

    mask_shape = (dice.choice((1, batch)), dice.choice((1, heads)), seq, 24)
    return {
        "scale": perhaps(lambda: 0.4),
        "causal": dice.random() < 0.7,
        "window_left": perhaps(lambda: dice.randint(0, 9)),
        "window_right": perhaps(lambda: dice.randint(0, 3)),
        "softcap": perhaps(lambda: 3.0),
        "mask": perhaps(lambda: torch.rand(mask_shape) < 0.7),
        "slopes": perhaps(lambda: torch.rand(heads)),
        "sinks": perhaps(lambda: torch.randn(heads)),
        "layout": (layout := dice.choice(("linear", "linear", "circular"))),
        "keep": dice.choice((0, 1, 4)) if layout == "circular" else 0,
    }


@pytest.mark.parametrize("seed", range(40))
def test_any_call_equals_the_one_over_widened_rows(seed: int, way: str):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    batch, kv_heads, group = dice.randint(1, 2), dice.randint(1, 3), dice.randint(1, 3)
    seq, slots = dice.choice((1, 1, 2, 5)), dice.randint(6, 20)
    heads = kv_heads * group
    options = some_options(dice, batch, heads, seq)
    most = 2 * slots if options["layout"] == "circular" else slots
    valid = torch.tensor([dice.randint(0, most) for _ in range(batch)])
    q = torch.randn(batch, heads, seq, 8)
    cache = caches(batch, kv_heads, slots, 8, dice.choice((8, 8, 5)))
    if options["layout"] == "linear":
        poison(cache, valid)
    found = found_of(q, cache, valid, options)
    expected = expected_of(q, cache, valid, options)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seq", [1, 2, 40])
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 30.0])
def test_long_caches_are_as_exact(seq: int, magnitude: float, way: str, monkeypatch):
    monkeypatch.setattr(int8_rows, "PRODUCTS", 2**12)
    monkeypatch.setattr(int8_rows, "PIECE_CELLS", 2**12)
    torch.manual_seed(3)
    q = torch.randn(1, 6, seq, 16) * magnitude
    cache = caches(1, 2, 3000, 16, 16)
    valid = torch.tensor([2999])
    found = found_of(q, cache, valid, {})
    expected = expected_of(q, cache, valid, {})
    # Scores are float32: what they are off by is a part of the greatest of them.
    atol = 1e-5 * max(1.0, magnitude)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("seq", [1, 4])
def test_queries_of_other_dtypes_get_the_rounded_result(dtype, seq, way):
    torch.manual_seed(4)
    q, cache = torch.randn(2, 4, seq, 8).to(dtype), caches(2, 2, 16, 8, 8)
    valid = torch.tensor([9, 16])
    found, expected = (f(q, cache, valid, {}) for f in (found_of, expected_of))
    assert found.dtype == dtype
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, EXACT: 1e-12}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seq", [1, 3])
def test_a_key_that_is_nan_reaches_the_queries_that_see_it_alone(seq: int, way: str):
    torch.manual_seed(5)
    keys = torch.randn(1, 2, 8, 8)
    keys[0, 1, 2, 3] = math.inf
    values = torch.randn(1, 2, 8, 8)
    cache = (*quantize_cache(keys), *quantize_cache(values))
    q = torch.randn(1, 4, seq, 8)
    found = found_of(q, cache, torch.tensor([6]), {})
    assert torch.isfinite(found[0, :2]).all()
    assert torch.isnan(found[0, 2:]).all()


def test_values_and_queries_that_are_not_finite_give_nan(way: str):
    torch.manual_seed(6)
    values = torch.randn(1, 1, 8, 8)
    values[0, 0, 1, 1] = math.nan
    cache = (*quantize_cache(torch.randn(1, 1, 8, 8)), *quantize_cache(values))
    q = torch.randn(1, 1, 1, 8)
    assert torch.isnan(found_of(q, cache, torch.tensor([8]), {})).all()
    q[0, 0, 0, 0] = math.inf
    cache = caches(1, 1, 8, 8, 8)
    assert torch.isnan(found_of(q, cache, torch.tensor([8]), {})).all()


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation makes."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in given}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            own = isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata
            if own and own not in self.known:
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.fixture
def long_cache() -> Iterator[tuple[Tensor, ...]]:
    k = torch.ones(1, 4, 60000, 16, dtype=torch.int8)
    scale = torch.ones(1, 4, 60000)
    return k, scale, k.clone(), scale.clone()


@pytest.mark.parametrize("digits", [True, False])
@pytest.mark.parametrize(
    ("seq", "options"),
    [(1, {}), (1, {"softcap": 2.0}), (2, {"layout": "circular"}), (9, {})],
)
def test_no_call_widens_a_long_cache(digits, seq, options, long_cache, monkeypatch):
    take_way(digits, monkeypatch)
    q, valid = torch.zeros(1, 4, seq, 16), torch.tensor([59000])
    (k, k_scale, v, v_scale), found = long_cache, torch.empty_like(q)
    names = ("scale", "causal", "window_left", "window_right", "softcap")
    given = {"causal": True, "layout": "linear"} | options
    settings = [given.get(name) for name in (*names, "mask", "slopes", "sinks")]
    # The function of the operator: what an operator does inside is not seen.
    with Largest(q, valid, found, *long_cache) as seen:
        attend_into(found, q, k, v, valid, *settings, given["layout"], k_scale, v_scale)
    # Equal weights are all rounded to the same side when they are added up.
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-3)
    bound = max(int8_rows.PIECE_CELLS, rows.SCORE_CELLS, 4 * 59000 * seq)
    assert seen.elements <= bound < 4 * 59000 * 16


K, S = torch.ones(1, 2, 8, 4, dtype=torch.int8), torch.ones(1, 2, 8)
Q, ONE = torch.ones(1, 2, 1, 4), torch.tensor([1])


@pytest.mark.parametrize(
    ("q", "k", "v", "scales", "message"),
    [
        (Q, K, K, (S, None), "one of k_scale and v_scale alone"),
        (Q, K, K, (None, S), "not one floating dtype"),
        (Q, K, K, (None, None), "not one floating dtype"),
        (Q, K.float(), K.float(), (S, S), "not floating, int8 and int8"),
        (Q, K, K.float(), (S, S), "not floating, int8 and int8"),
        (K[:, :, :1], K, K, (S, S), "not floating, int8 and int8"),
        (
            Q,
            K,
            K,
            (S.double(), S),
            r"k_scale is torch.float64 \[1, 2, 8\], not float32",
        ),
        (Q, K, K, (S, S[:, :1]), r"v_scale is torch.float32 \[1, 1, 8\], not float32"),
        (Q, K, K, (S, S[..., None]), r"\[1, 2, 8, 1\], not float32 \[1, 2, 8\]"),
    ],
)
def test_scales_that_do_not_fit_are_refused(q, k, v, scales, message):
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, ONE, k_scale=scales[0], v_scale=scales[1])
