"""Inputs in the caller's own arrays: changed in place, or extended in place."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hand_built import write_bundle
from stateful_programs import F32, caller_program
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import CacheOverflow, GrowingArray, InputMismatch, load
from kvc.runtime.calls.callers import _shared
from kvc.schema.dtypes import DType


@pytest.fixture
def program(tmp_path):
    with load(write_bundle(tmp_path / "c.kvc", caller_program())) as opened:
        yield opened


def table(rows=3, start=0):
    return np.arange(start, start + 4 * rows, dtype=np.float32).reshape(rows, 4)


def blocks(rows, value=1.0):
    return np.full((2, rows, 4), value, np.float32)


def test_an_input_that_is_changed_is_changed_for_the_caller(program):
    total, x = table(), table(start=5)
    expected, product = total + x, total * x
    added, multiplied = program.add(total, x)
    assert np.array_equal(total, expected)
    assert np.array_equal(added, expected)
    assert np.array_equal(multiplied, product)


def test_the_result_that_is_the_input_is_a_copy(program):
    total = table()
    added, _ = program.add(total, table())
    added[:] = 7
    assert not np.array_equal(total, added)


def test_it_works_in_sessions_and_again_and_again(program):
    total, other = np.zeros((3, 4), np.float32), np.zeros((2, 4), np.float32)
    with program.session() as session:
        for _ in range(3):
            session.add(total, table())
            session.add(other, table(2))
    assert np.array_equal(total, 3 * table())
    assert np.array_equal(other, 3 * table(2))


def test_an_array_in_the_place_of_one_that_is_gone_is_bound_anew(program):
    x = table()
    for value in range(50):
        total = np.full((3, 4), value, np.float32)
        program.add(total, x)
        assert np.array_equal(total, x + value)
        del total


def test_a_frame_does_not_keep_the_callers_array(program):
    import weakref

    total = table()
    gone = weakref.ref(total)
    program.add(total, table())
    del total
    assert gone() is None


def test_one_array_is_bound_once(program, monkeypatch):
    from kvc.runtime.calls import contexts

    total, x = table(), table()
    program.add(total, x)
    monkeypatch.delattr(contexts, "bind_graph")
    program.add(total, x)
    assert np.array_equal(total, 3 * table())


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((4, 3), np.float32).T,
        lambda: np.zeros((6, 4), np.float32)[::2],
        lambda: np.zeros((3, 4), np.float32)[::-1, ::-1],
    ],
)
def test_an_array_with_gaps_is_written_back(program, make):
    total = make()
    assert total.shape == (3, 4) or total.T.shape == (4, 3)
    whole = total.reshape(3, 4) if total.shape == (3, 4) else total
    program.add(whole, table())
    program.add(whole, table())
    assert np.array_equal(whole, 2 * table())


def test_a_tensor_is_written_through(program):
    import torch

    total, x = torch.zeros(3, 4), torch.ones(3, 4)
    added, _ = program.add(total, x)
    assert torch.equal(total, x)
    assert torch.equal(added, x)
    turned = torch.zeros(4, 3).T
    program.add(turned, x)
    assert torch.equal(turned, x)


def test_bfloat16_is_written_through(tmp_path):
    import torch

    built = caller_program(DType.BFLOAT16)
    with load(write_bundle(tmp_path / "b.kvc", built)) as program:
        total = torch.zeros(3, 4, dtype=torch.bfloat16)
        program.add(total, torch.ones(3, 4, dtype=torch.bfloat16))
        assert total.sum() == 12


def test_a_read_only_array_cannot_be_changed(program):
    total = table()
    total.flags.writeable = False
    with pytest.raises(InputMismatch, match="input total: expected an array that may"):
        program.add(total, table())


def test_an_array_that_overlaps_another_argument_is_refused(program):
    memory = np.zeros((5, 4), np.float32)
    with pytest.raises(InputMismatch, match=r"input total.*memory that input x shares"):
        program.add(memory[:3], memory[2:])
    assert not memory.any()
    program.add(memory[:2], memory[3:])


def test_whatever_overlaps_what_is_written_is_found_among_many():
    random = np.random.default_rng(0)
    memory = np.zeros((64, 4), np.float32)
    found = []
    for _ in range(300):
        starts = random.integers(0, 60, 6).tolist()
        steps = random.choice([-2, -1, 1, 2], 6).tolist()
        arrays = [
            memory[start : start + random.integers(0, 5)][::step]
            for start, step in zip(starts, steps, strict=True)
        ]
        written = {leaf: arrays[leaf] for leaf in range(random.integers(0, 4))}
        pairs = {
            (leaf, other)
            for leaf in written
            for other in range(6)
            if leaf != other and np.may_share_memory(arrays[leaf], arrays[other])
        }
        shared = _shared(SimpleNamespace(arrays=arrays, leaves=arrays), written)
        assert shared in pairs if pairs else shared is None
        found.append(shared)
    assert {shared is None for shared in found} == {True, False}


def test_what_is_only_read_may_overlap():
    memory = np.zeros((8, 4), np.float32)
    arrays = [memory[:2], memory[4:], memory[5:], memory[4:5]]
    given = SimpleNamespace(arrays=arrays, leaves=arrays)
    assert _shared(given, {0: arrays[0]}) is None
    assert _shared(given, {3: arrays[3]}) == (3, 1)


def test_an_array_that_overlaps_itself_is_refused(program):
    memory = np.zeros(16, np.float32)
    for strides in ((0, 4), (4, 4), (8, 4)):
        total = np.lib.stride_tricks.as_strided(memory, (3, 4), strides)
        with pytest.raises(InputMismatch, match="overlap each other"):
            program.add(total, table())
    assert not memory.any()


def test_a_growing_array_is_extended_in_place_and_is_the_result(program):
    past = GrowingArray("float32", (2, 0, 4), 1, 512)
    address = past.array.ctypes.data
    for token in range(100):
        new, negated = program.extend(past, blocks(1, token))
        assert new is past
        assert negated.shape == (2, token + 1, 4)
        assert negated[1, token, 3] == -token
    assert past.array[0, :, 0].tolist() == list(range(100))
    assert past.array.ctypes.data == address


class Joined(nn.Module):
    def forward(self, past: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([past, 2 * a, b])


def test_a_join_of_three_extends_an_array_twice(tmp_path):
    length, more = Dim("length", 0, 16), Dim("more", 1, 4)
    dynamic = {"past": {0: length}, "a": {0: more}, "b": {0: more}}
    args = (torch.ones(4, 3), torch.ones(2, 3), torch.ones(2, 3))
    method = Method("forward", args=args, dynamic=dynamic)
    compile_program(Joined(), [method]).save(tmp_path / "j.kvc")
    past, rows = GrowingArray("float32", (0, 3), 0, 8), np.ones((2, 3), np.float32)
    with load(tmp_path / "j.kvc") as program:
        assert program.forward(past, rows, 3 * rows) is past
        assert past.array[:, 0].tolist() == [2, 2, 3, 3]
        program.forward(past, rows[:1], rows[:1])
        assert past.array[4:, 0].tolist() == [2, 1]
        with pytest.raises(CacheOverflow):
            program.forward(past, rows, rows)
    assert len(past) == 6


def test_only_the_new_rows_are_written(program):
    past = GrowingArray("float32", (2, 0, 4), 1, 16)
    program.extend(past, blocks(2))
    past.memory[:, 5:] = 9
    past.array[:, 0] = 7
    program.extend(past, blocks(2, 3))
    assert past.memory[0, :6, 0].tolist() == [7, 1, 3, 3, 0, 9]


def test_a_growing_array_without_room_stays_as_it_is(program):
    past = GrowingArray("float32", (2, 0, 4), 1, 3)
    program.extend(past, blocks(2))
    with pytest.raises(CacheOverflow) as caught:
        program.extend(past, blocks(2))
    facts = (caught.value.start, caught.value.count, caught.value.capacity)
    assert facts == (2, 2, 3)
    assert past.length == 2


def test_a_failed_call_leaves_the_length(program, monkeypatch):
    from kvc.runtime.calls import contexts

    def broken(_):
        raise KeyboardInterrupt

    past = GrowingArray("float32", (2, 0, 4), 1, 16)
    monkeypatch.setattr(contexts, "own_copy", broken)
    with pytest.raises(KeyboardInterrupt):
        program.extend(past, blocks(2))
    monkeypatch.undo()
    assert past.length == 0
    program.extend(past, blocks(1, 5))
    assert past.array[0, :, 0].tolist() == [5]


def test_a_plain_array_is_copied_and_stays_as_it_is(program):
    past = blocks(3, 2)
    past.flags.writeable = False
    new, negated = program.extend(past, blocks(1, 4))
    assert new[0, :, 0].tolist() == [2, 2, 2, 4]
    assert past.shape == (2, 3, 4)
    new[:] = 0
    assert negated[1, :, 3].tolist() == [-2, -2, -2, -4]
    again, _ = program.extend(new, blocks(2, 1))
    assert again[0, :, 0].tolist() == [0, 0, 0, 0, 1, 1]


def test_a_tensor_is_copied_and_gives_tensors(program):
    import torch

    new, _ = program.extend(torch.zeros(2, 0, 4), torch.ones(2, 1, 4))
    assert torch.equal(new, torch.ones(2, 1, 4))
    past = GrowingArray("float32", (2, 0, 4), 1, 16)
    grown, negated = program.extend(past, torch.ones(2, 1, 4))
    assert grown is past
    assert torch.equal(negated, -torch.ones(2, 1, 4))


def test_it_must_grow_along_the_same_axis(program):
    past = GrowingArray("float32", (0, 1, 4), 0, 16)
    past.append(np.zeros((2, 1, 4), np.float32))
    with pytest.raises(InputMismatch, match="grows along axis 1, got one that grows"):
        program.extend(past, blocks(1))


def test_a_growing_array_of_another_type_is_a_mismatch(program):
    with pytest.raises(InputMismatch, match="input past: expected float32"):
        program.extend(GrowingArray("float64", (2, 0, 4), 1, 16), blocks(1))


@pytest.mark.parametrize("take", [lambda past: past, lambda past: past.array])
def test_it_cannot_be_two_arguments(program, take):
    past = GrowingArray("float32", (2, 2, 4), 1, 16)
    with pytest.raises(InputMismatch, match="memory that input x shares"):
        program.extend(past, take(past))
    assert past.length == 2


def test_any_other_input_takes_its_array(program):
    x = GrowingArray("float32", (0, 4), 0, 8)
    x.append(table())
    total = np.zeros((3, 4), np.float32)
    program.add(total, x)
    assert np.array_equal(total, table())
    program.add(x, total)
    assert np.array_equal(x.array, 2 * table())
    assert F32 is DType.FLOAT32
