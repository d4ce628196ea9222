# ruff: noqa: E501  texts and tables read best unbroken
"""Operators that kvc takes apart in its own way, against eager."""

import itertools
import math

import pytest
import torch
from module_outcomes import outcome
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import IndexOutOfRange, KernelFailed

X = torch.arange(12.0).reshape(3, 4).sin()
CASES = {
    "addbmm of integers, by parts of 1": lambda x: torch.addbmm((9 * x).int(), (9 * x).int()[None, :, :3], (5 * x).int()[None], beta=0.6, alpha=2.7),
    "as_strided of its own memory": lambda x: (x * 2).as_strided((2, 3, 2), (4, 1, 2), 1),
    "as_strided of memory in another order": lambda x: (
        x.reshape(2, 3, 2).permute(2, 0, 1).contiguous().permute(1, 2, 0).sin().as_strided((2, 3), (5, 2), 1)
    ),
    "another size of a number, and of memory in another order": lambda x: (
        x.sum().clone().resize_(()), (x.t() * 2).resize_(2, 5)
    ),
    "as_strided of other memory": lambda x: (
        x[0].as_strided((3, 4), (4, 1)), x[:, :2].as_strided((2, 2), (4, 1))
    ),
    "as_strided_scatter into memory in another order": lambda x: x.t().clone().as_strided_scatter(x[0, :2], (2,), (3,), 2) * 2,
    "as_strided of a transposed tensor": lambda x: x.t().as_strided((2, 2), (1, 4)),
    "as_strided_scatter into a transposed tensor": lambda x: (
        x.t().as_strided_scatter(x[:2, :2], (2, 2), (1, 4)), x.t().as_strided_scatter(x.sum(), (), ())
    ),
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2, 2), (4, 1), 3),
    "as_strided_scatter": lambda x: x.as_strided_scatter(x[0, :2].expand(2, 2), (2, 2), (1, 5), 3),
    "as_strided_scatter of one element": lambda x: x.as_strided_scatter(x.sum(), (), (), 5),
    "fill_diagonal_": lambda x: [
        x.reshape(shape).clone().fill_diagonal_(7, wrap=wrap)
        for shape in ((3, 4), (4, 3), (6, 2), (12, 1)) for wrap in (False, True)
    ] + [x.flatten()[:8].reshape(2, 2, 2).clone().fill_diagonal_(7)],
    "a pool to one, memory in channels_last": lambda x: functional.adaptive_avg_pool2d(
        x.reshape(1, 2, 2, 3).permute(0, 3, 1, 2), 1
    ),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flatten() * 3),
    "masked_scatter of a row": lambda x: x[0].masked_scatter(x > 0, x.flatten() * 3),
    "masked_scatter of nothing": lambda x: x.masked_scatter(x > 9, x[:0]),
    "pdist": lambda x: functional.pdist(x, 1.5),
    "pdist of infinite numbers": lambda x: [
        functional.pdist(torch.where(x > 0.9, each, x), p) for each in (math.inf, math.nan) for p in (1.5, math.inf)
    ],
    "pdist without features": lambda x: [functional.pdist(x[:, :0], p) for p in (0, 1.5, math.inf)],
    "pdist of many rows that are close": lambda x: functional.pdist(
        100 + x.flatten()[:, None].repeat(3, 2).cumsum(0) * 1e-2
    ),
    "repeat_interleave": lambda x: x.repeat_interleave(
        (x[:, 0] > 0).long() + 1, dim=0, output_size=4
    ),
    "repeat_interleave by int32": lambda x: x.repeat_interleave(
        (x[:, 0] > 0).int() + 1, dim=0, output_size=4
    ),
    "repeat_interleave of int32": lambda x: torch.repeat_interleave(
        (x[:, 0] > 0).int() + 1, output_size=4
    ),
    "a masked index, from the end and out of bounds": lambda x: torch._unsafe_masked_index(
        x, x[:, :3] > 0, [torch.tensor([[-1], [-2], [9]]), torch.tensor([1, -4, -7])], 8.5
    ),
    "a masked index of nothing": lambda x: [
        torch.ops.aten._unsafe_masked_index(x[:, :0], x[:, :2] > 0, [None, torch.tensor([1, 9])], 8.5),
        torch.ops.aten._unsafe_masked_index(x[:, :0], x[:2, :0] > 0, [torch.tensor([1, -1])], 8.5),
    ],
    "one_hot": lambda x: functional.one_hot((x > 0).long(), 3),
    "triu_indices": lambda x: (torch.triu_indices(3, 4, 1), x + 1),
    "tril_indices": lambda x: (torch.tril_indices(3, 4, -1, dtype=torch.int32), x + 1),
    "statistics of a batch": lambda x: functional.batch_norm(x, None, None, x[0], x[1], training=True),
    "statistics of a batch of planes": lambda x: functional.batch_norm(x.reshape(3, 2, 2), None, None, training=True, eps=0.1),
    "statistics of a batch in bfloat16": lambda x: functional.batch_norm(x.bfloat16(), None, None, x[0], training=True),
    "diagonal_scatter of integers": lambda x: x.diagonal_scatter(torch.arange(3)),
    "diagonal_scatter": lambda x: x.diagonal_scatter(torch.ones(3), 1),
    "diagonal_scatter of other axes": lambda x: x.reshape(2, 3, 2).diagonal_scatter(torch.ones(3, 2), 0, 2, 0),
    "diagonal_scatter below": lambda x: x.diagonal_scatter(x[:2, 0] * 9, -1, -2, -1),
    "statistics of layers": lambda x: torch.native_layer_norm(x, (4,), x[0], None, 0.1),
    "statistics of layers along two axes": lambda x: torch.native_layer_norm(x.reshape(1, 3, 4), (3, 4), None, x, 0.1)[1:],
    "statistics of layers in bfloat16": lambda x: torch.native_layer_norm(x.bfloat16(), (4,), None, None, 0.1),
    "statistics of layers in bfloat16, weights in float32": lambda x: torch.native_layer_norm(x.bfloat16(), (4,), x[0], x[1], 0.1),
    "statistics of groups": lambda x: torch.native_group_norm(x.reshape(1, 6, 2), x.flatten()[:6], None, 1, 6, 2, 3, 0.1),
    "statistics of groups in float16": lambda x: torch.native_group_norm(x.half(), None, None, 3, 4, 1, 2, 0.1),
    "windows of a number": lambda x: [x[0, 1].unfold(0, size, 2) * 2 for size in (0, 1)] + [torch.unfold_copy(x[1, 1], 0, 1, 1)],
    "softmax backwards, of infinities": lambda x: torch.ops.aten._softmax_backward_data(torch.where(x > 0.9, math.inf, x), x.softmax(-1), -1, torch.float32),
    "searchsorted from the right": lambda x: torch.searchsorted(x[0].sort().values, x, side="right", out_int32=True),
    "searchsorted from the left": lambda x: torch.searchsorted(x.sort().values, x, side="left"),
    "searchsorted in the order of a sorter": lambda x: torch.searchsorted(x, x.flip(0), sorter=x.argsort(-1), right=True),
    "searchsorted of a number": lambda x: [torch.searchsorted(x[0].sort().values, 0.5, right=r) for r in (True, False)],
    "searchsorted of a number among integers": lambda x: [
        torch.searchsorted(x[0].argsort(), 0.5),
        torch.searchsorted(x[0].argsort(), -0.5, side="right"),
        torch.searchsorted(x[0].argsort().byte(), 258),
        torch.searchsorted(x[0].argsort().sort().values, x),
    ],
    "a mask of where to add": lambda x: [
        torch.index_put(x, (x > 0,), torch.tensor(2.0), accumulate=True),
        torch.index_put(x, (x[:, 0] > 0,), x[1], accumulate=True),
        torch.index_put(x > 0.5, (x < 0,), torch.tensor(True), accumulate=True),
    ],
    "put": lambda x: x.put(torch.tensor([[0, -1], [3, 5]]), torch.arange(4.0)),
    "put, added up": lambda x: x.t().put(torch.tensor([1, 1, 7]), torch.ones(3), accumulate=True),
    "index_reduce": lambda x: [
        x.index_reduce(1, torch.tensor([0, 2, 0]), x[:, 1:] * 3, how, include_self=kept)
        for how in ("prod", "mean", "amax", "amin")
        for kept in (True, False)
    ],
    "index_reduce of a number": lambda x: x[0, 0].index_reduce(0, torch.tensor(0), x[1, 1], "prod"),
    "index_reduce of integers": lambda x: (9 * x).long().index_reduce(0, torch.tensor([1, 1]), (7 * x[1:]).long(), "mean"),
    "products with logarithms of numbers": lambda x: (torch.special.xlogy(2.5, x.abs()), torch.special.xlog1py(x, 3)),
    "truths of all and of any": lambda x: [torch.ops.aten._is_all_true(x < y) for y in (2, 0)] + [torch.ops.aten._is_any_true(x > 2)],
    "integers between fractions": lambda x: [
        torch.linspace(x[0, 1] * 5.2, 1, 50, dtype=torch.uint8), torch.linspace(4.3, x.sum() * 1.3, 50, dtype=torch.int64),
        torch.linspace(-4.7, 9.9, 50, dtype=torch.int64) + x[0, 0].long(),
        *(torch.linspace(x.sum() * 1.3, 9.9, steps, dtype=torch.int8) for steps in (0, 1, 2)),
    ],
    "numbers among infinity and NaN": lambda x: [
        torch.isin(torch.tensor([0.5, math.inf, -math.inf, math.nan, 0.0]), tests, invert=invert)
        for tests in (
            torch.tensor([math.nan, math.inf, -3.0, math.inf, math.nan, 0.5, 7.0]).repeat(9),
            x.flatten()[:1] * math.nan, torch.zeros(64) * math.nan, x[:0],
        )
        for invert in (False, True)
    ],
    "between tensors that lie in two orders": lambda x: [
        torch.lerp(one, other, 0.3)
        for x4 in [x.reshape(1, 3, 2, 2)]
        for one, other in itertools.permutations([x4 * 2, x4.to(memory_format=torch.channels_last)])
    ],
    "margins that are NaN": lambda x: [
        loss(torch.where(x > 0.9, math.nan, x), labels, **kwargs)
        for loss, labels in (
            (functional.multi_margin_loss, torch.tensor([2, 0, 3])),
            (functional.multilabel_margin_loss, torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [3, 2, 1, 0]])),
        )
        for kwargs in ({"reduction": "none"}, {}, {"reduction": "sum"})
    ],
    "margins that are NaN, by torch's operator": lambda x: [
        loss(torch.where(x > 0.9, math.nan, x), torch.tensor([2, 0, 3]), 2, **kwargs)
        for loss in (torch._C._nn.multi_margin_loss, torch.ops.aten.multi_margin_loss, torch.ops.aten.multi_margin_loss.default)
        for kwargs in ({"reduction": 0}, {}, {"reduction": 2, "weight": x[1].abs()})
    ],
    "margins, squared and weighed": lambda x: [
        functional.multi_margin_loss(x, torch.tensor([2, 0, 3]), p=2, margin=0.3, weight=x[1].abs(), reduction="none"),
        functional.multi_margin_loss(x[0], torch.tensor(1), weight=x[2]),
        functional.multi_margin_loss(x[0], torch.tensor([1]), reduction="none"),
        functional.multi_margin_loss(x[0, 0], torch.tensor(0), reduction="none"),
    ],
    "infinite weights of margins that are missed by none": lambda x: [
        functional.multi_margin_loss(x[:, :3], torch.tensor([2, 0, 1]), weight=weight, margin=margin, reduction="none")
        for weight in (torch.tensor([1, math.inf, math.nan]), torch.tensor([math.nan, 1, math.inf]))
        for margin in (-9, 0.5, 9)
    ],
    "the label of a number": lambda x: functional.multilabel_margin_loss(x[0, 0], torch.tensor(0)),
    "labels that end": lambda x: functional.multilabel_margin_loss(
        x, torch.tensor([[0, 2, -1, 1], [-1, 0, 0, 0], [3, 2, 1, 0]]), reduction="none"
    ),
}  # fmt: skip


class Applied(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> object:
        return CASES[self.name](x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_it_equals_eager(name, tmp_path):
    found = outcome(Applied(name), (X,), {}, tmp_path / "function.kvc")

    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :2].as_strided_scatter(x.sum(), (), ()),
        lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0),
    ],
)
def test_what_depends_on_other_memory_or_on_values_is_refused(function, tmp_path):
    CASES["refused"] = function
    try:
        found = outcome(Applied("refused"), (X,), {}, tmp_path / "function.kvc")
    finally:
        del CASES["refused"]

    assert found.kind == "refused"
    assert not (tmp_path / "function.kvc").exists()


@pytest.mark.parametrize("output_size", [3, 5])
def test_repeats_that_add_up_to_another_size_are_an_error_of_the_call(
    output_size, tmp_path
):
    class Repeated(nn.Module):
        def forward(self, x: Tensor, repeats: Tensor) -> Tensor:
            return x.repeat_interleave(repeats, dim=0, output_size=output_size)

    fitting = torch.tensor([1, 1, output_size - 2])
    method = Method("forward", (X, fitting))
    compile_program(Repeated(), (method,), "fp32").save(tmp_path / "repeated.kvc")
    with load(tmp_path / "repeated.kvc") as program:
        expected = X.repeat_interleave(fitting, dim=0)
        assert torch.equal(program.forward(X, fitting), expected)
        for wrong in ([1, 1, 2], [-1, 1, output_size], [3, 3, 3]):
            with pytest.raises(IndexOutOfRange):
                program.forward(X, torch.tensor(wrong))


def test_a_source_of_nothing_is_refused_where_the_mask_is_true(tmp_path):
    class Scattered(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
            return x.masked_scatter(mask, source)

    given = (X, X > 9, X[:0])
    compile_program(Scattered(), (Method("forward", given),), "fp32").save(
        tmp_path / "a.kvc"
    )
    with load(tmp_path / "a.kvc") as program:
        assert torch.equal(program.forward(*given), X)
        with pytest.raises(KernelFailed, match="index 1 is out of bounds"):
            program.forward(X, X > 0, X[:0])
