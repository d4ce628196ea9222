"""`kvc::expert_linear`: multiply each row by the matrix of its selected expert.

In: rows, the matrices of all experts, the selected expert of each row. Out: the
products. Only the matrices of selected experts are read, each once, so that a call with
a single token reads only a few matrices. No shape depends on the selection.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kvc.schema.errors import IndexOutOfRange


@torch.library.custom_op("kvc::expert_linear", mutates_args=())
def expert_linear(
    x: Tensor,
    weight: Tensor,
    experts: Tensor,
    bias: Tensor | None = None,
    transposed: bool = False,
) -> Tensor:
    """Multiply each row by its expert's matrix.

    Args:
        x: [rows, in], of a floating-point dtype.
        weight: [experts, out, in], or [experts, in, out] if `transposed`; dtype as `x`.
        experts: int64 [rows], the index of each row's matrix.
        bias: [experts, out], dtype as `x`; None for no bias.
        transposed: whether the matrices are [in, out] instead of [out, in].

    Returns:
        [rows, out]: `weight[experts[i]] @ x[i] + bias[experts[i]]`.

    Raises:
        ValueError: arguments do not fit each other.
        IndexOutOfRange: an expert index is out of range.
    """
    _check_arguments(x, weight, experts, bias, transposed)
    out = x.new_empty(x.shape[0], weight.shape[2 if transposed else 1])
    multiply_by_experts(out, x, weight, experts, bias, transposed)
    return out


@expert_linear.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    experts: Tensor,
    bias: Tensor | None = None,
    transposed: bool = False,
) -> Tensor:
    _check_arguments(x, weight, experts, bias, transposed)
    return x.new_empty(x.shape[0], weight.shape[2 if transposed else 1])


def multiply_by_experts(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    experts: Tensor,
    bias: Tensor | None,
    transposed: bool,
) -> None:
    """Write the result of `expert_linear` into `out`; the caller checks the arguments.

    Raises:
        IndexOutOfRange: an expert index is out of range, and nothing has been written.
    """
    for expert, rows in rows_by_expert(experts, weight.shape[0]):
        matrix = weight[expert] if transposed else weight[expert].t()
        if isinstance(rows, int):
            part = out.narrow(0, rows, 1)
            torch.mm(x.narrow(0, rows, 1), matrix, out=part)
            if bias is not None:
                part.add_(bias[expert])
            continue
        product = x.index_select(0, rows) @ matrix
        out.index_copy_(0, rows, product if bias is None else product + bias[expert])


def rows_by_expert(experts: Tensor, count: int) -> Iterator[tuple[int, int | Tensor]]:
    """Yield the index of each selected expert, and the indices of the expert's rows.

    The row indices are one int, or a tensor int64 [rows].

    Args:
        experts: int64 [rows], the index of each row's expert.
        count: the number of experts.

    Raises:
        IndexOutOfRange: an index is out of range, and nothing has been yielded.
    """
    rows: dict[int, list[int]] = {}
    for row, expert in enumerate(experts.tolist()):
        if not 0 <= expert < count:
            raise IndexOutOfRange(place="", index=expert, size=count)
        rows.setdefault(expert, []).append(row)
    for expert, chosen in rows.items():
        yield expert, chosen[0] if len(chosen) == 1 else torch.tensor(chosen)


def _check_arguments(
    x: Tensor, weight: Tensor, experts: Tensor, bias: Tensor | None, transposed: bool
) -> None:
    """Check the arguments of `expert_linear` without reading tensor values.

    Sizes may be symbolic.

    Raises:
        ValueError: an argument does not fit; the message names the first one.
    """
    shapes = (
        f"x {_text(x)}, weight {_text(weight)}, experts {experts.dtype} "
        f"{_text(experts)}, bias {'none' if bias is None else _text(bias)}"
    )
    ranks = (x.dim(), weight.dim(), experts.dim())
    _check(ranks == (2, 3, 1) and experts.dtype == torch.int64, shapes)
    _check(x.is_floating_point() and x.dtype == weight.dtype, shapes)
    _check(x.shape[1] == weight.shape[1 if transposed else 2], shapes)
    _check(x.shape[0] == experts.shape[0], shapes)
    if bias is not None:
        results = weight.shape[2 if transposed else 1]
        _check(bias.dim() == 2 and bias.dtype == x.dtype, shapes)
        _check(bias.shape[0] == weight.shape[0] and bias.shape[1] == results, shapes)


def _text(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _check(condition: bool | torch.SymBool, text: str) -> None:
    torch._check_value(condition, lambda: f"expert_linear: {text}")  # type: ignore[no-untyped-call]
