"""Example arguments: which leaves are dynamic, and examples long enough to trace.

torch.export takes a dynamic dimension whose example has length 1 for the constant
1, so such examples are repeated first.
"""

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from kvc.compiler.spec import Dim, Method
from kvc.schema.errors import CaptureError

Transform = Callable[[str, object], object]


def parameter_names(model: nn.Module, method: Method) -> tuple[str, ...]:
    """Return the parameters of a method in order.

    Raises:
        CaptureError: the model has no such method, or it takes *args.
    """
    function = getattr(model, method.name, None)
    if not callable(function):
        reason = f"{type(model).__name__} has no method of this name"
        raise CaptureError(method=method.name, place="", reason=reason)
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        reason = "it takes *args; name its parameters, or pass a tuple"
        raise CaptureError(method=method.name, place="", reason=reason)
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)


def map_tensors(path: str, structure: object, transform: Transform) -> object:
    """Return nested containers with `transform(path, tensor)` in place of tensors."""
    if isinstance(structure, Tensor):
        return transform(path, structure)
    if isinstance(structure, tuple | list):
        items = [
            map_tensors(f"{path}[{i}]", s, transform) for i, s in enumerate(structure)
        ]
        return type(structure)(items)
    if isinstance(structure, dict):
        return {
            k: map_tensors(f"{path}.{k}", s, transform) for k, s in structure.items()
        }
    return structure


def named_arguments(names: tuple[str, ...], method: Method) -> dict[str, object]:
    """Return the example arguments by parameter name, in calling order."""
    if len(method.args) > len(names):
        reason = f"{len(method.args)} positional examples for {len(names)} parameters"
        raise CaptureError(method=method.name, place="", reason=reason)
    return dict(zip(names, method.args, strict=False)) | dict(method.kwargs)


def check_dynamic_paths(arguments: Mapping[str, object], method: Method) -> None:
    """Check that each key of `dynamic` is a tensor's path, and each axis exists."""
    ranks: dict[str, int] = {}

    def note(path: str, tensor: object) -> object:
        assert isinstance(tensor, Tensor)
        ranks[path] = tensor.dim()
        return tensor

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    for path, axes in method.dynamic.items():
        if path not in ranks:
            reason = (
                f"dynamic names {path!r}; its tensors are {', '.join(ranks) or 'none'}"
            )
            raise CaptureError(method=method.name, place="", reason=reason)
        for axis in axes:
            if not 0 <= axis < ranks[path]:
                reason = (
                    f"dynamic axis {axis} of {path!r}, which has {ranks[path]} dims"
                )
                raise CaptureError(method=method.name, place="", reason=reason)


def lengthen(arguments: Mapping[str, object], method: Method) -> dict[str, object]:
    """Return the examples with every dynamic axis of length 1 repeated.

    Axes of one Dim get one length: the longest example's, or 2 to 5, distinct for
    each Dim so that tracing does not take two sizes for one.
    """
    lengths: dict[str, int] = {}
    for rank, dim in enumerate(_dims(method)):
        lengths.setdefault(dim.name, min(dim.upper, max(dim.lower, 2 + rank)))

    def repeat(path: str, example: object) -> object:
        assert isinstance(example, Tensor)
        for axis, dim in method.dynamic.get(path, {}).items():
            if example.shape[axis] == 1:
                index = torch.zeros(lengths[dim.name], dtype=torch.int64)
                example = example.index_select(axis, index)
        return example

    def note(path: str, example: object) -> object:
        assert isinstance(example, Tensor)
        for axis, dim in method.dynamic.get(path, {}).items():
            if example.shape[axis] > 1:
                lengths[dim.name] = example.shape[axis]
        return example

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    return {n: map_tensors(n, s, repeat) for n, s in arguments.items()}


def _dims(method: Method) -> list[Dim]:
    return [dim for axes in method.dynamic.values() for dim in axes.values()]


def torch_dynamic_shapes(
    arguments: Mapping[str, object], method: Method
) -> dict[str, object]:
    """Return `dynamic_shapes` for torch.export, one entry an argument."""
    dims = {
        d.name: torch.export.Dim(d.name, min=d.lower, max=d.upper)
        for d in _dims(method)
    }

    def shape(path: str, _: object) -> object:
        axes = method.dynamic.get(path, {})
        return {
            axis: dims[dim.name] for axis, dim in axes.items() if dim.lower < dim.upper
        }

    def static(structure: object) -> object:
        """Replace constants by None, as torch.export wants for them."""
        if isinstance(structure, tuple | list):
            return type(structure)(static(s) for s in structure)
        if isinstance(structure, dict) and not all(
            isinstance(k, int) for k in structure
        ):
            return {k: static(s) for k, s in structure.items()}
        return structure if isinstance(structure, dict) else None

    return {n: static(map_tensors(n, s, shape)) for n, s in arguments.items()}
