"""Partitions read states by reference, before they are written, without copies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.backends import BACKENDS
from kvc.compiler.backends.xnnpack import Xnnpack
from kvc.recipes import Recipe
from kvc.runtime import load
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Delegate
from kvc.schema.ops import DELEGATE

RECIPE = Recipe("toy", "", "", "float32", "float32", "float32", "toy")
TAKEN = ("aten::neg", "aten::exp")


class Toy(Xnnpack):
    """Takes two ops, wherever they are."""

    name = "toy"
    ops = TAKEN

    def supports(self, method):
        return frozenset(i for i, n in enumerate(method.nodes) if n.op in self.ops)


class InPlace(Toy):
    """Is lent memory of any strides, and writes in it."""

    in_place = True


class ToyHandle(ReferenceHandle):
    """Notes where the inputs of prepared calls lie, and their shapes."""

    addresses: tuple[list[int], ...] = ([],)
    shapes: tuple[list[tuple[int, ...]], ...] = ([],)

    def prepare(self, inputs, outputs, workspace, sizes):
        self.addresses[0].append([array.ctypes.data for array in inputs])
        self.shapes[0].append([array.shape for array in inputs])
        return super().prepare(inputs, outputs, workspace, sizes)


class ToyDelegate(Delegate):
    def __init__(self, options):
        self.options = options

    def init(self, partition, data):
        return ToyHandle(self.options.program, partition, data)

    def packed(self):
        return {}

    def close(self):
        pass


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    ToyHandle.addresses[0].clear()
    ToyHandle.shapes[0].clear()
    monkeypatch.setitem(BACKENDS, "toy", Toy)
    monkeypatch.setitem(DELEGATES, "toy", ToyDelegate)


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.arange(8.0).reshape(1, 4, 2), persistent=False)

    def old(self, x, place):
        read = self.k.neg()
        self.k.index_copy_(1, place, x)
        return read.cumsum(1)

    def new(self, x, place):
        self.k.index_copy_(1, place, x)
        return self.k.neg()

    def both(self, x, place):
        read = self.k.neg()
        self.k.index_copy_(1, place, x)
        return read, self.k.exp()

    def mixed(self, x, place):
        old = self.k.neg()
        self.k.index_copy_(1, place, x)
        return (old + self.k).exp()

    def row(self, x, place):
        read = self.k[:, 1:3].neg()
        self.k.index_copy_(1, place, x)
        return read


X, PLACE = torch.tensor([[[10.0, 20.0]]]), torch.tensor([2])


def compiled(name):
    bundle = compile_program(Cached(), [Method(name, args=(X, PLACE))], RECIPE)
    return SimpleNamespace(
        bundle=bundle,
        method=bundle.program.methods[0],
        calls=sum(
            s.op == DELEGATE for s in bundle.program.methods[0].graph.instructions
        ),
    )


def assert_as_eager(bundle, name, path):
    bundle.save(path)
    model = Cached()
    with load(path) as program, program.session() as session:
        for step in range(3):
            place = torch.tensor([step])
            expected = getattr(model, name)(X * step, place)
            got = session.call(name, X * step, place)
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "calls", "copies"),
    [
        ("old", 1, ()),
        ("new", 1, ()),
        ("both", 2, ()),
        ("mixed", 2, ()),
        ("row", 1, ()),
    ],
)
def test_a_partition_reads_a_state_and_its_write_copies_nothing(
    name, calls, copies, tmp_path
):
    done = compiled(name)
    assert done.calls == calls
    assert tuple(u.copies for u in done.method.updates) == (copies,)
    assert_as_eager(done.bundle, name, tmp_path / "a.kvc")


def test_a_partition_is_given_the_state_s_own_memory(tmp_path):
    done = compiled("both")
    done.bundle.save(tmp_path / "a.kvc")
    with load(tmp_path / "a.kvc") as program, program.session() as session:
        session.call("both", X, PLACE)
        (first,), (second,) = ToyHandle.addresses[0]
        assert first == second
        assert "aten::clone" not in [s.op for s in done.method.graph.instructions]


class Grown(nn.Module):
    """Rows that grow by concatenation, all of which a partition reads, old and new."""

    def step(self, x, past):
        rows = torch.cat([past, x], 1)
        return rows.neg(), past.exp(), rows


def run_grown(path):
    step = Method(
        "step",
        (torch.ones(1, 2, 2), torch.ones(1, 3, 2)),
        dynamic={"x": {1: Dim("seq", 1, 4)}, "past": {1: Dim("past", 0, 16)}},
        carry={"past": "[2]"},
    )
    bundle = compile_program(Grown(), [step], RECIPE)
    bundle.save(path)
    rows = np.zeros((1, 0, 2), np.float32)
    with load(path) as program, program.session() as session:
        for count in (1, 3, 2):
            new = np.random.default_rng(count).random((1, count, 2), np.float32)
            negated, before = session.call("step", new)
            np.testing.assert_allclose(before, np.exp(rows), rtol=1e-6)
            rows = np.concatenate([rows, new], 1)
            np.testing.assert_array_equal(negated, -rows)
    return bundle.program.methods[0]


def test_a_partition_that_reads_what_follows_a_length_gets_it_in_order(tmp_path):
    run_grown(tmp_path / "a.kvc")


def test_a_partition_in_place_reads_a_growing_state_as_long_as_it_is(
    tmp_path, monkeypatch
):
    """Its memory goes on past it, and is in another order than the rows."""
    monkeypatch.setitem(BACKENDS, "toy", InPlace)
    ops = [step.op for step in run_grown(tmp_path / "a.kvc").graph.instructions]
    assert "aten::clone" not in ops
    assert [{(1, n, 2), (1, m, 2)} for n, m in ((0, 1), (1, 4), (4, 6))] == [
        {shape for shapes in call for shape in shapes}
        for call in calls_of(ops.count(DELEGATE))
    ]


def calls_of(count):
    """Return the shapes of what each call of the method lent its delegates."""
    noted = ToyHandle.shapes[0]
    return [noted[i : i + count] for i in range(0, len(noted), count)]


def test_a_partition_that_makes_a_state_longer_is_lent_all_of_its_memory(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(BACKENDS, "toy", InPlace)
    monkeypatch.setattr(Toy, "ops", (*TAKEN, "kvc::append"))
    step = run_grown(tmp_path / "a.kvc")
    assert [each.op for each in step.graph.instructions] == [DELEGATE]
    assert [update.copies for update in step.updates] == [()]
    assert all((1, 16, 2) in shapes for shapes in ToyHandle.shapes[0])
