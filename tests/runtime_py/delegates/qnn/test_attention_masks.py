"""What the host makes of attention, against the operators themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.qnn.attention_masks import HIDDEN, Sight
from kvc.runtime.delegates.qnn.calls import _fill_past, round_into
from kvc.schema.errors import CacheOverflow, IndexOutOfRange, RowLengthOutOfRange
from kvc.schema.torch_ops.attention import attention
from kvc.schema.torch_ops.cache_update import cache_update

TOTAL, START, COUNTS, MASK, SLOPES = range(5)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """A call: rows of a cache that is a line or a ring, and what queries see."""
    ring = draw(st.booleans())
    slots = draw(st.integers(2, 9))
    keep = draw(st.integers(0, slots - 2)) if ring else 0
    rows = draw(st.integers(1, slots - keep))
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    most = 30 if ring else slots - rows
    starts = draw(
        st.lists(st.integers(keep, max(keep, most)), min_size=batch, max_size=batch)
    )
    counts = draw(st.lists(st.integers(0, rows), min_size=batch, max_size=batch))
    mask = draw(st.sampled_from([None, "bool", "float"]))
    return {
        "ring": ring,
        "slots": slots,
        "keep": keep,
        "rows": rows,
        "batch": batch,
        "heads": heads,
        "starts": starts,
        "counts": counts if draw(st.booleans()) else None,
        "causal": draw(st.booleans()),
        "left": draw(st.none() | st.integers(0, 6)),
        "right": draw(st.none() | st.integers(0, 3)),
        "mask": mask,
        "slopes": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def by_the_operators(
    call: dict[str, object], numbers: dict[str, torch.Tensor]
) -> np.ndarray:
    mode = "circular" if call["ring"] else "linear"
    place = (2, mode, numbers["counts"], call["keep"])
    k, v = (
        cache_update(
            numbers[f"old_{n}"], numbers[f"new_{n}"], numbers["starts"], *place
        )
        for n in "kv"
    )
    made = attention(
        numbers["q"], k, v, numbers["total"], None, call["causal"], call["left"],
        call["right"], None, numbers["mask"], numbers["slopes"], None, mode, None, None,
        numbers["counts"], call["keep"],
    )  # fmt: skip
    return made.numpy()


def numbers_of(call: dict[str, object]) -> dict[str, torch.Tensor | None]:
    torch.manual_seed(call["seed"])
    batch, heads, rows = call["batch"], call["heads"], call["rows"]
    starts = torch.tensor(call["starts"])
    counts = None if call["counts"] is None else torch.tensor(call["counts"])
    total = starts + (rows if counts is None else counts)
    made: dict[str, torch.Tensor | None] = {
        "starts": starts,
        "counts": counts,
        "total": total,
        "q": torch.randn(batch, heads, rows, 4),
        "mask": None,
        "slopes": torch.rand(heads) if call["slopes"] else None,
    }
    for name in "kv":
        made[f"old_{name}"] = torch.randn(batch, heads, call["slots"], 4)
        made[f"new_{name}"] = torch.randn(batch, heads, rows, 4)
    if call["mask"]:
        shape = (batch, heads, rows, int(total.max()) + 2)
        made["mask"] = torch.rand(shape) > 0.3
        if call["mask"] == "float":
            made["mask"] = torch.where(made["mask"], torch.randn(shape), -torch.inf)
    return made


def by_the_sight(
    call: dict[str, object], numbers: dict[str, torch.Tensor]
) -> np.ndarray:
    """Do in float64 what the host and the device do, with NaN where nobody looks."""
    counts = None if call["counts"] is None else COUNTS
    slots, rows, keep = call["slots"], call["rows"], call["keep"]
    mode = "circular" if call["ring"] else "linear"
    apart = call["mask"] is not None or call["slopes"]
    sight = Sight(
        call["batch"], call["heads"] if apart else 1, rows, slots, TOTAL, counts,
        call["causal"], call["left"], call["right"], call["ring"], keep,
        None if call["mask"] is None else MASK, SLOPES if call["slopes"] else None,
        Writes(START, counts, rows, slots, mode, keep),
    )  # fmt: skip
    held = {
        TOTAL: "total",
        START: "starts",
        COUNTS: "counts",
        MASK: "mask",
        SLOPES: "slopes",
    }
    bias, seeing, kept = sight.measure(lambda value: numbers[held[value]].numpy())
    q, *pairs = (
        numbers[name].numpy().astype(np.float64)
        for name in ("q", "old_k", "new_k", "old_v", "new_v")
    )
    past = np.full(pairs[0].shape, np.nan, np.float16)
    contents = []
    for old, new in (pairs[:2], pairs[2:]):
        _fill_past(
            past, np.where(kept[:, None, :, None], old, np.nan), kept, round_into
        )
        assert np.isfinite(past).all()
        seen = np.where(kept[:, None, :, None], old, 0)
        contents.append(np.concatenate([seen, new], 2))
    k, v = contents
    scores = q @ k.swapaxes(2, 3) / 2 + bias
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ v * seeing


@settings(max_examples=150, deadline=None)
@given(calls())
def test_a_sight_is_what_the_operators_see(call: dict[str, object]):
    numbers = numbers_of(call)
    wanted = by_the_operators(call, numbers)
    found = by_the_sight(call, numbers)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def writes(start: int, mode: str = "linear", keep: int = 0) -> tuple[Writes, object]:
    return Writes(START, COUNTS, 3, 8, mode, keep), lambda value: {
        START: np.array([start]),
        COUNTS: np.array([3]),
    }[value]


@pytest.mark.parametrize(
    ("start", "mode", "keep", "error"),
    [
        (-1, "linear", 0, IndexOutOfRange),
        (6, "linear", 0, CacheOverflow),
        (-1, "circular", 2, IndexOutOfRange),
        (6, "circular", 6, CacheOverflow),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    start: int, mode: str, keep: int, error: type[Exception]
):
    one, read = writes(start, mode, keep)
    with pytest.raises(error):
        one.runs(read, 0)


def test_rows_go_round_a_ring():
    one, read = writes(7, "circular", 2)
    assert one.runs(read, 0) == [(0, 7, 1), (1, 2, 2)]
    one, read = writes(5)
    assert one.runs(read, 0) == [(0, 5, 3)]


def sight(total: int, count: int, *, ring: bool = False) -> tuple[Sight, object]:
    made = Sight(1, 1, 2, 4, TOTAL, COUNTS, True, None, None, ring, 0, None, None, None)
    return made, lambda value: np.array([total if value == TOTAL else count])


@pytest.mark.parametrize("total", [-1, 5])
def test_a_length_that_no_cache_has_is_refused(total: int):
    made, read = sight(total, 2)
    with pytest.raises(ValueError, match=f"valid length {total} of 4 slots"):
        made.measure(read)


def test_a_row_length_that_no_call_has_is_refused():
    made, read = sight(3, 3)
    with pytest.raises(RowLengthOutOfRange):
        made.measure(read)


def test_what_is_hidden_has_no_share_in_float16():
    made, read = sight(2, 2)
    bias, seeing, kept = made.measure(read)
    assert bias.tolist() == [[[[0, HIDDEN, HIDDEN, HIDDEN], [0, 0, HIDDEN, HIDDEN]]]]
    assert (seeing.ravel().tolist(), kept.tolist()) == (
        [1, 1],
        [[True, True, False, False]],
    )
    least = np.float16(HIDDEN) - np.float16(5000)
    assert np.exp(np.float64(least) - np.float64(-30000.0)) == 0
