"""The inputs of a traced method: arguments, and buffers whose size is chosen later.

In: the declared method, its arguments, the lifted buffers. Out: the same method with
the Dims of all dynamic axes, and examples for all inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from kvc.compiler.request.spec import Dim, Method, StateSpec, tensors_of
from kvc.compiler.trace import examples
from kvc.compiler.trace.records import plain_arguments
from kvc.compiler.weights.tensor_identity import Identity
from kvc.schema.errors import CaptureError, CompileError, listing

# Trace buffers of open size as inputs, so that a session can choose their size.


PARAMETER = "kvc_states"  # the traced method's parameter for lifted buffers, a tuple


@dataclass(frozen=True, slots=True)
class Lifted:
    """A buffer that is traced as an input.

    Attributes:
        names: all names of the buffer in the model.
        axes: axis -> Dim, for the axes whose size is chosen later.
        pattern: the name in the `StateSpec` that matches the buffer.
        given: whether a session sets the content, and methods only read it.
    """

    names: tuple[str, ...]
    axes: Mapping[int, Dim]
    pattern: str
    given: bool = False

    @property
    def name(self) -> str:
        """Return the buffer's name that messages use."""
        return self.names[0]


def lifted_buffers(model: nn.Module, specs: Sequence[StateSpec]) -> tuple[Lifted, ...]:
    """Return the buffers that specs match, in the order of the model.

    Raises:
        CompileError: a spec matches no buffer, two specs match one buffer, or an axis
            or a size of a buffer does not fit the spec.
    """
    buffers = dict(model.named_buffers(remove_duplicate=False))
    names: dict[Identity, list[str]] = {}
    for name, buffer in buffers.items():
        names.setdefault(Identity.of(buffer), []).append(name)
    for spec in specs:
        _check_matches(model, spec, buffers)
    lifted = []
    for same in names.values():
        matching = [spec for spec in specs if _matches(spec, same)]
        if len(matching) > 1:
            both = " and ".join(repr(spec.name) for spec in matching[:2])
            raise CompileError(message=f"StateSpecs {both} match the buffer {same[0]}")
        for spec in matching:
            axes = _axes(spec, same[0], buffers[same[0]])
            lifted.append(Lifted(tuple(same), axes, spec.name, spec.given))
    return tuple(lifted)


def _matches(spec: StateSpec, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, spec.name) for name in names)


def _check_matches(
    model: nn.Module, spec: StateSpec, buffers: Mapping[str, Tensor]
) -> None:
    if _matches(spec, list(buffers)):
        return
    others = [name for name in tensors_of(model) if _matches(spec, [name])]
    what = f"matches the parameter {others[0]}, and" if others else "matches no buffer;"
    known = listing(list(buffers))
    message = f"StateSpec {spec.name!r} {what} only buffers can be sized; they are: "
    raise CompileError(message=message + known)


def _axes(spec: StateSpec, name: str, buffer: Tensor) -> dict[int, Dim]:
    """Return axis -> Dim, for the axes of a buffer whose size is chosen later."""
    rank = buffer.dim()
    axes: dict[int, Dim] = {}
    if spec.batch is not None:
        axes[0] = spec.batch
    if spec.axis is not None and spec.capacity is not None:
        axes[spec.axis + rank if spec.axis < 0 else spec.axis] = spec.capacity
    for axis, dim in axes.items():
        if not 0 <= axis < rank:
            raise _unfit(spec, name, f"it has {rank} dims, the spec names axis {axis}")
        size = buffer.shape[axis]
        if size != 1 and not dim.lower <= size <= dim.upper:
            raise _unfit(
                spec,
                name,
                f"it has size {size} along axis {axis}, with which it is traced, but "
                f"Dim {dim.name} is {dim.lower}..{dim.upper}",
            )
    if len(axes) < (spec.batch is not None) + (spec.axis is not None):
        raise _unfit(spec, name, "axis 0 cannot be both capacity and batch")
    return axes


def _unfit(spec: StateSpec, name: str, reason: str) -> CompileError:
    return CompileError(message=f"StateSpec {spec.name!r}, buffer {name}: {reason}")


def examples_of(model: nn.Module, lifted: Sequence[Lifted]) -> tuple[Tensor, ...]:
    """Return an example for each buffer, on the meta device: only shapes matter."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    found = [buffers[one.name] for one in lifted]
    return tuple(torch.empty(b.shape, dtype=b.dtype, device="meta") for b in found)


def paths_of(lifted: Sequence[Lifted]) -> dict[str, Mapping[int, Dim]]:
    """Return path of a buffer among the inputs -> axis -> Dim, for each buffer."""
    return {f"{PARAMETER}[{i}]": one.axes for i, one in enumerate(lifted)}


class Reassigned(Exception):
    """Code assigned a new tensor to a lifted buffer; the error's text is the name."""


@contextmanager
def swapped(
    model: nn.Module, lifted: Sequence[Lifted], traced: Sequence[Tensor]
) -> Iterator[None]:
    """Put traced tensors in the place of the module's buffers.

    Raises:
        Reassigned: within the context, a different tensor was assigned to a buffer;
            tracing would drop that assignment.
    """
    places = [
        (model.get_submodule(owner)._buffers, leaf, tensor)
        for one, tensor in zip(lifted, traced, strict=True)
        for owner, _, leaf in (name.rpartition(".") for name in one.names)
    ]
    before = [buffers[leaf] for buffers, leaf, _ in places]
    names = [name for one in lifted for name in one.names]
    for buffers, leaf, tensor in places:
        buffers[leaf] = tensor
    try:
        yield
        for name, (buffers, leaf, tensor) in zip(names, places, strict=True):
            if buffers.get(leaf) is not tensor:
                raise Reassigned(name)
    finally:
        for (buffers, leaf, _), buffer in zip(places, before, strict=True):
            buffers[leaf] = buffer


# Collect the inputs of a traced method.


@dataclass(frozen=True, slots=True)
class Traced:
    """A method and its inputs, prepared for tracing.

    Attributes:
        method: the method. Its `dynamic` axes include those of the lifted buffers, and
            have the lower bound 0 for carried arguments.
        inputs: examples by parameter name, the lifted buffers last.
        lifted: the buffers that are traced as inputs.
        lengthened: Dim name -> size in the trace, for Dims whose examples were too
            short.
    """

    method: Method
    inputs: Mapping[str, object]
    lifted: tuple[Lifted, ...]
    lengthened: Mapping[str, int]

    @property
    def arguments(self) -> dict[str, object]:
        """Return parameter name -> input, for the inputs that the user passes."""
        return {n: thing for n, thing in self.inputs.items() if n != PARAMETER}


def traced_method(
    model: nn.Module, method: Method, lifted: tuple[Lifted, ...]
) -> Traced:
    """Prepare a method for tracing.

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
    """Return the method's `dynamic`, with lower bound 0 for Dims of carried arguments.

    Dims that other arguments also have keep their bound. The first call starts with an
    empty carried argument, whatever lower bound the user declared.
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
