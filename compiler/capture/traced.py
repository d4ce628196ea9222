"""What is traced of a method: its arguments, and what tracing makes inputs besides.

In: the declared method, its arguments, the lifted buffers. Out: the same method with
the dims of everything that is dynamic, and the examples for all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from kvc.compiler.capture import examples
from kvc.compiler.capture.lifted import PARAMETER, Lifted, examples_of, paths_of
from kvc.compiler.spec import Dim, Method
from kvc.schema.errors import CaptureError


def traced_method(
    model: nn.Module, method: Method, lifted: Sequence[Lifted]
) -> tuple[Method, dict[str, object]]:
    """Return a method as it is traced, and its examples by parameter name.

    `dynamic` of the method returned has the lifted buffers too, and sizes that an
    argument that is carried may have before the first call.

    Raises:
        CaptureError: the model has no such method, or its examples do not fit.
    """
    names = examples.parameter_names(model, method)
    arguments = examples.named_arguments(names, method)
    carried = replace(method, dynamic=_from_nothing(arguments, method))
    examples.check_dynamic(arguments, carried)
    if not lifted:
        return carried, examples.lengthen(arguments, carried)
    if PARAMETER in names:
        reason = f"the name of its parameter {PARAMETER!r} is taken; rename it"
        raise CaptureError(method=method.name, place="", reason=reason)
    traced = replace(carried, dynamic={**carried.dynamic, **paths_of(lifted)})
    inputs = {**arguments, PARAMETER: examples_of(model, lifted)}
    examples.check_dynamic(inputs, traced)
    return traced, examples.lengthen(inputs, traced)


def _from_nothing(
    arguments: Mapping[str, object], method: Method
) -> dict[str, Mapping[int, Dim]]:
    """Return `dynamic` with what only carried arguments have from size 0 on.

    The first call starts from nothing, whatever the user thought of.
    """
    carried = {
        path
        for path in examples.tensor_paths(arguments)
        if any(examples.beneath(path, root) for root in method.carry)
    }
    elsewhere = {
        dim.name
        for path, axes in method.dynamic.items()
        for dim in axes.values()
        if path not in carried
    }
    return {
        path: {
            axis: dim if path not in carried or dim.name in elsewhere else _from_0(dim)
            for axis, dim in axes.items()
        }
        for path, axes in method.dynamic.items()
    }


def _from_0(dim: Dim) -> Dim:
    return dim if dim.lower == dim.upper else replace(dim, lower=0)


def user_arguments(inputs: Mapping[str, object]) -> dict[str, object]:
    """Return the inputs without the lifted buffers."""
    return {name: thing for name, thing in inputs.items() if name != PARAMETER}
