"""Defects that were measured in ExecuTorch 1.5.1, which kvc must not have.

Each is a program of ours that equals eager call by call, or is refused with an error
that says why. More on sizes and alignments of stored data: tests/schema/container and
tests/schema/verify.
"""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sealing import parts, seal
from state_models import (
    Apart,
    CallersCache,
    LikeAConstant,
    OneHasState,
    SameName,
    Shared,
    TwoConds,
    TwoShapes,
)
from state_runs import agree, opened, run

from kvc.compiler import Dim, Method, compile_program
from kvc.recipes import load_recipe
from kvc.runtime import FormatError, load
from kvc.runtime.memory.growing import GrowingArray
from kvc.schema.codec import encode
from kvc.schema.container import BundleFile
from kvc.schema.errors import CacheOverflow, InputMismatch, StateConflict

ONE, ONES = torch.ones(1), torch.ones(4)
BOTH = [Method("prefill", args=(ONE,)), Method("decode", args=(ONE,))]


def test_one_branch_leaves_the_result_of_another_alone(tmp_path: Path) -> None:
    # pytorch/executorch#21490: the second branch's result replaces the first's.
    yes, no, x = torch.tensor(True), torch.tensor(False), torch.arange(4.0)
    calls = [("forward", yes, x), ("forward", no, x), ("forward", yes, -x)]
    run(TwoConds(), [Method("forward", args=(yes, x))], calls, tmp_path)


@pytest.mark.parametrize("name", ["step", "total"])
def test_a_buffer_with_the_name_of_an_argument_is_updated(
    tmp_path: Path, name: str
) -> None:
    # There 1, 1, 1 instead of 1, 2, 3.
    k = ONES if name == "step" else torch.ones(2)
    run(SameName(), [Method(name, args=(k,))], [(name, k)] * 3, tmp_path)


def test_another_method_leaves_the_state_of_the_first_alone(tmp_path: Path) -> None:
    # There 589 in the third call instead of 2.
    many = torch.full((64,), 7.0)
    methods = [Method("a", args=(ONES,)), Method("b", args=(many,))]
    calls = [("a", ONES), ("b", many), ("a", ONES), ("b", -many), ("a", ONES)]
    run(OneHasState(), methods, calls, tmp_path)
    run(OneHasState(), methods[::-1], calls, tmp_path)


def test_equal_caches_of_two_methods_do_not_see_each_other(tmp_path: Path) -> None:
    calls = [("prefill", ONE), ("decode", ONE), ("prefill", ONE), ("decode", ONE)]
    run(Apart(4, 4), BOTH, calls, tmp_path)


def test_buffers_of_one_leaf_name_and_two_shapes_stay_apart(tmp_path: Path) -> None:
    # There `cache` of 256 bytes and `other` of 16 overlapped, or the file did not load.
    calls = [("prefill", ONE), ("prefill", ONE), ("decode", ONE), ("prefill", ONE)]
    run(Apart(64, 4), BOTH, calls, tmp_path)
    run(Apart(4, 64), BOTH, calls, tmp_path)


def test_one_state_in_two_shapes_is_refused_with_both_methods_and_shapes() -> None:
    def carrying(name: str, size: int) -> Method:
        x = torch.ones(size)
        return Method(name, args=(x, x * 1), carry={"past": 1})

    methods = [carrying("prefill", 64), carrying("decode", 4)]
    with pytest.raises(StateConflict) as caught:
        compile_program(TwoShapes(), methods)
    for word in ("prefill", "float32[64]", "decode", "float32[4]"):
        assert word in str(caught.value)


def test_compiling_five_times_gives_the_same_bytes(tmp_path: Path) -> None:
    def compiled(name: str) -> bytes:
        compile_program(Apart(64, 4), BOTH).save(tmp_path / name)
        return (tmp_path / name).read_bytes()

    assert len({compiled(f"{i}.kvc") for i in range(5)}) == 1


_ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from state_models import Apart
from kvc.compiler import (Method, compile_program)
one = torch.ones(1)
methods = [Method("prefill", args=(one,)), Method("decode", args=(one,))]
compile_program(Apart(64, 4), methods).save(sys.argv[2])
"""


@pytest.mark.exhaustive  # every day in compiler/test_pipeline.py
def test_another_process_with_another_hash_seed_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here.kvc", tmp_path / "there.kvc"
    compile_program(Apart(64, 4), BOTH).save(here)
    support = Path(__file__).parents[2] / "support"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, support, there],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
    )
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("methods", [BOTH, BOTH[::-1]])
def test_no_order_of_calls_resets_what_starts_with_a_value(
    tmp_path: Path, methods: list[Method]
) -> None:
    # There the second method's load put the initial values back.
    model = Shared(4, cache=1.0, other=-3.0)
    with opened(model, methods, tmp_path) as program:
        for order in itertools.product(["prefill", "decode"], repeat=3):
            with program.session() as session:
                calls = [(name, ONE) for name in order]
                agree(session, Shared(4, cache=1.0, other=-3.0), calls)


def test_loading_again_between_calls_changes_nothing(tmp_path: Path) -> None:
    eager = Shared(4, cache=1.0)
    with opened(eager, BOTH, tmp_path) as first, first.session() as session:
        agree(session, eager, [("prefill", ONE)])
        with opened(Shared(4, cache=1.0), BOTH, tmp_path) as second:
            with second.session() as other:
                agree(other, Shared(4, cache=1.0), [("decode", ONE)])
            agree(session, eager, [("decode", ONE), ("prefill", ONE)])


def test_settings_used_twice_give_what_new_ones_give(tmp_path: Path) -> None:
    # There the planner's options could not be used for a second program.
    def compiled(
        model: torch.nn.Module, methods: list[Method], recipe: object
    ) -> bytes:
        compile_program(model, methods, recipe).save(tmp_path / "model.kvc")
        return (tmp_path / "model.kvc").read_bytes()

    recipe = load_recipe("fp32")
    compiled(Apart(64, 4), BOTH, recipe)
    fresh = [Method("prefill", args=(ONE,)), Method("decode", args=(ONE,))]
    assert compiled(Shared(4), BOTH, recipe) == compiled(Shared(4), fresh, "fp32")


def test_a_state_that_begins_as_a_constant_leaves_the_constant_alone(
    tmp_path: Path,
) -> None:
    # There the file did not load.
    methods = [Method("step", args=(ONES,)), Method("weight", args=(ONES,))]
    calls = [("step", ONES), ("weight", ONES), ("step", ONES), ("weight", ONES)]
    with opened(LikeAConstant(), methods, tmp_path) as program:
        for _ in range(2):
            with program.session() as session:
                agree(session, LikeAConstant(), calls)


@pytest.mark.parametrize("nbytes", [16, 0, 16383, 16385, 32768])
def test_stored_bytes_that_are_not_as_many_as_their_tensor_needs_are_refused(
    tmp_path: Path, nbytes: int
) -> None:
    # There a size of 16 instead of 16384 loaded, ran, and read out of bounds.
    path = tmp_path / "model.kvc"
    model = torch.nn.Linear(64, 64).eval()
    compile_program(model, [Method("forward", args=(torch.ones(1, 64),))]).save(path)
    with BundleFile.open(path) as bundle:
        program = bundle.program
    changed = [
        replace(blob, nbytes=nbytes) if blob.nbytes == 16384 else blob
        for blob in program.blobs
    ]
    assert changed != list(program.blobs)
    path.write_bytes(seal(parts(path)[0], encode(replace(program, blobs=changed))))
    with pytest.raises(FormatError):
        load(path)


def test_stored_bytes_lie_at_multiples_of_their_alignment_in_the_file(
    tmp_path: Path,
) -> None:
    # There alignments counted from the start of a segment, and were lost in the file.
    path = tmp_path / "model.kvc"
    model = torch.nn.Sequential(*(torch.nn.Linear(n, 33) for n in (33, 33, 33)))
    model[2].weight.data = model[0].weight.data.clone()
    compile_program(model.eval(), [Method("forward", args=(torch.ones(1, 33),))]).save(
        path
    )
    with BundleFile.open(path) as bundle:
        blobs, names = bundle.program.blobs, bundle.program.names
    assert sorted(blob.align for blob in blobs) == [64, 64, 64, 4096, 4096]
    assert all(blob.offset % blob.align == 0 for blob in blobs)
    shared = {named.name: named.blob for named in names}
    assert shared["0.weight"] == shared["2.weight"] != shared["1.weight"]


def test_a_callers_cache_is_written_and_only_the_result_comes_back(
    tmp_path: Path,
) -> None:
    # There two results, a cache that stayed zeros, and fresh caches not looked at.
    method = Method("add", args=(ONES, torch.zeros(4)))
    with opened(CallersCache(), [method], tmp_path) as program:
        cache = np.zeros(4, np.float32)
        ones = np.ones(4, np.float32)
        for total in (4.0, 8.0):
            result = program.call("add", ones, cache)
            assert isinstance(result, np.ndarray)
            assert (result.shape, result.item()) == ((), total)
        assert cache.tolist() == [2.0] * 4
        assert program.call("add", ones, np.zeros(4, np.float32)).item() == 4.0
        full = torch.full((4,), 100.0)
        assert program.call("add", ONES, full).item() == 404.0
        assert full.tolist() == [101.0] * 4
        assert ones.tolist() == [1.0] * 4


def test_a_callers_cache_may_be_a_part_of_an_array(tmp_path: Path) -> None:
    method = Method("add", args=(ONES, torch.zeros(4)))
    with opened(CallersCache(), [method], tmp_path) as program:
        table = np.zeros((4, 3), np.float32)
        assert program.call("add", np.ones(4, np.float32), table[:, 1]).item() == 4.0
        assert table.tolist() == [[0.0, 1.0, 0.0]] * 4
        rows = torch.zeros(3, 8)
        assert program.call("add", ONES, rows[1, ::2]).item() == 4.0
        assert rows.tolist() == [[0.0] * 8, [1.0, 0.0] * 4, [0.0] * 8]


def test_a_callers_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    method = Method("add", args=(ONES, torch.zeros(4)))
    with opened(CallersCache(), [method], tmp_path) as program:
        fixed = np.zeros(4, np.float32)
        fixed.flags.writeable = False
        with pytest.raises(InputMismatch, match="read-only"):
            program.call("add", np.ones(4, np.float32), fixed)
        shared = np.ones(4, np.float32)
        with pytest.raises(InputMismatch, match="input x shares"):
            program.call("add", shared, shared)
        assert shared.tolist() == [1.0] * 4


PUT = Method(
    "put",
    args=(torch.ones(1, 1), torch.tensor(0), torch.zeros(1, 4)),
    dynamic={"cache": {1: Dim("slots", 1, 16)}},
)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_callers_cache_may_grow_between_calls(tmp_path: Path, kind: str) -> None:
    # There 1, 2, 3, 4, or the right sums with a cache that was never written.
    with opened(CallersCache(), [PUT], tmp_path) as program:
        cache = torch.zeros(1, 2)
        for place, total in enumerate([1.0, 3.0, 6.0, 10.0]):
            if place == cache.shape[1]:
                cache = torch.cat([cache, torch.zeros(1, 2)], 1)
            token = torch.full((1, 1), place + 1.0)
            given = (token, torch.tensor(place), cache)
            if kind == "numpy":
                given = tuple(tensor.numpy() for tensor in given)
            assert program.call("put", *given).item() == total
        assert cache.tolist() == [[1.0, 2.0, 3.0, 4.0]]
        with pytest.raises(Exception, match=r"out of range|full"):
            program.call("put", torch.ones(1, 1), torch.tensor(4), cache)
        assert cache.tolist() == [[1.0, 2.0, 3.0, 4.0]]


EXTEND = Method(
    "extend",
    args=(torch.ones(1, 2), torch.zeros(1, 3)),
    dynamic={"token": {1: Dim("seq", 1, 8)}, "cache": {1: Dim("slots", 0, 16)}},
)


def test_a_growing_array_is_extended_where_it_is(tmp_path: Path) -> None:
    with opened(CallersCache(), [EXTEND], tmp_path) as program:
        cache = GrowingArray("float32", (1, 0), axis=1, capacity=8)
        for token, total in enumerate([1.0, 3.0, 6.0, 10.0], start=1):
            address = cache.memory.ctypes.data
            one = np.full((1, 1), token, np.float32)
            result, longer = program.call("extend", one, cache)
            assert longer is cache
            assert (result.item(), len(cache)) == (total, token)
            assert cache.memory.ctypes.data == address
        assert cache.array.tolist() == [[1.0, 2.0, 3.0, 4.0]]
        with pytest.raises(CacheOverflow):
            program.call("extend", np.ones((1, 5), np.float32), cache)
        assert cache.array.tolist() == [[1.0, 2.0, 3.0, 4.0]]
        assert program.call("extend", np.ones((1, 4), np.float32), cache)[0] == 14.0


def test_a_plain_array_given_to_be_extended_stays_as_it_is(tmp_path: Path) -> None:
    with opened(CallersCache(), [EXTEND], tmp_path) as program:
        cache = torch.tensor([[5.0, 6.0]])
        total, longer = program.call("extend", torch.ones(1, 3), cache)
        assert (total.item(), longer.tolist()) == (14.0, [[5.0, 6.0, 1.0, 1.0, 1.0]])
        assert cache.tolist() == [[5.0, 6.0]]
