"""What native kernels refuse, growth, and that nothing is written before a refusal."""

from typing import NoReturn

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import Case
from torch import Tensor

from kvc.runtime.delegates.cpu.binding import bind_steps
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, tensor_as_array
from kvc.runtime.native import (
    NO_MEMORY,
    Failure,
    NativeCall,
    NativePartition,
    Steps,
)
from kvc.runtime.native.library import find_library
from kvc.schema.dtypes import DType
from kvc.schema.errors import (
    BranchMismatch,
    CacheOverflow,
    IndexOutOfRange,
    KernelFailed,
    RowLengthOutOfRange,
)
from kvc.schema.graph import Caller, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.model import Block
from kvc.schema.types import TensorType, affine


def native(op: str, arguments: tuple[object, ...], *like: Tensor) -> list[Tensor]:
    built = native_graph(Case(op, arguments), like)
    assert built is not None
    return run_native(*built, like, 2)


def places(*values: int) -> Tensor:
    return torch.tensor(values)


def test_append_and_replace_write_what_they_are_given():
    past, new = torch.arange(6.0).view(1, 3, 2), torch.full((1, 2, 2), 9.0)
    (whole,) = native("kvc::append", (past, new, 1), torch.empty(1, 5, 2))
    assert torch.equal(whole, torch.cat((past, new), 1))
    (other,) = native("kvc::replace", (past, new, 1), torch.empty(1, 2, 2))
    assert torch.equal(other, new)


@pytest.mark.parametrize("start", [torch.tensor(5), places(5), places(1, 7, 0)])
def test_after_adds_to_each_row(start: Tensor):
    (found,) = native("kvc::after", (start, 3), start)
    assert torch.equal(found, start + 3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("index", "fits"),
    [(0, True), (7, True), (8, False), (-1, False), (2**31 - 1, False)],
)
def test_an_index_is_checked(index: int, fits: bool, dtype: torch.dtype):
    arguments = (torch.tensor([0, index], dtype=dtype), 0, 1, 8)
    if fits:
        assert native("kvc::check_index", arguments) == []
        return
    with pytest.raises(IndexOutOfRange, match=f"index {index} .* 8"):
        native("kvc::check_index", arguments)


@pytest.mark.parametrize("op", ["floor_divide", "fmod.Tensor", "remainder.Tensor"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_not_divided_by_zero(op: str, dtype: torch.dtype):
    x, y = torch.full((2, 40), 7, dtype=dtype), torch.full((40,), 2, dtype=dtype)
    y[37] = 0
    with pytest.raises(KernelFailed, match="ZeroDivisionError"):
        native(f"aten::{op}", (x, y), x)
    for mode in ("floor", "trunc"):
        with pytest.raises(KernelFailed, match="ZeroDivisionError"):
            native("aten::div.Tensor_mode", (x, y, mode), x)
        with pytest.raises(KernelFailed, match="ZeroDivisionError"):
            native("aten::div.Scalar_mode", (x, 0, mode), x)


@pytest.mark.parametrize("value", [0.0, -0.5, torch.nan, 3, False, True])
def test_a_number_that_must_be_true_is_checked(value: float):
    arguments = (torch.tensor([[value]]), "rows are too long")
    if value:
        assert native("aten::_assert_async.msg", arguments) == []
        return
    with pytest.raises(KernelFailed, match="rows are too long"):
        native("aten::_assert_async.msg", arguments)


def test_rows_are_checked():
    assert native("kvc::check_rows", (places(3, 0), places(1, 4), 4, 4)) == []
    with pytest.raises(CacheOverflow, match="row 0 would write 2 positions from 3"):
        native("kvc::check_rows", (places(3, 0), places(2, 4), 4, 4))
    with pytest.raises(RowLengthOutOfRange, match="row 1 has length 5"):
        native("kvc::check_rows", (places(3, 0), places(1, 5), 4, 8))
    with pytest.raises(IndexOutOfRange, match="index -1"):
        native("kvc::check_rows", (places(0, -1), places(1, 1), 4, 8))


@pytest.mark.parametrize(
    ("start", "mode", "keep", "error"),
    [
        (3, "linear", 0, CacheOverflow),
        (-1, "linear", 0, IndexOutOfRange),
        (2**62, "linear", 0, CacheOverflow),
        (-1, "circular", 1, IndexOutOfRange),
        (2, "circular", 3, CacheOverflow),
    ],
)
def test_a_write_outside_is_refused_and_writes_nothing(
    start: int, mode: str, keep: int, error: type[Exception]
):
    cache, update = torch.zeros(2, 4, 3), torch.ones(2, 3, 3)
    arguments = (cache, update, places(0, start), 1, mode, None, keep)
    target = cache.clone()
    with pytest.raises(error):
        native("kvc::cache_update", arguments, target)


def test_lengths_of_attention_are_checked():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)

    def attend(valid: int, lengths: Tensor | None = None) -> list[Tensor]:
        rest = (None, True, None, None, None, None, None, None, "linear", None, None)
        return native("kvc::attention", (q, k, k, places(valid), *rest, lengths, 0), q)

    with pytest.raises(
        KernelFailed, match="row 0 has 6 valid positions, the cache has 5"
    ):
        attend(6)
    with pytest.raises(KernelFailed, match="row 0 has -1 valid positions"):
        attend(-1)
    with pytest.raises(RowLengthOutOfRange, match="row 0 has length 4"):
        attend(5, places(4))


@pytest.mark.parametrize(
    "op", ["aten::embedding", "aten::index_select", "aten::gather"]
)
@pytest.mark.parametrize("index", [-1, 5])
def test_lookups_outside_are_refused(op: str, index: int):
    table, at = torch.randn(5, 2), places(0, index)
    arguments: dict[str, tuple[object, ...]] = {
        "aten::embedding": (table, at),
        "aten::index_select": (table, 0, at),
        "aten::gather": (table, 0, at[:, None].expand(2, 2).contiguous()),
    }
    with pytest.raises(IndexOutOfRange, match=f"index {index} "):
        native(op, arguments[op], torch.empty(2, 2))


@pytest.mark.parametrize("index", [-1, 5])
@pytest.mark.parametrize(
    "op", ["index_copy", "index_add", "scatter.src", "scatter.value", "scatter_add"]
)
def test_writes_outside_are_refused(op: str, index: int):
    table, at, rows = torch.zeros(5, 2), places(0, index), torch.ones(2, 2)
    if op.startswith("scatter"):
        at = at[:, None].expand(2, 2).contiguous()
    last = {"scatter.value": (1.0,), "index_add": (rows, 1)}.get(op, (rows,))
    with pytest.raises(IndexOutOfRange, match=f"index {index} "):
        native(f"aten::{op}", (table, 0, at, *last), table)


@pytest.mark.parametrize("index", [-6, 5])
def test_a_put_outside_is_refused(index: int):
    table, at = torch.zeros(5, 2), places(0, index)
    with pytest.raises(IndexOutOfRange, match=f"index {index} "):
        native("aten::index_put", (table, (at,), torch.ones(2, 2), True), table)


@pytest.mark.parametrize("expert", [-1, 3])
def test_an_expert_that_is_not_there_is_refused(expert: int):
    x, weight = torch.ones(2, 4), torch.ones(3, 5, 4)
    arguments = (x, weight, places(0, expert), None, False)
    with pytest.raises(IndexOutOfRange, match=f"index {expert} "):
        native("kvc::expert_linear", arguments, torch.empty(2, 5))


@pytest.mark.parametrize("adapter", [-1, 3])
def test_an_adapter_that_is_not_there_is_refused(adapter: int):
    matrices = torch.ones(3, 2, 4), torch.ones(3, 2, 5)
    given = torch.ones(2, 1, 5), torch.ones(2, 1, 4), *matrices
    rows = None, places(0, 2, 2), places(0, adapter), torch.ones(2), None, None
    with pytest.raises(IndexOutOfRange, match=f"index {adapter} "):
        native("kvc::adapted", (*given, *rows), torch.empty(2, 1, 5))


@pytest.mark.usefixtures("unchecked_steps")
def test_memory_that_is_lacking_is_said_in_bytes():
    # A weight whose rows are laid out anew: 2**61 bytes that nobody has.
    x, weight = torch.ones(1, 4), torch.ones(1, 1).expand(1 << 57, 4)
    steps = Steps(find_library(), 2)
    arrays = [tensor_as_array(each) for each in (torch.empty(1, 1), x, weight)]
    steps.add("aten::linear", [*arrays, None], [], [])

    def refuse(failure: Failure) -> NoReturn:
        raise MemoryError(failure.fault, failure.facts[0])

    with pytest.raises(MemoryError) as caught:
        NativeCall([NativePartition(steps, refuse)])()
    assert caught.value.args == (NO_MEMORY, 1 << 61)


def test_a_size_that_a_branch_does_not_take_is_refused():
    assert native("kvc::check_size", (3, 3)) == []
    with pytest.raises(BranchMismatch):
        native("kvc::check_size", (3, 4))


def test_sizes_that_do_not_go_together_are_refused_as_by_the_reference():
    # What the verifier leaves to the call: [s] and [t] fit where s = t.
    kinds = [TensorType(DType.FLOAT32, (affine(0, {name: 1}),)) for name in "sts"]
    graph = Graph(
        values=tuple(
            Value(kind, lies)
            for kind, lies in zip(
                kinds, (Caller(), Caller(), Scratch(0, 64)), strict=True
            )
        ),
        inputs=(0, 1),
        outputs=(2,),
        instructions=(Instruction("aten::add.Tensor", (Ref(0), Ref(1), 1), (2,)),),
        scratch_nbytes=64,
        peak_nbytes=64,
    )

    def add(s: int, t: int) -> Tensor:
        x, y, out = torch.ones(s), torch.ones(t), torch.empty(s)
        inputs, sizes = [tensor_as_array(x), tensor_as_array(y)], {"s": s, "t": t}
        outs, arena = [tensor_as_array(out)], Arena(64)
        library = find_library()
        block = Block(graph, ())
        bind_steps("test", block, sizes, inputs, outs, arena, no_constant, library, 1)()
        return out

    assert torch.equal(add(3, 3), torch.full((3,), 2.0))
    with pytest.raises(KernelFailed, match="broadcast"):
        add(5, 3)


def no_constant(name: int) -> Array:
    raise AssertionError(name)


@pytest.mark.parametrize("op", ["aten::amax", "aten::amin", "aten::argmax"])
def test_nothing_has_no_greatest_element(op: str):
    whole = op == "aten::argmax"
    arguments = (torch.empty(2, 0), 1 if whole else (1,), False)
    dtype = torch.int64 if whole else torch.float32
    with pytest.raises(KernelFailed, match="of no elements"):
        native(op, arguments, torch.empty(2, dtype=dtype))
    arguments = (torch.empty(0, 3), 1 if whole else (1,), False)
    assert native(op, arguments, torch.empty(0, dtype=dtype))[0].shape == (0,)


def test_an_index_of_any_strides_is_checked():
    index = torch.tensor([[0, 1, 2, 9], [3, 4, 5, 9]])[:, :3].t()
    assert native("kvc::check_index", (index, 0, 1, 6)) == []
    with pytest.raises(IndexOutOfRange, match=r"index 5 .* 5"):
        native("kvc::check_index", (index, 0, 1, 5))


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize(
    ("op", "rest"),
    [
        ("linalg_inv", ()),
        ("linalg_inv_ex", (True,)),
        ("linalg_cholesky", (False,)),
        ("linalg_cholesky_ex", (True, True)),
        ("linalg_solve", (torch.ones(2, 2), True)),
        ("linalg_solve_ex", (torch.ones(2, 2), False, True)),
    ],
)
def test_a_singular_matrix_is_refused_in_the_words_of_eager(
    op: str, rest: tuple[object, ...], shape: tuple[int, ...]
):
    x = torch.eye(2).repeat(*shape, 1, 1)
    like = Case(f"aten::{op}", (x, *rest)).eager()
    x.view(-1, 2, 2)[-1] = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(RuntimeError) as expected:
        Case(f"aten::{op}", (x, *rest)).eager()
    with pytest.raises(KernelFailed) as refused:
        native(f"aten::{op}", (x, *rest), *like)
    assert str(expected.value) in str(refused.value)


def test_what_eager_refuses_of_extremes_and_pads_is_refused():
    nothing = torch.empty(3, 0)
    for op, rest in (
        ("amax", ((1,), False)),
        ("linalg_vector_norm", (torch.inf, (1,), False)),
    ):
        with pytest.raises(KernelFailed, match="of no elements"):
            native(f"aten::{op}", (nothing, *rest), torch.empty(3))
    with pytest.raises(KernelFailed, match="of no elements"):
        native(
            "aten::kthvalue",
            (nothing, 1, 1, False),
            torch.empty(3),
            torch.empty(3, dtype=torch.int64),
        )
    with pytest.raises(IndexOutOfRange, match=r"index 3 .* 2"):
        native("aten::constant_pad_nd", (torch.ones(2), (-3, 2), 0), torch.ones(1))


@pytest.mark.parametrize(
    ("offsets", "row"), [((1, 2), 0), ((0, 4), 0), ((0, 2, 1), 0), ((0, 2), 9)]
)
def test_bags_are_checked(offsets: tuple[int, ...], row: int):
    arguments = (torch.ones(9, 4), places(0, 1, row), places(*offsets), 0, None)
    with pytest.raises(IndexOutOfRange if row else KernelFailed):
        native(
            "aten::_embedding_bag_forward_only",
            (*arguments, False, -1),
            torch.zeros(len(offsets), 4),
        )


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_scattered_place_outside_is_refused_and_writes_nothing(reduce: str):
    x, index = torch.zeros(4), places(0, 4)
    with pytest.raises(IndexOutOfRange, match=r"index 4 .* 4"):
        native(
            "aten::scatter_reduce.two", (x, 0, index, torch.ones(2), reduce, True), x
        )
