"""The inputs of a traced method: its arguments, and what tracing adds.

In: the declared method, its arguments, the lifted buffers. Out: the same method with
the dims of everything that is dynamic, and the examples for all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from kvc.compiler.request.spec import Dim, Method
from kvc.compiler.trace import examples
from kvc.compiler.trace.lifted import PARAMETER, Lifted, examples_of, paths_of
from kvc.compiler.trace.records import plain_arguments
from kvc.schema.errors import CaptureError


@dataclass(frozen=True, slots=True)
class Traced:
    """A method as it is traced.

    Attributes:
        method: `dynamic` has the lifted buffers too, and the sizes that an argument
            that is carried has before the first call.
        inputs: examples by parameter name, the lifted buffers last.
        lifted: these buffers.
        lengthened: Dim -> size in the trace, where examples were too short for it.
    """

    method: Method
    inputs: Mapping[str, object]
    lifted: tuple[Lifted, ...]
    lengthened: Mapping[str, int]

    @property
    def arguments(self) -> dict[str, object]:
        """Return the inputs that the user passes."""
        return {n: thing for n, thing in self.inputs.items() if n != PARAMETER}


def traced_method(
    model: nn.Module, method: Method, lifted: tuple[Lifted, ...]
) -> Traced:
    """Return a method as it is traced.

    Raises:
        CaptureError: the model has no such method, or its examples do not fit.
    """
    names = examples.parameter_names(model, method)
    inputs = plain_arguments(examples.named_arguments(model, method), method)
    traced = replace(method, dynamic=_from_nothing(inputs, method))
    examples.check_dynamic(inputs, traced)
    if lifted:
        if PARAMETER in names:
            reason = f"the name of its parameter {PARAMETER!r} is taken; rename it"
            raise CaptureError(method=method.name, place="", reason=reason)
        traced = replace(traced, dynamic={**traced.dynamic, **paths_of(lifted)})
        inputs = {**inputs, PARAMETER: examples_of(model, lifted)}
        examples.check_dynamic(inputs, traced)
    longer = examples.lengthened_dims(inputs, traced)
    return Traced(traced, examples.lengthen(inputs, traced), lifted, longer)


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
