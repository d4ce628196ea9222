"""Small models through the public door, each call compared with eager, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eager_parity import run_both
from small_models import (
    Accumulator,
    BatchedTwoDims,
    ConstantOut,
    ConvNet,
    Dtypes,
    Encoder,
    IndexCopyCache,
    KvcCache,
    LastTwoZeroed,
    LearnedPositionBlock,
    MountedTwice,
    Nested,
    OldAndNew,
    PartWriter,
    ReadsThenWrites,
    SeveralResults,
    SliceCache,
    Swap,
)
from state_models import SameName
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import UnsupportedOps

ROWS = torch.arange(32.0).reshape(1, 8, 4)
ONE = torch.tensor([1.0, 2.0, 3.0])


def slot(*places: int) -> Tensor:
    return torch.tensor(places)


def test_a_cache_written_by_index_copy(tmp_path: Path) -> None:
    methods = [
        Method("prefill", args=(ROWS[:, :3], slot(0, 1, 2))),
        Method("decode", args=(ROWS[:, :1], slot(0))),
    ]
    calls = [
        ("prefill", (ROWS[:, :3], slot(5, 0, 2))),
        ("decode", (ROWS[:, 3:4], slot(3))),
        ("decode", (ROWS[:, 4:5], slot(7))),
        ("prefill", (ROWS[:, 5:], slot(0, 1, 2))),
    ]
    run_both(IndexCopyCache(), methods, calls, tmp_path)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
def test_a_cache_written_by_index_copy_at_any_length(
    tmp_path: Path, length: int
) -> None:
    seq = Dim("seq", 1, 8)
    dynamic = {"rows": {1: seq}, "slots": {0: seq}}
    prefill = Method("prefill", args=(ROWS[:, :1], slot(0)), dynamic=dynamic)
    calls = [("prefill", (ROWS[:, :length], torch.arange(length)))] * 2
    run_both(IndexCopyCache(), [prefill], calls, tmp_path)


def test_a_cache_written_by_cache_update(tmp_path: Path) -> None:
    rows = {"rows": {2: Dim("seq", 1, 8)}}
    methods = [Method("append", args=(ROWS[:, None, :1],), dynamic=rows)]
    calls = [
        ("append", (ROWS[:, None, :3],)),
        ("append", (ROWS[:, None, 3:4],)),
        ("append", (ROWS[:, None, 4:8],)),
    ]
    run_both(KvcCache(), methods, calls, tmp_path)


def test_a_cache_written_by_slice_assignment(tmp_path: Path) -> None:
    rows = {"rows": {1: Dim("seq", 1, 8)}}
    methods = [
        Method("replace", args=(ROWS[:, :2],), dynamic=rows),
        Method("middle", args=(ROWS[:, :2],)),
    ]
    calls = [
        ("replace", (ROWS,)),
        ("middle", (ROWS[:, 6:],)),
        ("replace", (ROWS[:, 3:4],)),
    ]
    run_both(SliceCache(), methods, calls, tmp_path)


def _reach_below_the_start(k: Tensor, x: Tensor) -> None:
    k[:, -100:3] = x


def _reach_beyond_the_end(k: Tensor, x: Tensor) -> None:
    k[:, -3:100] = x


def _end_before_the_start(k: Tensor, x: Tensor) -> None:
    k[:, 5:2] = x[:, :0]


def _start_beyond_the_end(k: Tensor, x: Tensor) -> None:
    k[:, 9:20] = x[:, :0]


def _number_under_a_mask(k: Tensor, x: Tensor) -> None:
    k[k < 0] = 1.0


def _number_in_rows(k: Tensor, x: Tensor) -> None:
    k[k[:, 0] < 0] = x.sum()


def _row_in_rows(k: Tensor, x: Tensor) -> None:
    k[k[:, 0] < 0] = k[1] + 1


def _number_in_columns(k: Tensor, x: Tensor) -> None:
    k[:, k[0] < 0] = 2.0


@pytest.mark.parametrize(
    "write",
    [
        _reach_below_the_start,
        _reach_beyond_the_end,
        _end_before_the_start,
        _start_beyond_the_end,
        _number_under_a_mask,
        _number_in_rows,
        _row_in_rows,
        _number_in_columns,
    ],
)
def test_a_part_of_a_state_is_written(
    tmp_path: Path, write: Callable[[Tensor, Tensor], None]
) -> None:
    x = torch.ones(2, 3)
    calls = [("step", (x,)), ("step", (x * 3,))]
    run_both(PartWriter(write), [Method("step", args=(x,))], calls, tmp_path)


@pytest.mark.parametrize("length", [3, 8])
def test_the_end_of_a_dynamic_axis_is_written(tmp_path: Path, length: int) -> None:
    x = torch.arange(16.0).reshape(2, 8)
    method = Method("forward", args=(x,), dynamic={"x": {1: Dim("seq", 3, 8)}})
    run_both(LastTwoZeroed(), [method], [("forward", (x[:, :length],))], tmp_path)


def test_picking_by_a_mask_is_refused_with_its_line() -> None:
    model = PartWriter(lambda k, x: k.add_(k[k < 0].sum()))
    with pytest.raises(UnsupportedOps, match=r"boolean index .*test_small_models:\d+"):
        compile_program(model, [Method("step", args=(torch.ones(2, 3),))])


def test_a_state_that_starts_as_ones(tmp_path: Path) -> None:
    methods = [Method("add", args=(ONE,)), Method("read")]
    calls = [("read", ()), ("add", (ONE,)), ("add", (ONE * 2,)), ("read", ())]
    run_both(Accumulator(), methods, calls, tmp_path)


def test_two_states_change_places(tmp_path: Path) -> None:
    run_both(Swap(), [Method("swap")], [("swap", ())] * 3, tmp_path)


def test_the_old_state_is_returned_beside_the_new_one(tmp_path: Path) -> None:
    row = torch.ones(1, 3)
    calls = [("step", (row,)), ("step", (row * 2,)), ("step", (row * 3,))]
    run_both(OldAndNew(), [Method("step", args=(row,))], calls, tmp_path)


def test_a_buffer_and_an_argument_of_one_name(tmp_path: Path) -> None:
    k = torch.arange(4.0)
    calls = [("step", (k,)), ("step", (-k,)), ("step", (k,))]
    run_both(SameName(), [Method("step", args=(k,))], calls, tmp_path)


def test_a_module_mounted_twice_is_one_state(tmp_path: Path) -> None:
    methods = [Method("left", args=(ONE,)), Method("right", args=(ONE,))]
    calls = [("left", (ONE,)), ("right", (ONE,)), ("left", (ONE,))]
    run_both(MountedTwice(), methods, calls, tmp_path)


def test_the_order_of_methods_changes_nothing(tmp_path: Path) -> None:
    methods = [Method("read"), Method("add", args=(ONE,))]
    calls = [("add", (ONE,)), ("read", ()), ("add", (ONE,)), ("read", ())]
    run_both(Accumulator(), methods, calls, tmp_path)
    run_both(Accumulator(), methods[::-1], calls, tmp_path)


@pytest.mark.parametrize("flip", [True, False])
def test_containers_and_constants_in_and_out(tmp_path: Path, flip: bool) -> None:
    pair = (torch.ones(2, 4), torch.arange(4.0))
    options = {"factor": 0.5, "rows": [torch.ones(4)]}
    kwargs = {"options": options, "flip": flip}
    method = Method("mix", args=(pair,), kwargs=kwargs)
    run_both(Nested(), [method], [("mix", (pair,), kwargs)], tmp_path)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 4), (4, 1), (3, 3), (2, 4)])
def test_two_dynamic_lengths_in_one_result(tmp_path: Path, a: int, b: int) -> None:
    dynamic = {"x": {1: Dim("a", 1, 4)}, "y": {1: Dim("b", 1, 4)}}
    example = ROWS[:, :2]
    method = Method("join", args=(example, example), dynamic=dynamic)
    calls = [("join", (ROWS[:, :a], ROWS[:, :b]))]
    run_both(BatchedTwoDims(), [method], calls, tmp_path)


def test_ops_with_several_results(tmp_path: Path) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 9.0], [0.0, -1.0, 5.0, 4.0]])
    run_both(
        SeveralResults(),
        [Method("forward", args=(x,))],
        [("forward", (x,))] * 2,
        tmp_path,
    )


def test_convolutions_of_one_and_two_dims(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 96).reshape(1, 3, 4, 8)
    calls = [("forward", (x,)), ("forward", (x * 2,))]
    run_both(ConvNet(), [Method("forward", args=(x,))], calls, tmp_path, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_other_float_types(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 6).to(dtype)
    calls = [("scale", (x,)), ("scale", (x + 1,))]
    run_both(Dtypes(dtype), [Method("scale", args=(x,))], calls, tmp_path)


def test_integers_in_and_booleans_out(tmp_path: Path) -> None:
    ids = torch.tensor([3, 0, 7, 7])
    calls = [("count", (ids,)), ("count", (ids - 1,)), ("count", (ids.flip(0),))]
    method = Method("count", args=(ids,))
    run_both(Dtypes(torch.float32), [method], calls, tmp_path)


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_an_encoder_without_state(tmp_path: Path, length: int) -> None:
    x = torch.sin(torch.arange(16 * 8.0)).reshape(1, 16, 8)
    dynamic = {"x": {1: Dim("seq", 1, 16)}}
    method = Method("forward", args=(x[:, :1],), dynamic=dynamic)
    calls = [("forward", (x[:, :length],))]
    run_both(Encoder(), [method], calls, tmp_path, atol=1e-6)


def test_a_block_with_learned_positions_and_a_float_mask(tmp_path: Path) -> None:
    tokens = torch.tensor([[5, 1, 4, 1, 3]])
    dynamic = {"tokens": {1: Dim("seq", 1, 8)}, "slots": {0: Dim("seq", 1, 8)}}
    method = Method("append", args=(tokens[:, :1], slot(0)), dynamic=dynamic)
    calls = [
        ("append", (tokens, slot(0, 1, 2, 3, 4))),
        ("append", (tokens[:, :1], slot(5))),
        ("append", (tokens[:, 2:4], slot(6, 7))),
    ]
    run_both(LearnedPositionBlock(), [method], calls, tmp_path, atol=1e-6)


def test_weights_and_inputs_may_be_results(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    method = Method("forward", args=(x,))
    run_both(
        ConstantOut(), [method], [("forward", (x,)), ("forward", (x * 2,))], tmp_path
    )


def test_a_new_session_starts_from_the_initial_state(tmp_path: Path) -> None:
    bundle = compile_program(
        Accumulator(), [Method("add", args=(ONE,)), Method("read")]
    )
    bundle.save(tmp_path / "model.kvc")
    with load(tmp_path / "model.kvc") as program:
        with program.session() as first:
            first.add(ONE)
            assert torch.equal(first.add(ONE), torch.tensor([3.0, 5.0, 7.0]))
        with program.session() as second:
            assert torch.equal(second.add(ONE), torch.tensor([2.0, 3.0, 4.0]))


@pytest.mark.parametrize(("recipe", "atol"), [("fp32", 1e-6), ("xnnpack_q8", 0.05)])
def test_a_delegate_that_reads_a_state_sees_it_before_the_write(
    tmp_path: Path, recipe: str, atol: float
) -> None:
    methods = [Method("step", args=(ROWS[:, :1], slot(0))), Method("read")]
    calls = [
        ("step", (ROWS[:, 1:2] / 8, slot(2))),
        ("read", ()),
        ("step", (ROWS[:, 2:3] / 8, slot(7))),
        ("read", ()),
    ]
    run_both(ReadsThenWrites(), methods, calls, tmp_path, recipe, atol)


def test_a_write_beside_a_delegate_that_reads_the_state_is_in_place() -> None:
    step = Method("step", args=(ROWS[:, :1], slot(0)))
    program = compile_program(ReadsThenWrites(), [step], "xnnpack_q8").program
    assert [partition.backend for partition in program.delegates] == ["xnnpack", "cpu"]
    graphs = program.methods[0].graphs
    ops = [[step.op for step in graph.instructions] for graph in graphs]
    assert ops[0] == ["kvc::delegate"] * 2
    assert ops[2] == ["kvc::check_index", "kvc::cache_update"]
    assert not any(update.copies for update in program.methods[0].updates)
