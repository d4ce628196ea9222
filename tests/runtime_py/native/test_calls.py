"""Native calls run partitions at once, of kvc's kernels and of other libraries."""

import ctypes

import numpy as np
import pytest

from kvc.runtime.native import (
    LIBRARY_FAILED,
    Failure,
    NativeCall,
    NativePartition,
    Steps,
)
from kvc.runtime.native.library import find_library

ForeignCall = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
LentRun = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, Task, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
)


class Failed(Exception):
    """A partition failed; the arguments are its name and the failure."""


def adding(name, out, addend, made_ready=None, lent=0):
    """Return a partition that adds a number to `out`, in two steps."""
    steps = Steps(find_library(), 2, lent)
    for _ in range(2):
        steps.add("aten::add.Tensor", [out, out, addend], [1], [1.0])
    return NativePartition(steps, raiser(name), made_ready)


def calling(name, function, handle):
    steps = Steps(find_library(), 2)
    address = ctypes.cast(function, ctypes.c_void_p).value
    steps.add_call(address, ctypes.addressof(handle))
    return NativePartition(steps, raiser(name))


def raiser(name):
    def raises(failure):
        raise Failed(name, failure)

    return raises


@pytest.fixture
def out():
    return np.zeros(5, np.float32)


@pytest.fixture
def one():
    return np.ones((), np.float32)


def test_partitions_run_in_their_order_in_one_call(out, one, monkeypatch):
    library = find_library()
    run, calls = library._run, []
    monkeypatch.setattr(library, "_run", lambda *a: calls.append(a) or run(*a))
    seen, ready = [], []

    @ForeignCall
    def look(handle):
        seen.append((handle, out.tolist()))
        return 0

    handle = ctypes.c_void_p(12)
    partitions = [
        adding("a", out, one, lambda: ready.append("a")),
        calling("b", look, handle),
        adding("c", out, one, lambda: ready.append("c")),
    ]
    call = NativeCall([NativeCall(partitions[:2]).partitions[0], *partitions[1:]])
    call()
    handle.value = 13  # the library has made another one
    call()
    assert seen == [(12, [2.0] * 5), (13, [6.0] * 5)]
    assert (out == 8).all()
    assert ready == ["a", "c"] * 2
    assert len(calls) == 2


def test_a_failure_is_told_to_its_partition_with_its_own_step(out, one):
    refuse = ForeignCall(lambda handle: 5)
    call = NativeCall(
        [
            adding("a", out, one),
            calling("b", refuse, ctypes.c_void_p(1)),
            adding("c", out, one),
        ]
    )
    with pytest.raises(Failed) as caught:
        call()
    assert caught.value.args == ("b", Failure(LIBRARY_FAILED, 0, (5, 0, 0, 0)))
    assert call.reached == 1
    assert (out == 2).all()


def test_what_is_not_ready_begins_nothing(out, one):
    def unready():
        raise ValueError("not ready")

    partitions = [adding("a", out, one), adding("b", out, one, unready)]
    call = NativeCall(partitions)
    with pytest.raises(ValueError, match="not ready"):
        call()
    assert (call.reached, call.begun) == (1, False)
    assert not out.any()


def test_kernels_compute_with_the_threads_that_are_lent(one):
    counts = []

    @LentRun
    def in_turn(pool, task, context, count, flags):
        counts.append((pool, count, flags))
        for number in range(count):
            task(context, number)

    lent = (ctypes.c_void_p * 2)(ctypes.cast(in_turn, ctypes.c_void_p).value, 7)
    out = np.zeros(1 << 20, np.float32)
    NativeCall([adding("a", out, one, lent=ctypes.addressof(lent))])()
    assert (out == 2).all()
    assert counts == [(7, 2, 0)] * 2
    NativeCall([adding("b", out, one)])()
    assert (out == 4).all()
    assert len(counts) == 2
