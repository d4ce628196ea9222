"""Functional forms of all operators that write, and the order in memory of results."""

from contextlib import suppress

import pytest
import torch
from daily import RARELY
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.compiler.functional.layouts import WRONG
from kvc.compiler.functional.operators import Kind, functional_form, kind_of

# Operators that write and have no functional form, or one with other arguments.
WITHOUT = {
    "_cudnn_init_dropout_state", "_cummax_helper", "_cummin_helper",
    "_efficientzerotensor", "_fill_mem_eff_dropout_mask_",
    "_flash_attention_forward_no_dropout_inplace", "_slow_conv2d_backward",
    "adaptive_avg_pool3d_backward", "from_file", "normal", "normal_", "polygamma_",
    "rand_like", "randint_like", "randn_like", "record_stream", "rrelu_with_noise_",
}  # fmt: skip


def operators_that_write():
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.removeprefix("aten::") for s in schemas if s.name[:6] == "aten::"}
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            known = torch._C._dispatch_has_kernel(op.name())
            if known and op._schema.is_mutable and kind_of(op) is Kind.WRITE:
                yield op


def test_nearly_all_operators_that_write_have_a_functional_form():
    every = [*operators_that_write()]
    assert len(every) > 1000
    for op in every:
        name = op._schema.name.removeprefix("aten::")
        form = functional_form(op)
        assert (form is None) <= (name in WITHOUT or "quantized" in name), op
        if form is not None:
            written = [a for a in op._schema.arguments if a.is_write]
            assert len(form._schema.returns) >= len(written) or "foreach" in name


class Compared(TorchDispatchMode):
    """Notes the operators whose results do not lie in memory as torch's rule says."""

    def __init__(self) -> None:
        super().__init__()
        self.other: set[OpOverload] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        real = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func._schema.is_mutable:
            fake = FakeTensorMode()
            given = tree_map_only(Tensor, fake.from_tensor, (args, kwargs or {}))
            try:
                with fake:
                    made = func(*given[0], **given[1])
            except Exception:  # a result whose size depends on values
                return real
            if not all(map(alike, tree_leaves(made), tree_leaves(real))):
                self.other.add(func)
        return real


def alike(one, other) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return True
    if one.shape != other.shape or not other.numel() or other.is_sparse:
        return True
    steps = zip(other.shape, one.stride(), other.stride(), strict=True)
    return all(size < 2 or a == b for size, a, b in steps)


def turned(x: Tensor) -> Tensor:
    order = [*range(x.dim())][::-1]
    return x.permute(order).contiguous().permute(order)


@RARELY
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", op_db, ids=lambda info: info.full_name)
def test_rules_of_strides_are_right_but_for_those_that_are_named(info):
    if torch.float32 not in info.dtypes or "sparse" in info.name:
        pytest.skip("no operator of float32")
    if info.name == "normal":
        pytest.skip("random numbers, which are refused")
    compared = Compared()
    for number, sample in enumerate(info.sample_inputs("cpu", torch.float32)):
        if number == 8:
            break
        args, kwargs = tree_map_only(
            Tensor, turned, ((sample.input, *sample.args), sample.kwargs)
        )
        below = torch._C._AutoDispatchBelowAutograd()
        with torch.no_grad(), below, compared, suppress(Exception):
            info.op(*args, **kwargs)  # some refuse other orders
    assert {str(op) for op in compared.other - WRONG} == set()
