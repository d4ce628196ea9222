"""Kernels of experts: each row is multiplied by the matrix of the expert it chose.

`kvc::expert_linear` is the function behind the operator that eager and capture call,
without the dispatch. The quantized one is `kvc::linear_qd8` with a matrix for each
expert; here too only chosen experts are read.
"""

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel
from kvc.schema.torch_ops import multiply_by_experts, rows_by_expert


def _expert_linear_qd8(
    out: Tensor,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    experts: Tensor,
    bias: Tensor | None,
) -> None:
    """Write what `kvc::linear_qd8` gives for each row and its expert's matrix.

    Args:
        out: float32 [rows, out].
        q: int8 [rows, in], as `scale` and `zero_point` from `kvc::quantize_rows`.
        scale: float32 [rows, 1].
        zero_point: int32 [rows, 1].
        weight: int8 [experts, out, in].
        weight_scale: float32 [experts, out].
        experts: int64 [rows].
        bias: float32 [experts, out].
    """
    prepare_expert_linear_qd8(weight)(
        out, q, scale, zero_point, weight, weight_scale, experts, bias
    )


def prepare_expert_linear_qd8(weight: Tensor) -> Kernel:
    """Return `kvc::expert_linear_qd8` for a weight that never changes.

    An expert's sums of rows are taken when it is first chosen: many never are.
    """
    sums: dict[int, Tensor] = {}
    ones = weight.new_ones(1, weight.shape[2])

    def sums_of(expert: int) -> Tensor:
        if expert not in sums:
            sums[expert] = torch._int_mm(ones, weight[expert].t())
        return sums[expert]

    def linear(
        out: Tensor,
        q: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        experts: Tensor,
        bias: Tensor | None,
    ) -> None:
        for expert, rows in rows_by_expert(experts, weight.shape[0]):
            index = torch.tensor([rows]) if isinstance(rows, int) else rows
            product = torch._int_mm(q.index_select(0, index), weight[expert].t())
            product.addcmul_(zero_point[index], sums_of(expert), value=-1)
            result = torch.div(product, scale[index]).mul_(weight_scale[expert])
            out.index_copy_(0, index, result if bias is None else result + bias[expert])

    return linear


KERNELS: dict[str, Kernel] = {
    "kvc::expert_linear": multiply_by_experts,
    "kvc::expert_linear_qd8": _expert_linear_qd8,
}
