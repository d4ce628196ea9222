"""Every kernel of the library against eager, over the cases that the ops have."""

import pytest
import torch
from daily import some_of_each
from native_calls import native_graph, run_native
from op_cases import CASES, Case, kind_of
from op_cases.elementwise import extremes
from torch import Tensor

from kvc.runtime.native.library import find_library
from kvc.schema.backends.cpu import RULES


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


def check(case: Case, like: Case | None = None) -> None:
    with torch.inference_mode():
        expected = (like or case).eager()
    built = native_graph(case, expected)
    if built is None:
        return
    found = run_native(*built, expected, 2)
    for one, other in zip(found, expected, strict=True):
        same(one, other, 5e-5 if case.op in _LONG_SUMS else 2e-6)


def same(found: Tensor, expected: Tensor, atol: float) -> None:
    """Assert equality; of floats but for the order of sums and the last bits."""
    if not expected.is_floating_point():
        atol = 0
    elif expected.dtype is torch.bfloat16 and expected.numel():
        # torch may round before it adds the bias
        atol = torch.finfo(torch.bfloat16).eps * float(expected.float().abs().max())
    torch.testing.assert_close(
        found, expected, rtol=1e-5 if atol else 0, atol=atol, equal_nan=True
    )


_LONG_SUMS = {"aten::linear", "kvc::adapted"}
# Those of test_int8.py, test_int4.py and test_faults.py.
ELSEWHERE = {
    "aten::_assert_async.msg",
    "kvc::after",
    "kvc::append",
    "kvc::check_index",
    "kvc::check_rows",
    "kvc::check_size",
    "kvc::embedding_q8",
    "kvc::expert_linear_q8",
    "kvc::expert_linear_qd8",
    "kvc::linear_q4",
    "kvc::linear_q8",
    "kvc::linear_qb4",
    "kvc::linear_qd8",
    "kvc::quantize_blocks",
    "kvc::quantize_rows",
    "kvc::replace",
}
BOUND = ["kvc::check_size"]  # it runs while a block is bound


def has_order(case: Case) -> bool:
    return case.op != "aten::topk" or case.arguments[-1] is True


def has_ties(case: Case) -> bool:  # of which torch takes any
    return case.op == "aten::topk" and len(case.arguments[0].unique()) < 36


TAKEN = [
    case
    for case in CASES
    if has_order(case)
    and not has_ties(case)
    and native_graph(case, case.eager()) is not None
]


@pytest.mark.parametrize("case", some_of_each(8, TAKEN, kind_of), ids=case_id)
def test_a_kernel_equals_eager(case: Case):
    check(case)


@pytest.mark.parametrize(
    "case",
    some_of_each(8, [case for case in TAKEN if case.op != "aten::view"], kind_of),
    ids=case_id,
)
def test_a_kernel_takes_operands_with_gaps(case: Case):
    check(case.strided(), like=case)


def test_every_op_that_the_backend_takes_has_a_kernel_and_a_case():
    library = find_library()
    assert [op for op in RULES if not library.has(op)] == BOUND
    assert {*RULES} - {case.op for case in TAKEN} == ELSEWHERE


@pytest.mark.parametrize(
    "case", [case for case in CASES if not has_order(case)], ids=case_id
)
def test_the_greatest_without_an_order_are_those_of_eager(case: Case):
    expected = case.eager()
    values, indices = run_native(*native_graph(case, expected), expected, 2)
    order = expected[0].argsort(-1, descending=True)
    torch.testing.assert_close(values, expected[0].gather(-1, order))
    assert torch.equal(indices, expected[1].gather(-1, order))


@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_greater_than_all_and_equal_ones_stay_as_they_lie(largest: bool):
    x = torch.tensor([[1.0, torch.nan, -torch.inf, 2.0, torch.inf, 0.0]])
    check(Case("aten::topk", (x, 6, 1, largest, True)))
    check(Case("aten::max.dim", (x, 1, False)))
    check(Case("aten::min.dim", (x, 1, False)))
    (_, places) = run_native(
        *native_graph(
            Case("aten::topk", (x.new_zeros(40), 9, 0, largest, True)),
            (torch.empty(9), torch.empty(9, dtype=torch.int64)),
        ),
        (torch.empty(9), torch.empty(9, dtype=torch.int64)),
        1,
    )
    assert places.tolist() == [*range(9)]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variances_of_few_elements_are_those_of_eager(correction: float):
    for x in (torch.randn(3, 1), torch.randn(3, 2), torch.randn(3, 0)):
        for op in ("aten::var.correction", "aten::var_mean.correction"):
            check(Case(op, (x, (1,), correction, False)))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("turned", [False, True])
def test_experts_give_each_row_the_same_bits_whoever_chose_them_too(
    rows: int, turned: bool
):
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 24), torch.randn(5, 24, 24), torch.randn(5, 24)
    experts = torch.randint(0, 5, (rows,))
    found = [
        run_native(
            *native_graph(
                Case("kvc::expert_linear", (a, weight, b, bias, turned)), (a,)
            ),
            (a,),
            threads,
        )[0]
        for threads in (1, 2, 3)
        for a, b in ((x, experts), (x[-1:], experts[-1:]))
    ]
    assert all(torch.equal(found[0], other) for other in found[2::2])
    assert all(torch.equal(found[0][-1:], other) for other in found[1::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_an_adapter_adds_the_same_bits_in_any_batch_and_on_any_number_of_threads(
    dtype: torch.dtype,
):
    torch.manual_seed(0)
    y, x = torch.randn(3, 37, 96), torch.randn(3, 37, 520)
    a, b = torch.randn(4, 80, 520), torch.randn(4, 80, 96)
    matrices = (9 * a).to(dtype), (9 * b).to(dtype), torch.rand(4, 80) / 99
    ranks, chosen = torch.tensor([0, 80, 7, 80]), torch.tensor([3, 0, 1])
    scales = torch.randn(3)

    def run(rows: slice, tokens: slice, threads: int) -> Tensor:
        given = y[rows, tokens], x[rows, tokens], *matrices, ranks, chosen[rows]
        case = Case("kvc::adapted", (*given, scales[rows], None, None))
        like = (torch.empty(given[0].shape),)
        return run_native(*native_graph(case, like), like, threads)[0]

    whole = run(slice(None), slice(None), 1)
    assert torch.equal(whole[1], y[1]), "adapter 0 has no ranks"
    for threads in (1, 2, 3):
        assert torch.equal(run(slice(None), slice(None), threads), whole)
        for row in (0, 2):
            one = run(slice(row, row + 1), slice(5, 6), threads)
            assert torch.equal(one, whole[row : row + 1, 5:6])


@pytest.mark.parametrize("rank", [-(2**62), -1, 3, 2**62])
def test_a_number_of_ranks_that_there_are_not_counts_as_the_nearest(rank: int):
    torch.manual_seed(0)
    given = torch.randn(1, 1, 5), torch.randn(1, 1, 4)
    given = *given, torch.randn(1, 2, 4), torch.randn(1, 2, 5)
    like = (torch.empty(1, 1, 5),)

    def run(number: int) -> Tensor:
        rows = (
            None,
            torch.tensor([number]),
            torch.tensor([0]),
            torch.ones(1),
            None,
            None,
        )
        built = native_graph(Case("kvc::adapted", (*given, *rows)), like)
        return run_native(*built, like, 1)[0]

    assert torch.equal(run(rank), run(min(max(rank, 0), 2)))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("depth", [1, 8, 13, 64, 257])
def test_bfloat16_products_are_summed_in_float32_and_rounded_once(
    rows: int, depth: int
):
    torch.manual_seed(rows * 1000 + depth)
    # Multiples of 1/8 whose sums float32 holds exactly, in any order.
    x, weight, bias = (
        (torch.randint(-32, 33, shape) / 8).bfloat16()
        for shape in ((rows, depth), (9, depth), (9,))
    )
    for each in (bias, None):
        exact = x.double() @ weight.double().t() + (
            0 if each is None else each.double()
        )
        like = (exact.bfloat16(),)
        for a in (x, x.t().contiguous().t()):
            built = native_graph(Case("aten::linear", (a, weight, each)), like)
            assert torch.equal(run_native(*built, like, 2)[0], like[0])


F32, BIG = torch.float32, torch.finfo(torch.float32).min
X = torch.tensor([-torch.inf, -3e38, -2.0, -0.0, 1.0, 3e38, torch.inf, torch.nan])


@pytest.mark.parametrize(
    "case",
    [
        Case("aten::masked_fill.Scalar", (X, X > 0, BIG)),
        Case("aten::mul.Scalar", (X, 1e20)),
        Case("aten::full", ((3,), BIG, F32)),
        Case("aten::clamp", (X, torch.inf, None)),
        Case("aten::clamp", (X, None, -torch.inf)),
        Case("aten::clamp", (X, torch.nan, 1.0)),
        Case("aten::clamp", (X, -1, torch.nan)),
        Case("aten::clamp", (X, BIG, -BIG)),
        Case("aten::_to_copy", (torch.tensor([-(2.0**63), 2.0**62]), torch.int64)),
        Case("aten::_to_copy", (torch.tensor([-(2.0**31), 65.9]), torch.int32)),
    ],
    ids=case_id,
)
def test_extreme_numbers_are_what_they_are_in_eager(case: Case):
    assert native_graph(case, case.eager()) is not None
    check(case)


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("number", [-1, 0, 1, 2, False, True, 0.5])
def test_bools_beside_numbers_are_compared_as_in_eager(op: str, number: float):
    check(Case(f"aten::{op}.Scalar", (torch.tensor([False, True]), number)))


@pytest.mark.parametrize("op", ["aten::linear", "aten::matmul"])
def test_rows_of_an_expanded_view_are_read_where_they_lie(op: str):
    x, weight = torch.randn(2, 1, 9).expand(2, 3, 9), torch.randn(9, 9)
    for rows in (x, x.transpose(0, 1), x[:1].expand(4, 3, 9)):
        check(
            Case(op, (rows, weight, None) if op == "aten::linear" else (rows, weight))
        )


def test_what_torch_refuses_is_not_taken():
    x, truth = torch.ones(3, dtype=torch.int8), torch.ones(3, dtype=torch.bool)
    for case in (
        Case("aten::sub.Tensor", (truth, truth, 1)),
        Case("aten::relu", (truth,)),
        Case("aten::pow.Tensor_Scalar", (x, -1)),
        Case("aten::mul.Scalar", (x, 128)),
        Case("aten::gcd", (truth, truth)),
        Case("aten::round.decimals", (x, 1)),
        Case("aten::hardtanh", (x, -torch.inf, 1.0)),
        Case("aten::masked_fill.Tensor", (x, truth, torch.tensor(0.5))),
    ):
        like = case.arguments[0]
        assert native_graph(case, (like,)) is None, case
    for op in ("aten::tril", "aten::triu"):
        for shape in ((), (4,)):
            x = torch.ones(shape)
            assert native_graph(Case(op, (x, 0)), (x,)) is None
    weight, index = torch.ones(4, 8, dtype=torch.int8), torch.tensor([3])
    for dtype in (torch.int8, torch.float64):
        case = Case("kvc::embedding_q8", (weight, torch.ones(4, dtype=dtype), index))
        assert native_graph(case, (torch.empty(1, 8),)) is None


@pytest.mark.parametrize("diagonal", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("op", ["aten::tril", "aten::triu"])
def test_a_diagonal_far_away_keeps_all_or_nothing(op: str, diagonal: int):
    x = torch.ones(3, 4)
    (found,) = run_native(*native_graph(Case(op, (x, diagonal)), (x,)), (x,), 1)
    kept = (diagonal > 0) == (op == "aten::tril")
    assert torch.equal(found, x if kept else torch.zeros(3, 4))


LARGE = extremes(torch.int64)


@pytest.mark.parametrize(
    "case",
    [
        *(Case(f"aten::{op}", (LARGE,)) for op in ("abs", "neg", "sign", "floor")),
        *(
            Case(f"aten::{op}", (LARGE, LARGE.flip(0).clamp(min=3)))
            for op in ("mul.Tensor", "gcd", "lcm", "floor_divide", "remainder.Tensor")
        ),
        Case("aten::pow.Tensor_Scalar", (LARGE, 5)),
        Case("aten::pow.Tensor_Tensor", (LARGE, torch.tensor(-3))),
        Case("aten::add.Tensor", (LARGE, LARGE, 3)),
        Case("aten::bitwise_left_shift.Tensor", (LARGE, LARGE.flip(0))),
        Case("aten::bitwise_right_shift.Tensor", (LARGE, LARGE.flip(0))),
    ],
    ids=case_id,
)
def test_integers_wrap_around(case: Case):
    check(case)


def test_the_least_integer_is_divided_by_less_than_zero():
    """Where eager crashes."""
    least = torch.full((3,), torch.iinfo(torch.int64).min)
    for op, expected in (("floor_divide", least), ("remainder.Tensor", least * 0)):
        case = Case(f"aten::{op}", (least, torch.tensor(-1)))
        (found,) = run_native(*native_graph(case, (least,)), (least,), 1)
        assert torch.equal(found, expected)


ZEROS = torch.tensor([-0.0, 0.0, torch.nan, 1.0, -1.0]).repeat(5)
BOUNDED = [
    Case("aten::relu", (ZEROS,)),
    Case("aten::clamp", (ZEROS, 0.0, None)),
    Case("aten::clamp", (ZEROS, -1.0, 0.0)),
    Case("aten::clamp.Tensor", (ZEROS, torch.tensor(0.0), torch.tensor(-0.0))),
]


@pytest.mark.parametrize("case", BOUNDED, ids=case_id)
def test_a_bound_of_zero_leaves_a_zero_as_it_is(case):
    with torch.inference_mode():
        expected = case.eager()
    (found,) = run_native(*native_graph(case, expected), expected, 2)
    assert torch.equal(found.isnan(), ZEROS.isnan())
    assert torch.equal(found[ZEROS == 0].signbit(), ZEROS[ZEROS == 0].signbit())
    torch.testing.assert_close(found, expected[0], rtol=0, atol=0, equal_nan=True)
