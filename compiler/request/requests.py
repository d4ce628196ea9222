"""Check the request to compile, before anything is traced.

In: the arguments of `compile_program`. Out: nothing, or an error that names the wrong
argument. Later stages check whether the arguments fit the model's code.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import parameter

from kvc.compiler.request.spec import Dim, Method, ModelSpec, StateSpec, tensors_of
from kvc.schema.errors import CompileError
from kvc.schema.roles import ROLES, SINGLE_ROLES

_WITHOUT_SHAPE: Final = parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
_DYNAMIC: Final = 'a mapping such as {"x": {1: Dim("seq", 1, 8)}}'
_SPEC: Final = (
    "a ModelSpec; pass its fields: compile_program(spec.model, spec.methods, "
    "states=spec.states, metadata=spec.metadata, files=spec.files)"
)
_CARRY: Final = 'a mapping such as {"past": "present"}'


def check_request(model: object, methods: object, states: object = ()) -> None:
    """Check the arguments of a compilation, without looking at the model's code.

    Raises:
        CompileError: an argument is wrong; the error has what was expected and what was
            found.
    """
    if isinstance(model, ModelSpec):
        raise _unexpected("the model", "a torch.nn.Module", model, _SPEC)
    if not isinstance(model, nn.Module):
        raise _unexpected("the model", "a torch.nn.Module", model)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            found = f"{path or 'it'} is compiled by torch.jit"
            raise _unexpected("the model", "modules of Python", module, found)
    for name, tensor in tensors_of(model).items():
        if isinstance(tensor, _WITHOUT_SHAPE):
            found = f"{name} has no shape yet; call the model once to give it one"
            raise _unexpected("the model", "tensors with shapes", tensor, found)
        if tensor.layout is not torch.strided or tensor.is_quantized:
            found = f"{name} is sparse or quantized; call to_dense() or dequantize()"
            raise _unexpected("the model", "dense tensors", tensor, found)
    _check_items("methods", methods, Method)
    _check_items("states", states, StateSpec)
    assert isinstance(methods, Sequence)  # of Method, as checked above
    if not methods:
        raise CompileError(message="no methods to compile")
    for method in methods:
        _check_method(method)
    _check_unique("methods", [method.name for method in methods])
    called = [method for method in methods if not method.adapts]
    # There may be several prefills, for different numbers of tokens.
    _check_unique("roles", [m.role for m in called if m.role in SINGLE_ROLES])


def check_mapping(what: str, given: object) -> None:
    """Check that an argument is a mapping or None; `what` names the argument.

    Raises:
        CompileError: the argument is neither.
    """
    if not isinstance(given, Mapping | None):
        raise _unexpected(what, "a mapping", given)


def _check_items(what: str, given: object, kind: type) -> None:
    name = f"kvc.compiler.{kind.__name__}"
    if isinstance(given, kind):
        found = f"a {kind.__name__}; give [{kind.__name__}(...)]"
        raise _unexpected(what, f"a sequence of {name}", given, found)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise _unexpected(what, f"a sequence of {name}", given)
    for index, item in enumerate(given):
        if not isinstance(item, kind):
            raise _unexpected(f"{what}[{index}]", f"a {name}", item)


def _check_method(method: Method) -> None:
    """Check the types of a method's fields, which Python does not check."""
    name: object = method.name
    if not isinstance(name, str):
        raise _unexpected("the name of a method", "text", name)
    where = f"method {name}"
    if name.startswith("__"):
        message = f"{where}: a method of Python's own cannot be called on a bundle; "
        raise CompileError(message=f"{message}compile forward, or one of another name")
    if method.role not in ROLES:
        expected = (
            "expected 'encode', 'prefill', 'decode', 'prefill_all' or '' for none"
        )
        raise CompileError(message=f"{where}, role: {expected}, found {method.role!r}")
    _check_args(f"{where}, args", method.args)
    _check_keys(f"{where}, kwargs", 'a mapping such as {"x": x}', method.kwargs)
    _check_keys(f"{where}, dynamic", _DYNAMIC, method.dynamic)
    for path, axes in method.dynamic.items():
        _check_axes(f"{where}, dynamic[{path!r}]", axes)
    _check_keys(f"{where}, carry", _CARRY, method.carry)
    position: object = method.position
    if not isinstance(position, str):
        raise _unexpected(f"{where}, position", "the name of an input", position)


def _check_args(where: str, args: object) -> None:
    """Check that examples are a tuple or list: a tensor alone would be unpacked."""
    if isinstance(args, tuple | list):
        return
    found = f"{_kind(args)}; give args=(x,) for one argument"
    if isinstance(args, Mapping):
        found = f"{_kind(args)}; give kwargs={{...}} for arguments by name"
    raise _unexpected(where, "a tuple of examples", args, found)


def _check_axes(where: str, axes: object) -> None:
    expected = 'a mapping from axes to Dims, such as {1: Dim("seq", 1, 8)}'
    if not isinstance(axes, Mapping):
        raise _unexpected(where, expected, axes)
    for axis, dim in axes.items():
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise _unexpected(f"{where}, axis {axis!r}", "a number", axis)
        if not isinstance(dim, Dim):
            found = f"{_kind(dim)} of {type(dim).__module__}"
            raise _unexpected(f"{where}[{axis}]", "a kvc.compiler.Dim", dim, found)


def _check_keys(where: str, expected: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise _unexpected(where, expected, given)
    for key in given:
        if not isinstance(key, str):
            raise _unexpected(f"{where}, key {key!r}", "text", key)


def _unexpected(
    what: str, expected: str, thing: object, found: str = ""
) -> CompileError:
    text = found or _kind(thing)
    return CompileError(message=f"{what}: expected {expected}, found {text}")


def _kind(thing: object) -> str:
    if isinstance(thing, Tensor):
        return f"a tensor of shape {list(thing.shape)}"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"a value of type {type(thing).__name__}"


def _check_unique(what: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CompileError(message=f"{what} given twice: {', '.join(twice)}")
