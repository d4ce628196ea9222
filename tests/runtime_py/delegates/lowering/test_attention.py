"""Caches in functions, against the operators themselves.

Functions are computed by numpy. Slots that hold nothing are filled with NaN.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_lowering import compute

from kvc.runtime.delegates.lowering.attention import attend
from kvc.runtime.delegates.lowering.builder import Builder
from kvc.runtime.delegates.lowering.caches import Ring, write
from kvc.runtime.delegates.lowering.context import DeviceTraits, OpContext
from kvc.schema.backends.primitives import Primitive
from kvc.schema.rings import oldest, slot_runs
from kvc.schema.torch_ops.attention import attention
from kvc.schema.torch_ops.cache_update import cache_update

WIDTH = 4
ALL = frozenset(Primitive)
NAMED = ("counts", "mask", "slopes")


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """A call: rows of a cache that is a line or a ring, and what queries see."""
    circular = draw(st.booleans())
    slots = draw(st.integers(2, 9))
    keep = draw(st.integers(0, slots - 1)) if circular else 0
    rows = draw(st.integers(1, slots))
    batch, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    most = 30 if circular else slots - rows
    # So many rows fit, of which none is written twice.
    starts = st.integers(0, most).filter(
        lambda start: not circular or rows <= slots - min(start, keep)
    )
    counts = st.lists(st.integers(0, rows), min_size=batch, max_size=batch)
    return {
        "ring": Ring(circular, slots, keep),
        "rows": rows,
        "starts": draw(st.lists(starts, min_size=batch, max_size=batch)),
        "counts": draw(st.none() | counts),
        "groups": groups,
        "causal": draw(st.booleans()),
        "left": draw(st.none() | st.integers(0, 6)),
        "right": draw(st.none() | st.integers(0, 3)),
        "softcap": draw(st.none() | st.just(2.5)),
        "mask": draw(st.sampled_from([None, *([] if circular else ["bool", "float"])])),
        "width": draw(st.integers(1, 12)),  # of the mask
        "slopes": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def numbers_of(call: dict[str, object]) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(call["seed"])
    ring, rows, groups = call["ring"], call["rows"], call["groups"]
    batch, heads = len(call["starts"]), 2 * groups

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    found = {
        "q": random(batch, heads, rows, WIDTH),
        **{f"old_{n}": random(batch, groups, ring.slots, WIDTH) for n in "kv"},
        **{f"new_{n}": random(batch, groups, rows, WIDTH) for n in "kv"},
        "starts": torch.tensor(call["starts"]),
    }
    for row, start in enumerate(call["starts"]):
        empty = torch.ones(ring.slots, dtype=torch.bool)
        parts = [(0, start)]
        if ring.circular:
            first = oldest(start, ring.slots, ring.keep)
            parts = [(0, min(start, ring.keep)), (first, max(0, start - first))]
        for first, count in parts:
            for slot, run in slot_runs(first, count, ring.slots, ring.keep):
                empty[slot : slot + run] = False
        for n in "kv":
            found[f"old_{n}"][row][:, empty] = torch.nan
    if call["counts"] is not None:
        found["counts"] = torch.tensor(call["counts"])
    counts = found.get("counts", rows)
    found["total"] = found["starts"] + counts
    if call["mask"]:
        shape = (batch, heads, rows, call["width"])
        mask = random(*shape)
        shown = mask > 0
        hides = mask.masked_fill(~shown, -torch.inf)
        found["mask"] = shown if call["mask"] == "bool" else hides
    if call["slopes"]:
        found["slopes"] = random(heads)
    return found


def by_the_operators(
    call: dict[str, object], found: dict[str, torch.Tensor]
) -> list[np.ndarray]:
    ring = call["ring"]
    mode = "circular" if ring.circular else "linear"
    place = 2, mode, found.get("counts"), ring.keep
    k, v = (
        cache_update(found[f"old_{n}"], found[f"new_{n}"], found["starts"], *place)
        for n in "kv"
    )
    made = attention(
        found["q"],
        k,
        v,
        found["total"],
        causal=call["causal"],
        window_left=call["left"],
        window_right=call["right"],
        softcap=call["softcap"],
        mask=found.get("mask"),
        slopes=found.get("slopes"),
        layout=mode,
        row_lengths=found.get("counts"),
        keep=ring.keep,
    )
    return [made.numpy(), k.numpy(), v.numpy()]


def context(build: Builder) -> OpContext:
    """Return the context of an instruction whose operands are named tensors."""
    traits = DeviceTraits(build.primitives, {})
    return OpContext(build, lambda name, _: name, [], [], traits, lambda *_: None)


def by_a_function(
    call: dict[str, object], found: dict[str, torch.Tensor]
) -> list[np.ndarray]:
    build, ring = Builder(ALL), call["ring"]
    arrays = {
        name: t.numpy().astype(np.int32) if t.dtype == torch.int64 else t.numpy()
        for name, t in found.items()
    }
    for name, array in arrays.items():
        build.input(name, str(array.dtype), array.shape)
    named = {name: name if name in found else None for name in NAMED}
    counts = named["counts"]
    k, v = (write(build, f"old_{n}", f"new_{n}", "starts", counts, ring) for n in "kv")
    sides = call["causal"], call["left"], call["right"], call["softcap"]
    layout = "circular" if ring.circular else "linear"
    rest = named["mask"], named["slopes"], None, layout, None, None, counts, ring.keep
    y = attend(context(build), "q", k, v, "total", WIDTH**-0.5, *sides, *rest)
    function = build.function("f", {}, {"y": y, "k": k, "v": v})
    made = compute(function, arrays, lambda weight: None)
    return [made[function.outputs[name]] for name in "ykv"]


@settings(max_examples=150, deadline=None)
@given(calls())
def test_a_function_writes_and_sees_what_the_operators_do(call: dict[str, object]):
    found = numbers_of(call)
    mine, wanted = by_a_function(call, found), by_the_operators(call, found)
    np.testing.assert_array_equal(mine[1], wanted[1])
    np.testing.assert_array_equal(mine[2], wanted[2])
    rows = call["rows"]
    for row, count in enumerate(call["counts"] or [rows] * len(call["starts"])):
        np.testing.assert_allclose(
            mine[0][row, :, :count], wanted[0][row, :, :count], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e9, -torch.inf])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_of_the_least_number_hides_no_more_than_the_operator(
    least: float, causal: bool
):
    """Slots that hold nothing get no share of a query whose mask is that number."""
    call = {
        "ring": Ring(False, 8, 0),
        "rows": 3,
        "starts": [1, 2],
        "counts": None,
        "groups": 1,
        "causal": causal,
        "left": None,
        "right": None,
        "softcap": None,
        "mask": "float",
        "width": 8,
        "slopes": False,
        "seed": 1,
    }
    found = numbers_of(call)
    found["mask"] = torch.full_like(found["mask"], least)
    found["mask"][:, :, 0, :2] = 0
    mine, wanted = by_a_function(call, found), by_the_operators(call, found)
    np.testing.assert_allclose(mine[0], wanted[0], atol=1e-5)


def test_layers_share_what_says_who_sees_what():
    build = Builder(ALL)
    build.input("total", "int32", (1,))
    rest = (1.0, True, *[None] * 6, "linear", None, None, None, 0)
    counts = []
    for layer in range(3):
        for name in "qkv":
            build.input(f"{name}{layer}", "float32", (1, 1, 8, WIDTH))
        attend(context(build), *(f"{name}{layer}" for name in "qkv"), "total", *rest)
        made = build.function("f", {}, {})
        counts.append(len(made.operations))
    assert counts[2] - counts[1] == counts[1] - counts[0] < counts[0]
    assert [each.op for each in made.operations].count("greater") == 4


@pytest.mark.parametrize("rows", [1, 3])
def test_a_single_row_of_a_batch_is_written_as_a_slice(rows: int):
    build = Builder(ALL)
    build.input("cache", "float32", (1, 2, 8, WIDTH))
    build.input("new", "float32", (1, 2, rows, WIDTH))
    build.input("start", "int32", (1,))
    write(build, "cache", "new", "start", None, Ring(False, 8, 0))
    assert [each.op for each in build.function("f", {}, {}).operations] == ["write"]
