"""Rewrite traced ATen calls into the operators of `kvc.schema.ops`.

Most operators keep their name and lose the parameters that kvc does not support. The
rules in this file rewrite variants of operators, and operators that make tensors.
`indexing` has the rules for reads and writes of parts of tensors, and `norms` has the
rules for norms; `numbers` handles Python numbers among the operands. A call of an
operator without a rule stays unchanged, and the importer reports the operator if the
table of operators does not have it.
"""

from kvc.compiler.ingest import indexing, norms
from kvc.compiler.ingest.calls import (
    NamedArguments,
    OpCall,
    OpRule,
    Unsupported,
    cast,
    given,
)
from kvc.compiler.ingest.numbers import place_numbers
from kvc.compiler.ingest.read_numbers import Number, Real
from kvc.compiler.ir import Argument, Item, Value
from kvc.compiler.ir.arguments import argument_faults
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import Affine, TensorType

# Parameters that may be left out when they hold one of these values.
_USUAL: dict[str, tuple[object, ...]] = {
    "dropout_p": (0, 0.0),
    "pin_memory": (None, False),
    "generator": (None,),
}
# Parameters that change nothing here: everything is a dense CPU tensor, functional.
_IGNORED = {
    "layout", "device", "memory_format", "implicit", "non_blocking", "padding_idx",
    "scale_grad_by_freq", "sparse", "sparse_grad", "half_to_float", "stable",
    "cudnn_enable",
}  # fmt: skip
# Operator without a kernel -> the code to write instead.
_INSTEAD = {
    "aten::as_strided": "slices, .view() and .transpose()",
    "aten::as_strided_scatter": "slices, .view() and .transpose()",
}
_TRAINING_ONLY = {
    "aten::native_dropout", "aten::bernoulli.p", "aten::rrelu_with_noise_functional",
    "aten::_native_batch_norm_legit_functional",
}  # fmt: skip
# Operators that draw random numbers in any mode.
_RANDOM = {
    "aten::rand", "aten::rand_like", "aten::randn", "aten::randn_like", "aten::randint",
    "aten::randint.low", "aten::randint_like", "aten::randint_like.low_dtype",
    "aten::randperm", "aten::multinomial", "aten::normal.Tensor_Tensor",
    "aten::normal.Tensor_float", "aten::normal.float_Tensor",
    "aten::normal_functional", "aten::uniform", "aten::exponential", "aten::poisson",
    "aten::cauchy", "aten::geometric", "aten::log_normal", "aten::binomial",
    "aten::fractional_max_pool2d", "aten::fractional_max_pool3d",
    "aten::_standard_gamma", "aten::_sample_dirichlet",
}  # fmt: skip


def normalize(op: str, named: NamedArguments, result: TensorType | None) -> OpCall:
    """Return a traced call as a call of an operator in kvc's table.

    Args:
        op: full name of the traced operator.
        named: the call's arguments by parameter name, with defaults filled in.
        result: type of the call's first result, None if the call has no result.

    Raises:
        Unsupported: kvc has no operator for the call; the error gives the reason.
    """
    rule = _RULES.get(op)
    call = rule(named, result) if rule else OpCall(op, named)
    call = place_numbers(call, result)
    if call.op not in OPS:
        raise Unsupported("no kernel")
    kept = {p.name for p in OPS[call.op].params}
    for name, value in call.named.items():
        if name in kept or name in _IGNORED or value in _USUAL.get(name, (None,)):
            continue
        if name == "dtype" and result is not None and value is result.dtype:
            continue
        raise Unsupported(f"{name}={value} is not supported")
    return call


def arguments_of(call: OpCall) -> tuple[Argument, ...]:
    """Return a call's arguments in the order of the operator's signature.

    Raises:
        Unsupported: an argument is not of the kind that the operator takes.
    """
    spec = OPS[call.op]
    arguments = tuple(_argument(call.named[p.name]) for p in spec.params)
    for fault in argument_faults(spec, arguments):
        raise Unsupported(fault)
    return arguments


def _argument(value: object) -> Argument:
    if isinstance(value, list | tuple):
        return tuple(_item(item) for item in value)
    return _item(value)


def _item(value: object) -> Item:
    if value is None or isinstance(
        value, Value | int | float | bool | str | DType | Affine
    ):
        return value
    if isinstance(value, Number | Real):
        raise Unsupported(
            "a number that depends on values, where only a fixed one is allowed"
        )
    raise Unsupported(f"an argument of type {type(value).__name__}")


def _rename(op: str, **changes: object) -> OpRule:
    """Return the rule that renames an operator to `op` and sets some parameters."""
    return lambda named, _: OpCall(op, {**named, **changes})


def _whole(op: str) -> OpRule:
    """Return the rule that turns a call into the reduction `op` over all axes."""
    return _rename(op, dim=None, keepdim=False)


def _filled(value: object) -> OpRule:
    """Return the rule for a tensor that is filled with `value`.

    If `value` is None, the call's argument `fill_value` is used.
    """

    def rule(named: NamedArguments, result: TensorType | None) -> OpCall:
        fill = named["fill_value"] if value is None else value
        return indexing.filled(fill, result)

    return rule


def _cast(named: NamedArguments, result: TensorType | None) -> OpCall:
    assert result is not None
    if named.get("dtype") is None:
        return OpCall("aten::clone", {"self": named["self"]})
    return OpCall("aten::_to_copy", {"self": named["self"], "dtype": result.dtype})


def _shaped(op: str) -> OpRule:
    """Return the rule for a view `op` that gets the sizes of the call's result."""

    def rule(named: NamedArguments, result: TensorType | None) -> OpCall:
        assert result is not None
        return OpCall(op, {"self": named["self"], "size": result.dims})

    return rule


def _squeeze(named: NamedArguments, _: TensorType | None) -> OpCall:
    tensor, dim = given(named, "self", Value), named.get("dim")
    if dim is None:
        dim = tuple(i for i, size in enumerate(tensor.type.dims) if size == 1)
    return OpCall(
        "aten::squeeze.dims",
        {"self": tensor, "dim": (dim,) if isinstance(dim, int) else dim},
    )


def _transpose_matrix(named: NamedArguments, _: TensorType | None) -> OpCall:
    tensor = given(named, "self", Value)
    if len(tensor.type.dims) < 2:
        return OpCall("aten::alias", {"self": tensor})
    return OpCall("aten::transpose.int", {"self": tensor, "dim0": 0, "dim1": 1})


def _transpose(named: NamedArguments, _: TensorType | None) -> OpCall:
    tensor = given(named, "self", Value)
    if tensor.type.dims:
        return OpCall("aten::transpose.int", named)
    return OpCall("aten::alias", {"self": tensor})


def _converted(named: NamedArguments, result: TensorType | None) -> OpCall:
    assert result is not None
    return OpCall("aten::_to_copy", {"self": named["a"], "dtype": result.dtype})


def _split(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Split a tensor into parts of equal size; the last part can be smaller."""
    tensor, dim = given(named, "self", Value), given(named, "dim", int)
    size = named["split_size"]
    whole = tensor.type.dims[dim]
    if not isinstance(whole, int) or not isinstance(size, int):
        raise Unsupported("split of a dynamic dimension")
    parts = tuple(min(size, whole - begin) for begin in range(0, whole, size))
    return OpCall(
        "aten::split_with_sizes", {"self": tensor, "split_sizes": parts, "dim": dim}
    )


def _cat(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Concatenate tensors without empty tensors of rank 1, which torch also skips."""
    assert result is not None
    tensors, dim = given(named, "tensors", tuple), named["dim"]
    rank = len(result.dims)
    kept = tuple(cast(x, result.dtype) for x in tensors if len(x.type.dims) == rank)
    return OpCall("aten::cat", {"tensors": kept if rank > 1 else tensors, "dim": dim})


def _floor_divide(named: NamedArguments, _: TensorType | None) -> OpCall:
    if isinstance(named["other"], Value):
        return OpCall("aten::floor_divide", named)
    return OpCall("aten::div.Scalar_mode", {**named, "rounding_mode": "floor"})


def _clamp_bound(bound: str) -> OpRule:
    absent = "max" if bound == "min" else "min"
    return _rename("aten::clamp", **{absent: None})


_SHIFTS: dict[str, OpRule] = {
    f"aten::{spelling}": _rename(f"aten::bitwise_{side}_shift.Tensor")
    for side in ("left", "right")
    for spelling in (
        f"bitwise_{side}_shift.Tensor_Scalar",
        f"bitwise_{side}_shift.Scalar_Tensor",
        f"__{side[0]}shift__.Scalar",
        f"__{side[0]}shift__.Tensor",
    )
}
_RULES: dict[str, OpRule] = {
    "aten::_unsafe_view": _shaped("aten::view"),
    "aten::view": _shaped("aten::view"),
    "aten::reshape": _shaped("aten::view"),
    "aten::expand": _shaped("aten::expand"),
    "aten::t": _transpose_matrix,
    "aten::transpose.int": _transpose,
    "prims::convert_element_type": _converted,
    "aten::squeeze": _squeeze,
    "aten::squeeze.dim": _squeeze,
    "aten::slice.Tensor": indexing.slice_,
    "aten::select.int": indexing.select,
    "aten::split.Tensor": _split,
    "aten::cat": _cat,
    "aten::slice_scatter": indexing.slice_scatter,
    "aten::select_scatter": indexing.select_scatter,
    "aten::index_fill.int_Scalar": indexing.index_fill,
    "aten::index_fill.int_Tensor": indexing.index_fill,
    "aten::scatter.reduce": indexing.scatter_reduce,
    "aten::scatter_reduce.two": indexing.scatter_reduce,
    "aten::index_put": indexing.index_put,
    **{
        op: indexing.with_an_axis(op)
        for op in ("aten::index_select", "aten::index_copy", "aten::index_add")
    },
    "aten::_native_batch_norm_legit_no_training": norms.batch_norm,
    "aten::_native_batch_norm_legit.no_stats": norms.instance_norm,
    "aten::_linalg_det": norms.first_results("aten::linalg_det", 1),
    "aten::_linalg_slogdet": norms.first_results("aten::linalg_slogdet", 2),
    "aten::group_norm": norms.group_norm,
    "aten::convolution": norms.convolution,
    **{
        op: norms.pooling(op, rank)
        for rank in (2, 3)
        for op in (
            f"aten::avg_pool{rank}d",
            f"aten::max_pool{rank}d_with_indices",
        )
    },
    "aten::roll": indexing.roll,
    "aten::arange": indexing.arange,
    "aten::arange.start": indexing.arange,
    "aten::arange.start_step": indexing.arange,
    "aten::full": _filled(None),
    "aten::full_like": _filled(None),
    "aten::new_full": _filled(None),
    "aten::zeros": _filled(0),
    "aten::zeros_like": _filled(0),
    "aten::new_zeros": _filled(0),
    "aten::ones": _filled(1),
    "aten::ones_like": _filled(1),
    "aten::new_ones": _filled(1),
    "aten::empty.memory_format": _filled(0),
    "aten::empty_like": _filled(0),
    "aten::empty_permuted": _filled(0),
    "aten::empty_strided": _filled(0),
    "aten::new_empty": _filled(0),
    **_SHIFTS,
    "aten::_embedding_bag": norms.embedding_bag,
    "aten::_embedding_bag_forward_only": norms.embedding_bag,
    "aten::sort.stable": _rename("aten::sort"),
    "aten::upsample_nearest2d.vec": norms.resize("aten::upsample_nearest2d"),
    "aten::upsample_bilinear2d.vec": norms.resize("aten::upsample_bilinear2d"),
    "aten::scalar_tensor": lambda named, result: indexing.filled(named["s"], result),
    "prims::scalar_tensor": lambda named, result: indexing.filled(named["s"], result),
    "aten::_to_copy": _cast,
    "aten::_softmax": _rename("aten::softmax.int", dtype=None),
    "aten::_log_softmax": _rename("aten::log_softmax.int", dtype=None),
    "aten::sum": _whole("aten::sum.dim_IntList"),
    "aten::mean": _whole("aten::mean.dim"),
    "aten::max": _rename("aten::amax", dim=(), keepdim=False),
    "aten::min": _rename("aten::amin", dim=(), keepdim=False),
    "aten::_is_all_true": _rename("aten::all"),
    "aten::_is_any_true": _rename("aten::any"),
    "aten::special_zeta.other_scalar": _rename("aten::special_zeta"),
    "aten::special_zeta.self_scalar": _rename("aten::special_zeta"),
    "aten::clamp_min": _clamp_bound("min"),
    "aten::clamp_max": _clamp_bound("max"),
    "aten::floor_divide": _floor_divide,
    "aten::remainder.Scalar_Tensor": _rename("aten::remainder.Tensor"),
    "aten::bitwise_and.Scalar_Tensor": _rename("aten::bitwise_and.Tensor"),
    "aten::bitwise_or.Scalar_Tensor": _rename("aten::bitwise_or.Tensor"),
    "aten::bitwise_xor.Scalar_Tensor": _rename("aten::bitwise_xor.Tensor"),
}


def is_known(op: str) -> bool:
    """Tell whether kvc supports an operator for at least some arguments."""
    return op in OPS or op in _RULES


def why_unknown(op: str) -> str:
    """Return why kvc never supports an operator, with a remedy if one is known."""
    if op in _TRAINING_ONLY:
        return "the model is in training mode; call model.eval() before compiling"
    if op in _RANDOM:
        return "random numbers; pass them as an argument"
    return f"no kernel; use {_INSTEAD[op]}" if op in _INSTEAD else "no kernel"
