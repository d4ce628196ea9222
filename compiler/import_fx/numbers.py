"""Python numbers where an op of the table takes a tensor.

torch lets a number stand for either operand. In: a call of an op, its operands as
traced. Out: the call with the op's Scalar overload, with the operands swapped, or
with a tensor of no dims made of the number, whichever gives what eager gives.
"""

from kvc.compiler.import_fx.calls import Call, Made
from kvc.compiler.ir import Value
from kvc.schema.ops import OPS, ParamKind
from kvc.schema.ops import shapes as rules
from kvc.schema.types import Affine, TensorType

# number op tensor -> the op that takes them the other way round
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


def place_numbers(call: Call, result: TensorType | None) -> Call:
    """Return the call with no number where its op takes a tensor, if that can be."""
    return _wrapped(_swapped(_scalar_variant(call)), result)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Affine)


def _scalar_variant(call: Call) -> Call:
    """Take the op's Scalar overload where a number is the second operand."""
    other = call.named.get("other", call.named.get("value"))
    name, _, overload = call.op.partition(".")
    if not _is_number(other) or not overload.startswith("Tensor"):
        return call
    scalar = f"{name}.{overload.replace('Tensor', 'Scalar', 1)}"
    return Call(scalar, call.named) if scalar in OPS else call


def _swapped(call: Call) -> Call:
    """Swap the operands where the first is a number and the op allows it.

    `sub` and `rsub` both scale the tensor here by alpha; `add` scales its second.
    """
    first, second = call.named.get("self"), call.named.get("other")
    op = _SWAPPED.get(call.op)
    if op is None or not _is_number(first) or not isinstance(second, Value):
        return call
    if op == "aten::add.Scalar" and call.named["alpha"] != 1:
        return call
    return Call(op, {**call.named, "self": second, "other": first})


def _wrapped(call: Call, result: TensorType | None) -> Call:
    """Make tensors of numbers that are left, of an elementwise op's result dtype."""
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
            values = {"size": (), "fill_value": number, "dtype": result.dtype}
            made = Call("aten::full", values)
            named[param.name] = Made(made, TensorType(result.dtype, ()))
    return Call(call.op, named)
