"""Paths and nesting of the arguments and results of one traced method.

In: a captured method. Out: the method's traced tensor arguments and results by path,
and the nesting of its arguments and results as the text of a tree. The tensors that the
session keeps are not part of these trees.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from kvc.compiler.trace import CapturedMethod
from kvc.compiler.trace.examples import (
    constant_defaults,
    named_arguments,
    parameter_names,
)
from kvc.compiler.trace.records import closed
from kvc.schema.errors import CaptureError
from kvc.schema.records import record_type, values_of
from kvc.schema.trees import Scalar, describe_call, flatten, member

# Paths into nested containers, and containers without some of their members.


GONE = object()  # replaces a container all of whose members are removed


def leaves(
    structure: object, kind: type, path: str = ""
) -> Iterator[tuple[str, object]]:
    """Yield (path, leaf) for each leaf of type `kind` in a nested structure."""
    if isinstance(structure, Scalar):
        structure = structure.leaf
    if isinstance(structure, kind):
        yield path, structure
    else:
        for within, item in _items(structure, path):
            yield from leaves(item, kind, within)


def _items(structure: object, path: str) -> Iterator[tuple[str, object]]:
    kind = record_type(structure)
    if kind is not None:
        for name, value in zip(kind.fields, values_of(structure, kind), strict=True):
            yield member(path, name), value
    elif isinstance(structure, dict):
        for key, item in structure.items():
            yield member(path, key), item
    elif isinstance(structure, tuple | list):
        for i, item in enumerate(structure):
            yield f"{path}[{i}]", item


def without(structure: object, gone: Set[str], path: str = "") -> object:
    """Return a structure without the members at the paths `gone`.

    A container that becomes empty is removed too. If the whole structure is removed,
    return GONE. The index of later items of a list or tuple decreases.
    """
    if path in gone:
        return GONE
    items = [without(item, gone, within) for within, item in _items(structure, path)]
    if not items:
        return structure
    return GONE if all(i is GONE for i in items) else _rebuilt(structure, items)


def _rebuilt(structure: object, items: list[object]) -> object:
    """Return a container of the type of `structure` with `items`, leaving out GONE."""
    kind = record_type(structure)
    if kind is not None:
        left = {
            name: item
            for name, item in zip(kind.fields, items, strict=True)
            if item is not GONE
        }
        return replace(kind, fields=tuple(left)).made(list(left.values()))
    if isinstance(structure, dict):
        pairs = zip(structure, items, strict=True)
        return {key: item for key, item in pairs if item is not GONE}
    kept = [item for item in items if item is not GONE]
    return kept if isinstance(structure, list) else tuple(kept)


def beneath(path: str, root: str) -> bool:
    """Tell whether a path equals `root`, or lies in the container at `root`."""
    return not root or path == root or path.startswith((f"{root}[", f"{root}."))


def relative(path: str, root: str) -> str:
    """Return a path relative to the path `root`."""
    return path.removeprefix(root).removeprefix(".")


# Signatures of traced methods.


class Leaf:
    """Stands for one tensor among the nested results of a method.

    This is no data class, since a data class would count as a container.

    Attributes:
        number: the index of the tensor among the results.
        tensor: the traced tensor; a tensor [] if the result is a number.
    """

    __slots__ = ("number", "tensor")

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number, self.tensor = number, tensor


@dataclass(frozen=True, slots=True)
class TracedSignature:
    """The traced tensors of a method: arguments, lifted buffers and results, in order.

    Attributes:
        arguments: path of an argument that the user passes -> traced tensor.
        buffers: the traced tensors of the buffers that were lifted to inputs.
        results: path of a result of the method -> traced tensor.
        result: the nested results, with a `Leaf` for each tensor.
    """

    arguments: Mapping[str, Tensor]
    buffers: tuple[Tensor, ...]
    results: Mapping[str, Tensor]
    result: object


def read_signature(captured: CapturedMethod) -> TracedSignature:
    """Return the signature of a traced method.

    Raises:
        CaptureError: the inputs that torch traced differ from those requested.
    """
    given = dict(leaves(captured.arguments, Tensor))
    by_name = {n.name: n for n in captured.exported.graph.nodes}
    traced = [by_name[name].meta["val"] for name in input_nodes(captured)]
    ranks = [leaf.dim() for leaf in given.values() if isinstance(leaf, Tensor)]
    ranks += [tensor.dim() for tensor in traced[len(given) :]]
    if [tensor.dim() for tensor in traced] != ranks or (
        len(traced) != len(given) + len(captured.lifted)
    ):
        reason = f"torch traced other inputs than {', '.join(given)}"
        raise CaptureError(method=captured.method.name, place="", reason=reason)
    result = _result(captured)
    results = {
        path: leaf.tensor
        for path, leaf in leaves(result, Leaf)
        if isinstance(leaf, Leaf)
    }
    arguments = dict(zip(given, traced, strict=False))
    return TracedSignature(arguments, tuple(traced[len(given) :]), results, result)


def input_nodes(captured: CapturedMethod) -> tuple[str, ...]:
    """Return the names of the tensor input nodes; those of lifted buffers are last."""
    return tuple(
        spec.arg.name
        for spec in captured.exported.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    )


def _result(captured: CapturedMethod) -> object:
    exported = captured.exported
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    parts: list[object] = []
    count = 0
    for spec in exported.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        if isinstance(spec.arg, TensorArgument):
            parts.append(Leaf(count, values[spec.arg.name]))
            count += 1
        elif isinstance(spec.arg, ConstantArgument):
            parts.append(spec.arg.value)
        elif isinstance(spec.arg, SymIntArgument | SymFloatArgument):
            whole = isinstance(spec.arg, SymIntArgument)
            kind = torch.int64 if whole else torch.float64
            parts.append(Scalar(Leaf(count, torch.zeros((), dtype=kind))))
            count += 1
        else:
            reason = "it returns a bool that differs from call to call; return a tensor"
            raise CaptureError(method=captured.method.name, place="", reason=reason)
    return closed(pytree.tree_unflatten(parts, exported.nesting))


def input_tree(model: nn.Module, captured: CapturedMethod, gone: Set[str]) -> str:
    """Return the nesting of the arguments that the caller passes, as a tree's text.

    Parameters with a constant default are in the tree with that constant.

    Args:
        model: the module of the method.
        captured: the method as captured.
        gone: paths of arguments that the caller does not pass.

    Raises:
        CaptureError: an argument is neither tensor, container nor constant.
    """
    method = captured.method
    given = constant_defaults(model, method) | named_arguments(model, method)
    left = without(given, gone)
    passed = left if isinstance(left, dict) else {}
    names = [n for n in parameter_names(model, method) if n in passed or n not in given]
    try:
        return describe_call(names, (), passed, _is_array)[0]
    except ValueError as error:
        raise _unknown_container(captured, error) from error


def _is_array(thing: object) -> bool:
    return isinstance(thing, Tensor | np.ndarray)


def output_tree(
    captured: CapturedMethod, signature: TracedSignature, gone: Set[str]
) -> str:
    """Return the nesting of the results that the caller gets, as a tree's text.

    Results at the paths `gone` are left out.

    Raises:
        CaptureError: a result is neither tensor, container nor constant.
    """
    left = without(signature.result, gone)
    returned = None if left is GONE else left
    try:
        return flatten(returned, lambda thing: isinstance(thing, Leaf))[1]
    except ValueError as error:
        raise _unknown_container(captured, error) from error


def _unknown_container(captured: CapturedMethod, error: ValueError) -> CaptureError:
    return CaptureError(method=captured.method.name, place="", reason=str(error))
