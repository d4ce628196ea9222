"""Rules for norms, convolutions and pools, of which kvc supports fewer modes.

Some traced norms also return statistics that training needs; the rules in this file
compute only the first result, the normalized tensor.
"""

from kvc.compiler.ingest.calls import NamedArguments, OpCall, OpRule, given
from kvc.compiler.ir import Value
from kvc.schema.types import TensorType


def batch_norm(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Normalize by the running statistics of the model."""
    kept = ("input", "weight", "bias", "running_mean", "running_var", "eps")
    return OpCall("aten::batch_norm", {name: named[name] for name in kept}, results=1)


def group_norm(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Normalize groups of channels, without torch's flag that allows cuDNN."""
    kept = ("input", "num_groups", "weight", "bias", "eps")
    return OpCall("aten::group_norm", {name: named[name] for name in kept})


def instance_norm(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Normalize each channel of a batch of one, as torch traces InstanceNorm."""
    channels = given(named, "input", Value).type.dims[1]
    values = {name: named[name] for name in ("input", "weight", "bias", "eps")}
    return OpCall("aten::group_norm", {**values, "num_groups": channels}, results=1)


def first_results(op: str, count: int) -> OpRule:
    """Return the rule for a call of which only the first `count` results are kept."""
    return lambda named, _: OpCall(op, named, results=count)


def embedding_bag(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Reduce bags of embedding rows, without the results that only training needs."""
    dropped = ("scale_grad_by_freq", "sparse")
    kept = {name: value for name, value in named.items() if name not in dropped}
    return OpCall("aten::_embedding_bag_forward_only", kept, results=1)


def resize(op: str) -> OpRule:
    """Return the rule for a resize by `op` to the size of the call's result."""

    def rule(named: NamedArguments, result: TensorType | None) -> OpCall:
        assert result is not None
        factors = named["scale_factors"]
        height, width = factors if isinstance(factors, tuple | list) else (None, None)
        kept = {"self": named["input"], "output_size": result.dims[2:]}
        kept |= {"scales_h": height, "scales_w": width}
        if "align_corners" in named:
            kept["align_corners"] = named["align_corners"]
        return OpCall(op, kept)

    return rule


_TRANSPOSED = {
    1: "aten::conv_transpose1d",
    2: "aten::conv_transpose2d.input",
    3: "aten::conv_transpose3d.input",
}


def convolution(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Return the call of a convolution.

    A transposed convolution becomes the operator for its number of axes.
    """
    axes = len(given(named, "weight", Value).type.dims) - 2
    named = _for_each_axis(named, axes)
    values = {name: value for name, value in named.items() if name != "transposed"}
    if not named["transposed"]:
        del values["output_padding"]
        return OpCall("aten::convolution", values)
    return OpCall(_TRANSPOSED[axes], values)


def pooling(op: str, axes: int) -> OpRule:
    """Return the rule for the pool `op`, which works along `axes` axes."""
    return lambda named, _: OpCall(op, _for_each_axis(named, axes))


_SETTINGS = {"kernel_size", "stride", "padding", "dilation", "output_padding"}


def _for_each_axis(named: NamedArguments, axes: int) -> NamedArguments:
    """Return a pool's arguments, with one number for each axis in each setting.

    torch may give a single number for all axes.
    """
    return {
        name: value * axes
        if name in _SETTINGS and isinstance(value, tuple) and len(value) == 1
        else value
        for name, value in named.items()
    }
