"""Remove complex numbers: nodes that read real and imaginary parts read real tensors.

In: an exported graph after decompositions, in which `aten.complex` puts real and
imaginary parts together and `view_as_real` separates them again. Out: the same graph
without complex numbers; a complex constant is read as its real view [..., 2]. A
remaining complex tensor is refused: an input, a result, a state, or an operator without
a rule.
"""

from collections.abc import Set

import torch
from torch import Tensor, fx

from kvc.compiler.decompose.fourier import MOST_LENGTH
from kvc.compiler.functional import FunctionalProgram
from kvc.compiler.trace.sources import at_source_of
from kvc.schema.errors import CaptureError

_aten = torch.ops.aten
_FOURIER = (_aten._fft_r2c.default, _aten._fft_c2c.default)


def without_complex(method: str, exported: FunctionalProgram) -> None:
    """Remove complex numbers from a graph.

    Raises:
        CaptureError: complex numbers remain; the error names the line that makes them.
    """
    signature = exported.graph_signature
    constants = {*signature.inputs_to_buffers, *signature.inputs_to_parameters}
    constants |= {*signature.inputs_to_lifted_tensor_constants}
    changed = {*signature.buffers_to_mutate.values()}
    kept = {n for n in constants if signature.inputs_to_buffers.get(n) not in changed}
    graph = exported.graph_module.graph
    for node in list(graph.nodes):
        if node.target is _aten.view_as_real.default:
            _read_parts(node, kept)
    for node in reversed(list(graph.nodes)):
        if _is_complex(node) and node.op == "call_function" and not node.users:
            graph.erase_node(node)
    unread = {node.name for node in graph.nodes if not node.users} & constants
    _refuse_rest(method, exported.graph_module, unread)


def _read_parts(node: fx.Node, constants: set[str]) -> None:
    """Compute a real view of a complex tensor, and its parts, without complex numbers.

    Nodes keep their names, since results are identified by them.
    """
    (whole,) = node.args
    assert isinstance(whole, fx.Node)
    if whole.op == "placeholder" and whole.name in constants:
        whole.meta = {**whole.meta, "val": node.meta["val"]}
        _become(node, _aten.alias.default, whole)
        return
    if whole.target is not _aten.complex.default:
        return
    parts = list(whole.args)
    last = node.meta["val"].dim() - 1
    for user in list(node.users):
        if user.target is _aten.select.int and user.args[1] in (-1, last):
            place = user.args[2]
            assert isinstance(place, int)
            _become(user, _aten.alias.default, parts[place])
    _become(node, _aten.stack.default, parts, -1)


def _become(node: fx.Node, target: torch._ops.OpOverload, *args: object) -> None:
    node.target, node.args, node.kwargs = target, args, {}  # type: ignore[assignment]  # nodes and numbers


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(each, Tensor) and each.is_complex() for each in values)


def _refuse_rest(method: str, module: fx.GraphModule, unread: Set[str]) -> None:
    """Raise an error for the first complex number in a graph or in its bodies.

    Args:
        method: the name of the method.
        module: the graph.
        unread: the names of the model's tensors that the graph does not read.
    """
    for node in module.graph.nodes:
        if _is_complex(node) and node.name not in unread:
            raise CaptureError(
                method=method, place=at_source_of(node.meta), reason=_why(node)
            )
    for body in module.children():
        if isinstance(body, fx.GraphModule):
            _refuse_rest(method, body, frozenset())


def _why(node: fx.Node) -> str:
    """Say why a node's complex numbers cannot be replaced by real ones."""
    real = "a bundle has real numbers only"
    if node.op == "placeholder":
        return (
            f"{node.name!r} is an input or a state of complex numbers, and {real}; "
            "take its real view [..., 2], and torch.view_as_complex of it in the code"
        )
    if any(user.op == "output" for user in node.users):
        return (
            f"it returns or keeps complex numbers, and {real}; "
            "return torch.view_as_real of them"
        )
    if node.target in _FOURIER:
        return (
            f"it computes a Fourier transform other than of a fixed length of at most "
            f"{MOST_LENGTH}, and {real}; cut or pad its input"
        )
    user = next((one for one in node.users if one.op == "call_function"), node)
    blamed = user if node.target is _aten.complex.default else node
    return (
        f"it computes {blamed.target} of complex numbers, and {real}; "
        "compute it of their real and imaginary parts"
    )
