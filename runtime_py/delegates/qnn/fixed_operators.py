"""Operators of the list that are other nodes on integers than in float16.

As `operators.py`, whose functions serve all others.
"""

from collections.abc import Mapping
from typing import Final

from kvc.runtime.delegates.qnn.operators import EMITTERS, Emit
from kvc.runtime.delegates.qnn.ranges import Reach
from kvc.runtime.delegates.qnn.steps import Made, Step
from kvc.schema.backends.qnn_fixed import LINEAR


def _linear(step: Step, x: object, weight: object, scale: object, bias: object) -> Made:
    """Multiply by int8, then add: the product reaches as far as the result lets it."""
    assert step.channels is not None
    turned, given = step.channels(weight, scale), step.read(x)
    if bias is None:
        return step.node("MatMul", given, turned)
    added = step.read(bias)
    y = step.node("MatMul", given, turned, part="product", reach=_before(step, added))
    return step.node("Add", y, step.widened(added, len(step.shape), "bias"))


def _before(step: Step, added: str) -> Reach:
    """Return from where to where a result reached before something was added to it."""
    made, more = step.emitter.reach_like(step.name), step.emitter.reach(added)
    assert more is not None
    return made[0] - more[1], made[1] - more[0]


def _layer_norm(
    step: Step, x: object, axes: object, weight: object, bias: object, eps: object
) -> Made:
    """Subtract the mean, and normalise that: the device's own is 20 steps off."""
    assert isinstance(eps, float)
    name, emitter = step.read(x), step.emitter
    along = emitter.integers(f"{step.name}_axes", [-1])
    one = (*step.shape_of(name)[:-1], 1)
    mean = emitter.node(
        "ReduceMean", (name, along), f"{step.name}_mean", one, keepdims=1
    )
    apart = step.node("Sub", name, mean, part="apart", shape=step.shape_of(name))
    added = None if bias is None else step.read(bias)
    normed = emitter.node(
        "RMSNormalization",
        (apart, step.read(weight)),
        step.name if added is None else f"{step.name}_normed",
        step.shape,
        reach=None if added is None else _before(step, added),
        axis=-1,
        epsilon=eps,
    )
    if added is None:
        return normed
    return step.node("Add", normed, step.widened(added, len(step.shape), "bias"))


FIXED: Final[Mapping[str, Emit]] = {
    **EMITTERS,
    LINEAR: _linear,
    "aten::layer_norm": _layer_norm,
}
