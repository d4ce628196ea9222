"""Prepare example arguments: find the dynamic tensors, and lengthen short examples.

torch.export treats a dynamic dimension whose example has length 0 or 1 as that
constant, so such examples are lengthened first.
"""

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from kvc.compiler.request.spec import Dim, Method
from kvc.schema.errors import CaptureError, listing
from kvc.schema.trees import flatten, member

Transform = Callable[[str, Tensor], object]


def parameter_names(model: nn.Module, method: Method) -> tuple[str, ...]:
    """Return the names of a method's parameters, in order.

    Raises:
        CaptureError: the model has no such method, or the method takes *args.
    """
    function = getattr(model, method.name, None)
    if not callable(function):
        reason = f"{type(model).__name__} has no method of this name"
        raise _refused(method, f"{reason}; it has {listing(_methods(model))}")
    parameters = _parameters(model, method)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        reason = "it takes *args; name its parameters, or pass a tuple"
        raise CaptureError(method=method.name, place="", reason=reason)
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)


def _methods(model: nn.Module) -> list[str]:
    """Return the names of the methods that the user's classes add to nn.Module."""
    own = [kind for kind in type(model).__mro__ if not issubclass(nn.Module, kind)]
    names = {n for kind in own for n, value in vars(kind).items() if callable(value)}
    return sorted(name for name in names if not name.startswith("_"))


def map_tensors(path: str, structure: object, transform: Transform) -> object:
    """Return nested containers with `transform(path, tensor)` in place of tensors."""
    if isinstance(structure, Tensor):
        return transform(path, structure)
    if isinstance(structure, tuple | list):
        items = [
            map_tensors(f"{path}[{i}]", s, transform) for i, s in enumerate(structure)
        ]
        return items if isinstance(structure, list) else tuple(items)
    if isinstance(structure, dict):
        return {
            k: map_tensors(member(path, k), s, transform) for k, s in structure.items()
        }
    return structure


def named_arguments(model: nn.Module, method: Method) -> dict[str, object]:
    """Return the example arguments by parameter name, in the order of parameters.

    Raises:
        CaptureError: there is not one example for each parameter without a default.
    """
    names = parameter_names(model, method)
    # Check that examples are for parameters, and at most one for each.
    known = f"its parameters are {listing(names)}"
    if len(method.args) > len(names):
        raise _refused(method, f"args has {len(method.args)} examples; {known}")
    for name in method.kwargs:
        if name in names[: len(method.args)]:
            raise _refused(method, f"{name!r} is given in args and in kwargs")
        if name not in names:
            free = [
                p.name for p in _parameters(model, method) if p.kind is p.VAR_KEYWORD
            ]
            advice = (
                f"; name what it takes as **{free[0]}, or pass a dict" if free else ""
            )
            raise _refused(method, f"kwargs has {name!r}; {known}{advice}")
    given = dict(zip(names, method.args, strict=False)) | dict(method.kwargs)
    for one in _parameters(model, method):
        if one.name in names and one.name not in given and one.default is one.empty:
            reason = f"there is no example for its parameter {one.name!r}"
            raise _refused(method, f"{reason}; give one in args or kwargs")
    return {name: given[name] for name in names if name in given}


def _parameters(model: nn.Module, method: Method) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(getattr(model, method.name)).parameters.values())


def constant_defaults(model: nn.Module, method: Method) -> dict[str, object]:
    """Return parameter name -> default, for defaults that contain no tensor."""
    parameters = _parameters(model, method)
    return {p.name: p.default for p in parameters if _is_constant(p.default)}


def _is_constant(default: object) -> bool:
    try:
        return not flatten(default, lambda _: False)[0]
    except ValueError:
        return False


def check_dynamic(arguments: Mapping[str, object], method: Method) -> None:
    """Check that the paths and axes in `dynamic` exist, and that Dims fit the examples.

    Raises:
        CaptureError: a path, an axis or a Dim is wrong; the error names it.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def note(path: str, example: Tensor) -> Tensor:
        shapes[path] = tuple(example.shape)
        return example

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    seen: dict[str, tuple[Dim, int]] = {}
    for path, axes in method.dynamic.items():
        if path not in shapes:
            known = ", ".join(shapes) or "none"
            raise _refused(method, f"dynamic names {path!r}; its tensors are {known}")
        for axis, dim in axes.items():
            _check_axis(method, path, shapes[path], axis, dim)
            _check_same_dim(method, dim, shapes[path][axis], seen)


def _check_axis(
    method: Method, path: str, shape: tuple[int, ...], axis: int, dim: Dim
) -> None:
    if not 0 <= axis < len(shape):
        reason = f"dynamic axis {axis} of {path!r}, which has {len(shape)} dims"
        reason += "; axes count from 0" if axis < 0 else ""
        raise _refused(method, reason)
    if shape[axis] != 1 and not dim.lower <= shape[axis] <= dim.upper:
        raise _refused(
            method,
            f"the example of {path!r} has size {shape[axis]} along axis {axis}, "
            f"but Dim {dim.name} is {dim.lower}..{dim.upper}",
        )


def _check_same_dim(
    method: Method, dim: Dim, size: int, seen: dict[str, tuple[Dim, int]]
) -> None:
    """Check that one name means one Dim, and that its examples have one size.

    Sizes 0 and 1 are not compared, since such examples are lengthened.
    """
    before, other = seen.get(dim.name, (dim, 1))
    if before != dim:
        raise _refused(
            method,
            f"Dim {dim.name} is declared {before.lower}..{before.upper} and "
            f"{dim.lower}..{dim.upper}",
        )
    if min(size, other) > 1 and size != other:
        raise _refused(
            method, f"the examples give Dim {dim.name} the sizes {other} and {size}"
        )
    seen[dim.name] = (dim, max(size, other))


def _refused(method: Method, reason: str) -> CaptureError:
    return CaptureError(method=method.name, place="", reason=reason)


def lengthen(arguments: Mapping[str, object], method: Method) -> dict[str, object]:
    """Return the examples with every dynamic axis of length 0 or 1 made longer.

    Axes of the same Dim get the same length: that of a longer example, or 2 if the
    bounds allow 2. Examples are cloned, because torch merges two arguments that are one
    tensor, and merges an argument with a buffer over the same memory. Examples on the
    meta device become uninitialized memory that is never read.
    """
    lengths = _lengths(arguments, method)

    def lengthened(path: str, example: Tensor) -> Tensor:
        axes = method.dynamic.get(path, {})
        if example.is_meta:
            shape = list(example.shape)
            for axis, dim in axes.items():
                shape[axis] = lengths[dim.name] if shape[axis] < 2 else shape[axis]
            return torch.empty(shape, dtype=example.dtype)
        changed = example
        for axis, dim in axes.items():
            if example.shape[axis] < 2:
                changed = _repeated(changed, axis, lengths[dim.name])
        return changed.detach().clone()

    return {n: map_tensors(n, s, lengthened) for n, s in arguments.items()}


def lengthened_dims(arguments: Mapping[str, object], method: Method) -> dict[str, int]:
    """Return Dim name -> size in the trace, for Dims whose examples are lengthened."""
    lengths = _lengths(arguments, method)
    found: dict[str, int] = {}

    def note(path: str, example: Tensor) -> Tensor:
        for axis, dim in method.dynamic.get(path, {}).items():
            if example.shape[axis] != lengths[dim.name] and example.shape[axis] < 2:
                found[dim.name] = lengths[dim.name]
        return example

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    return found


def _lengths(arguments: Mapping[str, object], method: Method) -> dict[str, int]:
    """Return Dim name -> length that the Dim's axes have in the trace."""
    lengths = {d.name: min(d.upper, max(d.lower, 2)) for d in _dims(method)}

    def note(path: str, example: Tensor) -> Tensor:
        for axis, dim in method.dynamic.get(path, {}).items():
            if example.shape[axis] > 1:
                lengths[dim.name] = example.shape[axis]
        return example

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    return lengths


def _repeated(example: Tensor, axis: int, length: int) -> Tensor:
    """Return an example whose axis of size 0 or 1 is lengthened to `length`."""
    if example.shape[axis] == 0:
        shape = list(example.shape)
        shape[axis] = length
        return example.new_zeros(shape)
    return example.index_select(axis, torch.zeros(length, dtype=torch.int64))


def tensor_paths(arguments: Mapping[str, object]) -> tuple[str, ...]:
    """Return the path of every tensor among the arguments, in order."""
    paths: list[str] = []

    def note(path: str, example: Tensor) -> Tensor:
        paths.append(path)
        return example

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    return tuple(paths)


def beneath(path: str, root: str) -> bool:
    """Tell whether `path` equals `root`, or lies in the container at `root`."""
    return path == root or path.startswith((f"{root}[", f"{root}."))


def _dims(method: Method) -> list[Dim]:
    return [dim for axes in method.dynamic.values() for dim in axes.values()]


def torch_dynamic_shapes(
    arguments: Mapping[str, object], method: Method
) -> dict[str, object]:
    """Return `dynamic_shapes` for torch.export, with one entry for each argument."""
    dims = {
        d.name: torch.export.Dim(d.name, min=d.lower, max=d.upper)
        for d in _dims(method)
        if d.lower < d.upper
    }

    def shape(path: str, _: Tensor) -> object:
        axes = method.dynamic.get(path, {})
        return {a: dims[dim.name] for a, dim in axes.items() if dim.name in dims}

    def static(structure: object) -> object:
        """Replace constants by None, as torch.export requires."""
        if isinstance(structure, tuple | list):
            items = [static(s) for s in structure]
            return items if isinstance(structure, list) else tuple(items)
        if isinstance(structure, dict) and not all(
            isinstance(k, int) for k in structure
        ):
            return {k: static(s) for k, s in structure.items()}
        return structure if isinstance(structure, dict) else None

    return {n: static(map_tensors(n, s, shape)) for n, s in arguments.items()}


def names_of_sizes(method: Method, traced: Mapping[str, object]) -> dict[str, str]:
    """Return torch's name of a size -> Dim name, for sizes of traced inputs.

    Args:
        method: the method as the user declared it.
        traced: the method's inputs while it is traced, by parameter name.
    """
    found: dict[str, str] = {}

    def note(path: str, tensor: Tensor) -> Tensor:
        for axis, dim in method.dynamic.get(path, {}).items():
            size: object = tensor.shape[axis] if axis < tensor.dim() else None
            if isinstance(size, torch.SymInt):
                found[str(size.node.expr)] = dim.name
        return tensor

    for name, structure in traced.items():
        map_tensors(name, structure, note)
    return found
