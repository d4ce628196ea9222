"""Python numbers where an operator of the table takes a tensor.

torch accepts a Python number in place of either operand. In: a call of an operator with
its traced operands. Out: a call that computes what torch computes in eager mode. The
call uses the operator's Scalar overload, has swapped operands, or has a tensor [] made
from the number. A number known only at run time is already a tensor; it is cast to the
dtype in which torch would compute with a Python number.
"""

import numpy as np

from kvc.compiler.ingest.calls import OpCall, Tensor, Unsupported, cast, full
from kvc.compiler.ingest.read_numbers import Number, Real
from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, ParamKind
from kvc.schema.ops import shapes as rules
from kvc.schema.types import Affine, TensorType

# Operators of two tensors without `Tensor` in their name.
_NEVER = "aten::pow"
_OF_TENSORS = {
    "aten::floor_divide",
    "aten::maximum",
    "aten::minimum",
    "aten::where.self",
}

# number op tensor -> the op for tensor and number
_SWAPPED = {
    "aten::add.Tensor": "aten::add.Scalar",
    "aten::mul.Tensor": "aten::mul.Scalar",
    "aten::sub.Tensor": "aten::rsub.Scalar",
    "aten::bitwise_and.Tensor": "aten::bitwise_and.Scalar",
    "aten::bitwise_or.Tensor": "aten::bitwise_or.Scalar",
    "aten::bitwise_xor.Tensor": "aten::bitwise_xor.Scalar",
    "aten::eq.Tensor": "aten::eq.Scalar",
    "aten::ne.Tensor": "aten::ne.Scalar",
    "aten::lt.Tensor": "aten::gt.Scalar",
    "aten::gt.Tensor": "aten::lt.Scalar",
    "aten::le.Tensor": "aten::ge.Scalar",
    "aten::ge.Tensor": "aten::le.Scalar",
}


def place_numbers(call: OpCall, result: TensorType | None) -> OpCall:
    """Return a call in which no number is in the place of a tensor, if possible."""
    return _wrapped(_swapped(_scalar_variant(_with_tensors(call))), result)


def _with_tensors(call: OpCall) -> OpCall:
    """Return a call of the operator's Tensor overload for a number of the run time.

    Such a number is known only at run time, and is a tensor there.
    """
    read = {n: v for n, v in call.named.items() if isinstance(v, Number | Real)}
    dtypes = [v.type.dtype for v in call.named.values() if isinstance(v, Value)]
    name, _, overload = call.op.partition(".")
    op = f"{name}.{overload.replace('Scalar', 'Tensor', 1) or 'Tensor'}"
    spec = OPS.get(call.op if call.op in _OF_TENSORS else op)
    takes = {p.name for p in spec.params if p.kind is ParamKind.TENSOR} if spec else ()
    fits = spec is not None and len(dtypes) == 1 and read.keys() <= set(takes)
    if not read or spec is None or not fits or name == _NEVER:
        return call
    named = dict(call.named)
    for key, number in read.items():
        named[key] = _as_operand(number, dtypes[0])
    if call.op == "aten::clamp":  # both bounds become tensors
        for key in ("min", "max"):
            if _is_number(named[key]):
                named[key] = full((), named[key], dtypes[0])
    return OpCall(spec.name, named)


def _as_operand(number: Number | Real, beside: DType) -> Tensor:
    """Return a number known only at run time as a tensor without dims.

    The tensor has the dtype in which torch would compute with a Python number, beside a
    tensor of the dtype `beside`.
    """
    if isinstance(number, Real):
        return cast(number.tensor(), beside if beside.is_floating else DType.FLOAT32)
    return cast(number.tensor(), DType.INT64 if beside is DType.BOOL else beside)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Affine)


def _scalar_variant(call: OpCall) -> OpCall:
    """Return a call of the operator's Scalar overload for a number as second operand.

    The call stays unchanged if the operand is a tensor or there is no such overload.
    """
    other = call.named.get("other", call.named.get("value"))
    name, _, overload = call.op.partition(".")
    if not _is_number(other) or not overload.startswith("Tensor"):
        return call
    scalar = f"{name}.{overload.replace('Tensor', 'Scalar', 1)}"
    return OpCall(scalar, call.named) if scalar in OPS else call


def _swapped(call: OpCall) -> OpCall:
    """Swap the operands if the first one is a number and the operator allows a swap.

    `rsub(tensor, number, alpha)` computes `number - alpha * tensor`, so alpha scales
    the tensor as in `sub(number, tensor, alpha)`. `add` scales its second operand, so
    it is swapped only if alpha is 1.
    """
    first, second = call.named.get("self"), call.named.get("other")
    op = _SWAPPED.get(call.op)
    if op is None or not _is_number(first) or not isinstance(second, Value):
        return call
    if op == "aten::add.Scalar" and call.named["alpha"] != 1:
        return call
    return OpCall(op, {**call.named, "self": second, "other": first})


def _require_held(number: object, dtype: DType) -> None:
    kind = dtype.numpy
    if isinstance(number, int) and kind.kind in "iu":
        limits = np.iinfo(kind)  # type: ignore[type-var]  # of integers, it is known
        if not limits.min <= number <= limits.max:
            raise Unsupported(f"{number} is no {dtype.label}")


def _wrapped(call: OpCall, result: TensorType | None) -> OpCall:
    """Turn the numbers that are left in an elementwise call into tensors.

    The tensors have the dtype of the call's result.
    """
    spec = OPS.get(call.op)
    if (
        spec is None
        or result is None
        or spec.rule not in (rules.broadcast, rules.where)
    ):
        return call
    named = dict(call.named)
    for param in spec.params:
        number = named.get(param.name)
        if param.kind is ParamKind.TENSOR and _is_number(number):
            _require_held(number, result.dtype)
            named[param.name] = full((), number, result.dtype)
    return OpCall(call.op, named)
