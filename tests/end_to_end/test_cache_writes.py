"""Every spelling of a cache write does what eager does, through the public door."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cache_writes import WRITES, Cache, Places
from daily import every
from eager_parity import same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import Program, load
from kvc.schema.errors import ExecutionError
from kvc.schema.model import StateKind
from kvc.schema.ops import OPS, Aliasing

X, AT = torch.arange(12.0).reshape(2, 2, 3) + 100, torch.tensor([5, 2])
CALLS = ((X, AT), (X * 2, AT - 1), (X - 3, AT - 2))


# What half of the others do not have, each.
ODD = [
    "put_and_accumulate",
    "scatter_by_adding",
    "index_fill_with_a_tensor",
    "write_permuted_at_one_place",
    "write_a_ring_by_hand",
    "copy_one_half_to_the_other",
    "write_one_part_of_a_cache_of_both",
]


@every(4, "name", always=ODD)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_does_as_eager_does(tmp_path: Path, name: str) -> None:
    write, ops = WRITES[name]
    model = Cache(write)
    bundle = compile_program(
        copy.deepcopy(model), [Method("step", args=(X, AT))], "fp32"
    )
    bundle.save(tmp_path / "model.kvc")
    (method,) = bundle.program.methods
    used = [instruction.op for instruction in method.graph.instructions]
    updates = [op for op in used if OPS[op].aliasing is Aliasing.UPDATE]
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        for x, i in CALLS:
            same(session.step(x, i), model.step(x, i))
    moved = [op.partition("::")[2] for op in updates if op != "aten::copy"]
    assert moved == list(ops)


PLACES = (
    "by_slice", "by_narrow", "by_index_copy", "by_index", "by_one_place",
    "transposed", "of_one_row", "at_position", "at_the_front", "at_the_end",
)  # fmt: skip
LONGEST = torch.linspace(1, 2, 96).reshape(2, 2, 8, 3)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    path = tmp_path_factory.mktemp("places") / "model.kvc"
    dynamic = {"x": {2: Dim("count", 1, 8)}}
    args = (LONGEST[:, :, :3], torch.tensor(0))
    methods = [Method(name, args=args, dynamic=dynamic) for name in PLACES]
    compile_program(Places(), methods, "fp32").save(path)
    with load(path) as program:
        yield program


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.integers(-9, 9), st.integers(1, 8)),
        min_size=1,
        max_size=6,
    )
)
def test_writes_at_any_place_do_as_eager_does(
    places: Program, calls: list[tuple[str, int, int]]
) -> None:
    model = Places()
    with places.session() as session:
        for number, (name, place, count) in enumerate(calls):
            passed = (LONGEST[:, :, :count] + number, torch.tensor(place))
            try:
                expected = getattr(model, name)(*passed)
            except (IndexError, RuntimeError):
                with pytest.raises(ExecutionError):
                    session.call(name, *passed)
                return
            same(session.call(name, *passed), expected)


def _between_two_places(m: Cache, x: torch.Tensor, i: torch.Tensor) -> None:
    m.k[:, i[0] : i[1]] = x


@pytest.mark.parametrize("ends", [(1, 4), (4, 1), (7, 9), (-1, 1), (3, 3)])
def test_a_slice_of_another_length_than_its_values_raises(
    tmp_path: Path, ends: tuple[int, int]
) -> None:
    methods = [Method("step", args=(X, torch.tensor([3, 5])))]
    compile_program(Cache(_between_two_places), methods, "fp32").save(
        tmp_path / "model.kvc"
    )
    model = Cache(_between_two_places)
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        for good in (torch.tensor([2, 4]), torch.tensor([6, 9])):
            same(session.step(X, good), model.step(X, good))
        with pytest.raises(RuntimeError):
            model.step(X, torch.tensor(ends))
        with pytest.raises(ExecutionError):
            session.step(X, torch.tensor(ends))


class OneRow(nn.Module):
    """A batch of one row, whose cache is assigned to at the places of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 8, 3))

    def step(self, x: Tensor, places: Tensor) -> Tensor:
        self.write(x, places)
        return self.k.cumsum(2) + places.sum()

    def write(self, x: Tensor, places: Tensor) -> None:
        self.k[:, :, places] = x


class TurnedRow(OneRow):
    """The same through a view whose second axis is that of the places."""

    def write(self, x: Tensor, places: Tensor) -> None:
        self.k.transpose(1, 2)[:, places] = x.transpose(1, 2)


class CountedRow(OneRow):
    """The same at places after a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def step(self, x: Tensor) -> Tensor:
        out = super().step(x, self.count + torch.arange(x.shape[2]))
        self.count.add_(x.shape[2])
        return out


class OnlyRow(OneRow):
    """The same through the one row, and a view of it."""

    def write(self, x: Tensor, places: Tensor) -> None:
        self.k[0].transpose(0, 1)[places] = x[0].transpose(0, 1)


class CountedTurnedRow(CountedRow, TurnedRow):
    """Through that view, at places after a counter."""


def _one_row(counted: bool) -> Method:
    x, seq = LONGEST[:1, :, :3], Dim("seq", 1, 8)
    if counted:
        return Method("step", args=(x,), dynamic={"x": {2: seq}})
    dynamic = {"x": {2: seq}, "places": {0: seq}}
    args = (x, torch.arange(3))
    return Method("step", args=args, dynamic=dynamic, position="places")


@pytest.mark.parametrize(
    ("row", "counted"),
    [
        (OneRow, False),
        (CountedRow, True),
        (TurnedRow, False),
        (CountedTurnedRow, True),
        (OnlyRow, False),
    ],
)
def test_a_batch_of_one_row_goes_back(
    tmp_path: Path, row: type[OneRow], counted: bool
) -> None:
    model = row()
    budget = {"step": 0}
    bundle = compile_program(
        copy.deepcopy(model), [_one_row(counted)], "fp32", max_copy_bytes=budget
    )
    bundle.save(tmp_path / "model.kvc")
    (cache,) = [state for state in bundle.program.states if state.name == "k"]
    assert (cache.kind, cache.axis, cache.at_position) == (StateKind.LINEAR, 2, True)
    tokens = LONGEST[:1]
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        for start, end in ((0, 3), (3, 4), (4, 6)):
            x = tokens[:, :, start:end]
            args = (x,) if counted else (x, torch.arange(start, end))
            same(session.step(x), model.step(*args))
        session.rewind(2)
        again = session.step(-tokens[:, :, :4])
        assert session.position.tolist() == [8]
        with program.session() as fresh:
            fresh.step(tokens[:, :, :4])
            same(again, fresh.step(-tokens[:, :, :4]))
        with pytest.raises(ExecutionError):
            session.step(tokens[:, :, :1])
