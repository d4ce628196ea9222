"""Trace data classes and named tuples as plain containers, hidden from user code.

torch.export supports a data class only if it is registered with torch, and a
registration is permanent. So arguments are traced as dicts of their fields, and the
user's objects are rebuilt inside the traced call. Results are returned from the call as
`Typed`, a class that is registered with torch. The caller's instances are not changed.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from kvc.compiler.request.spec import Method
from kvc.compiler.trace.examples import named_arguments
from kvc.compiler.trace.sources import definition_of
from kvc.schema.errors import CaptureError
from kvc.schema.records import DATACLASS, MAPPING, RecordType, record_type, values_of
from kvc.schema.trees import member

_NOTHING = object()
_CONSTANTS = (bool, int, float, str, type(None))
# Symbolic numbers, which are refused at the import into the IR.
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_KINDS = "tensors, constants, and tuples, lists, dicts, named tuples and data classes"


@dataclass(frozen=True, slots=True)
class Typed:
    """The fields of a data class or named tuple in the results of a traced call."""

    type: RecordType
    values: tuple[object, ...]


def _typed(values: object, kind: RecordType) -> Typed:
    assert isinstance(values, list | tuple)
    return Typed(kind, tuple(values))


register_pytree_node(
    Typed,
    lambda typed: (list(typed.values), typed.type),
    _typed,
    serialized_type_name="kvc.Typed",
)


def plain(path: str, structure: object) -> object:
    """Convert an argument for the trace: data classes to dicts, arrays to tensors.

    Raises:
        Unknown: a part of the argument is neither tensor, constant nor container.
    """
    kind = record_type(structure)
    if kind is not None:
        pairs = zip(kind.fields, values_of(structure, kind), strict=True)
        return {name: plain(f"{path}.{name}", value) for name, value in pairs}
    if isinstance(structure, tuple | list):
        items = [plain(f"{path}[{i}]", s) for i, s in enumerate(structure)]
        return items if isinstance(structure, list) else tuple(items)
    if isinstance(structure, dict):
        return {k: plain(member(path, k), s) for k, s in structure.items()}
    if isinstance(structure, np.ndarray):
        return _tensor(path, structure)
    if isinstance(structure, _CONSTANTS) or _is_dense(structure):
        return structure
    raise Unknown(path, structure)


def _is_dense(thing: object) -> bool:
    """Tell whether an object is a dense tensor, the only kind that kvc supports."""
    if not isinstance(thing, Tensor) or thing.is_quantized or thing.is_nested:
        return False
    return thing.layout is torch.strided


def plain_arguments(
    arguments: Mapping[str, object], method: Method
) -> dict[str, object]:
    """Convert all arguments of a method for the trace.

    Raises:
        CaptureError: an argument is neither tensor, constant nor container of these.
    """
    try:
        return {name: plain(name, thing) for name, thing in arguments.items()}
    except Unknown as error:
        reason = f"the argument {error}; a method can take {_KINDS} of these"
        raise CaptureError(method=method.name, place="", reason=reason) from error


def _tensor(path: str, array: np.ndarray) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except TypeError as error:
        raise Unknown(path, array) from error


class Unknown(Exception):
    """An argument or result contains an unsupported type; the error's text names it."""

    def __init__(self, path: str, thing: object) -> None:
        name = f"{type(thing).__module__}.{type(thing).__qualname__}"
        if isinstance(thing, np.ndarray):
            name = f"numpy array of dtype {thing.dtype}"
        if isinstance(thing, Tensor):
            name = "tensor, but sparse, nested or quantized"
        super().__init__(f"{path} is of type {name.removeprefix('builtins.')}")


def rebuilt(example: object, given: object) -> object:
    """Rebuild an argument for the user's code from its traced form.

    Args:
        example: the user's example, which gives the types.
        given: the traced form of the argument, as `plain` returns it.
    """
    kind = record_type(example)
    if kind is not None and isinstance(given, dict):
        pairs = zip(values_of(example, kind), given.values(), strict=True)
        return _with_values(example, kind, [rebuilt(old, new) for old, new in pairs])
    if isinstance(example, tuple | list) and isinstance(given, tuple | list):
        items = [rebuilt(a, b) for a, b in zip(example, given, strict=True)]
        return items if isinstance(example, list) else tuple(items)
    if isinstance(example, dict) and isinstance(given, dict):
        own = copy.copy(example)
        own.update({key: rebuilt(example[key], given[key]) for key in given})
        return own
    return given


def _with_values(example: object, kind: RecordType, values: list[object]) -> object:
    if kind.kind == DATACLASS:
        own = copy.copy(example)  # no __init__, which may check or compute
        for name, value in zip(kind.fields, values, strict=True):
            object.__setattr__(own, name, value)
        return own
    if kind.kind == MAPPING:
        own = copy.copy(example)
        for name, value in zip(kind.fields, values, strict=True):
            own[name] = value  # type: ignore[index]
        return own
    made: Callable[..., object] = getattr(type(example), "_make", type(example))
    return made(values)


def opened(path: str, result: object) -> object:
    """Replace data classes and named tuples in a result by `Typed` containers.

    Raises:
        Unknown: a part of the result is neither tensor, constant nor container.
    """
    kind = record_type(result)
    if kind is not None:
        pairs = zip(kind.fields, values_of(result, kind), strict=True)
        return Typed(kind, tuple(opened(f"{path}.{n}", v) for n, v in pairs))
    if isinstance(result, tuple | list):
        items = [opened(f"{path}[{i}]", item) for i, item in enumerate(result)]
        return items if isinstance(result, list) else tuple(items)
    if isinstance(result, dict):
        return {key: opened(member(path, key), v) for key, v in result.items()}
    if isinstance(result, (Tensor, *_CONSTANTS, *_NUMBERS)):
        return result
    raise Unknown(path, result)


def closed(result: object) -> object:
    """Replace each `Typed` in a traced result by an instance of a generated class."""
    if isinstance(result, Typed):
        return result.type.made([closed(value) for value in result.values])
    if isinstance(result, tuple | list):
        items = [closed(item) for item in result]
        return items if isinstance(result, list) else tuple(items)
    if isinstance(result, dict):
        return {key: closed(value) for key, value in result.items()}
    return result


def typed_method(model: nn.Module, method: Method) -> Callable[..., object]:
    """Return a function that takes `plain` arguments and returns `opened` results.

    It calls the user's method with the original types.
    """
    function = getattr(model, method.name)
    examples = named_arguments(model, method)

    @functools.wraps(function)
    def typed(*args: object, **kwargs: object) -> object:
        own = {n: rebuilt(examples.get(n), thing) for n, thing in kwargs.items()}
        before = dict(_parts("", own))
        results = function(*args, **own)
        _refuse_changes(method, function, before, dict(_parts("", own)))
        try:
            return opened("its result", results)
        except Unknown as error:
            raise _refused(
                method, function, f"{error}; a method can return {_KINDS} of these"
            ) from error

    return typed


def _parts(path: str, thing: object) -> Iterator[tuple[str, object]]:
    """Yield (path, part) for an object and all parts of its containers."""
    yield path, thing
    kind = record_type(thing)
    if kind is not None:
        pairs = zip(kind.fields, values_of(thing, kind), strict=True)
        inner = [(f"{path}.{name}", value) for name, value in pairs]
    elif isinstance(thing, dict):
        inner = [(member(path, key), v) for key, v in thing.items()]
    elif isinstance(thing, tuple | list):
        inner = [(f"{path}[{i}]", item) for i, item in enumerate(thing)]
    else:
        return
    for within, part in inner:
        yield from _parts(within, part)


def _refuse_changes(
    method: Method,
    function: Callable[..., object],
    before: Mapping[str, object],
    after: Mapping[str, object],
) -> None:
    """Refuse a method that replaces an item of a container argument."""
    for path in dict.fromkeys([*before, *after]):
        if before.get(path, _NOTHING) is not after.get(path, _NOTHING):
            raise _refused(
                method,
                function,
                f"it puts something else into {path!r}, a part of an argument, which "
                "a caller would not see; return the new value, or write into the "
                "tensor that is there, with copy_",
            )


def _refused(
    method: Method, function: Callable[..., object], reason: str
) -> CaptureError:
    return CaptureError(
        method=method.name, place=definition_of(function), reason=reason
    )
