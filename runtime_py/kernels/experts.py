"""Kernels of experts and adapters: each row is multiplied by matrices of its own.

In: rows, matrices, the expert or adapter of each row. Out: products. The kernels of
`kvc::expert_linear` and `kvc::adapted` are the Python functions that eager runs, called
without torch's dispatch. The quantized kernels compute `kvc::linear_qd8` and
`kvc::linear_q8` with a separate matrix for each expert. All kernels read only the
matrices of selected experts.
"""

from functools import partial

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel
from kvc.runtime.kernels.quantized import linear_qd8, row_sums
from kvc.runtime.kernels.quantized_blocks import linear_q8
from kvc.schema.torch_ops import adapt_into, multiply_by_experts, rows_by_expert


def _expert_linear_qd8(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    experts: Tensor,
    bias: Tensor | None,
    sums: dict[int, Tensor] | None = None,
) -> None:
    """Write the result of `kvc::linear_qd8` for each row and its expert's matrix.

    Args:
        out: float32 [rows, out].
        q: int8 [rows, in]; `q`, `scale` and `zero_point` are the results of
            `kvc::quantize_rows`.
        scale: float32 [rows, 1].
        zero_point: int32 [rows, 1].
        weight: int8 [experts, out, in].
        weight_scale: float32 [experts, out].
        experts: int64 [rows], the index of each row's expert.
        bias: float32 [experts, out].
        sums: expert -> the row sums of the expert's matrix; the call adds missing
            entries.
    """
    known = {} if sums is None else sums
    for expert, rows in rows_by_expert(experts, weight.shape[0]):
        index = torch.tensor([rows]) if isinstance(rows, int) else rows
        matrix = weight[expert]
        if expert not in known:
            known[expert] = row_sums(matrix)
        result = out.new_empty(len(index), out.shape[1])
        linear_qd8(
            result,
            q[index],
            scale[index],
            zero_point[index],
            matrix,
            weight_scale[expert],
            None if bias is None else bias[expert],
            known[expert],
        )
        out.index_copy_(0, index, result)


def prepare_expert_linear_qd8(weight: Tensor) -> Kernel:
    """Return `kvc::expert_linear_qd8` for a constant weight.

    The row sums of an expert's matrix are computed when the expert is first selected,
    since many experts are never selected.
    """
    return partial(_expert_linear_qd8, sums={})


def _expert_linear_q8(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    experts: Tensor,
    bias: Tensor | None,
) -> None:
    """Write the result of `kvc::linear_q8` for each row and its expert's matrix.

    Args:
        out: float32 [rows, out].
        q: int8 [rows, in]; `q`, `scale`, `zero_point` and `factor` are the results of
            `kvc::quantize_blocks`.
        scale: float32 [rows, 1].
        zero_point: int8 [rows, n].
        factor: int8 [rows, n].
        weight: int8 [experts, out, in].
        weight_scale: float32 [experts, out, m].
        experts: int64 [rows].
        bias: float32 [experts, out].
    """
    for expert, rows in rows_by_expert(experts, weight.shape[0]):
        index = torch.tensor([rows]) if isinstance(rows, int) else rows
        result = out.new_empty(len(index), out.shape[1])
        added = None if bias is None else bias[expert]
        linear_q8(
            result,
            q[index],
            scale[index],
            zero_point[index],
            factor[index],
            weight[expert],
            weight_scale[expert],
            added,
        )
        out.index_copy_(0, index, result)


KERNELS: dict[str, Kernel] = {
    "kvc::adapted": adapt_into,
    "kvc::expert_linear": multiply_by_experts,
    "kvc::expert_linear_q8": _expert_linear_q8,
    "kvc::expert_linear_qd8": _expert_linear_qd8,
}
