"""Look up rows of a table with bounded norms, without writing a model's table.

`functional.embedding(..., max_norm=)` shortens rows in the table itself before it looks
them up. In: a call of this function. Out: the rows, shortened after the lookup, which
gives the same numbers up to rounding. In torch, other readers of the table would see
shortened rows. The trace is therefore searched for other readers, which are refused.
`ingest/program.py` checks that methods shorten rows to the same bound. A table that the
method itself computes is written, as in torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.types import IntLikeType

from kvc.compiler.weights.tensor_identity import memory_of
from kvc.schema.errors import CaptureError

_SMALL = 1e-7  # torch adds this to a norm before it divides by the norm
_NEVER_SHORT = (
    "embedding(..., max_norm=) with norm_type=0 or a negative max_norm changes rows at "
    "each lookup, which a bundle does not; shorten rows before, and leave max_norm out"
)
_SAME_ROWS = (
    "embedding(..., max_norm=) of a table whose rows lie in the same memory (expand) "
    "shortens all of them at once; give it .contiguous()"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The greatest norm of the rows of a table.

    Attributes:
        most: the greatest norm that a row may have.
        norm_type: the exponent p of the p-norm.
    """

    most: float
    norm_type: float


class TablePlace(NamedTuple):
    """A tensor's memory, and the tensor's first and end offset in it, in bytes."""

    memory: object
    start: IntLikeType
    end: IntLikeType

    def meets(self, other: "TablePlace") -> bool:
        """Tell whether two tensors may have an element in common."""
        alike = self.memory == other.memory
        return alike and self.start < other.end and other.start < self.end


Lookup = tuple[Tensor, Bound]  # a traced table and its bound
_BOUNDED: ContextVar[list[Lookup] | None] = ContextVar("bounded", default=None)


@contextmanager
def noted_lookups() -> Iterator[list[Lookup]]:
    """Record the lookups in this context that shorten rows."""
    lookups: list[Lookup] = []
    token = _BOUNDED.set(lookups)
    try:
        yield lookups
    finally:
        _BOUNDED.reset(token)


def bounded_embedding(
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    """Return rows of `weight`, shortened to norms of at most `max_norm`.

    The result is None, which keeps the call, if `max_norm` is None or lookups are not
    recorded.

    Raises:
        ValueError: rows of `weight` share memory.
    """
    noted = _BOUNDED.get()
    if max_norm is None or noted is None:
        return None
    if 0 in weight.stride():
        raise ValueError(_SAME_ROWS)
    short = _shortened(functional.embedding(x, weight), max_norm, norm_type)
    if _is_computed(weight):
        weight.index_put_((x,), short)
    else:
        noted.append((weight, Bound(max_norm, norm_type)))
    return short


def embedding_renorm(
    self: Tensor, indices: Tensor, max_norm: float, norm_type: float
) -> Tensor:
    """Return a table whose rows at `indices` have norms of at most `max_norm`."""
    return self.index_put((indices,), _shortened(self[indices], max_norm, norm_type))


def _shortened(rows: Tensor, most: float, norm_type: float) -> Tensor:
    norms = torch.linalg.vector_norm(rows, norm_type, -1, keepdim=True)
    return torch.where(norms > most, rows * (most / (norms + _SMALL)), rows)


def _is_computed(tensor: Tensor) -> bool:
    """Tell whether a method computes a tensor instead of reading it from outside."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(tensor, FakeTensor):  # such as an attribute
        return False
    given = mode.tracer.graph.find_nodes(op="placeholder")
    return all(memory_of(tensor) != memory_of(node.meta.get("val")) for node in given)


def bounds_of(
    method: str, exported: ExportedProgram, lookups: Sequence[Lookup]
) -> Mapping[TablePlace, Bound]:
    """Return place in memory -> bound, for tables whose rows a method shortens.

    Raises:
        CaptureError: other code reads such a table, such a table is an argument of the
            method, or its rows would change with each call.
    """
    found: dict[TablePlace, Bound] = {}
    given, attributes = exported.graph_signature.user_inputs, _attributes(exported)
    for node in exported.graph.find_nodes(op="placeholder"):
        value = attributes.get(node.name, node.meta.get("val"))
        if not isinstance(value, Tensor):
            continue
        near = [each for each in lookups if memory_of(each[0]) == memory_of(value)]
        if near and node.name in given:
            raise other_reads(method)
        own = [bound for table, bound in near if _place(table).meets(_place(value))]
        if not own:
            continue
        if not _reads(node) == len(own) == len(node.users) or len({*own}) > 1:
            raise other_reads(method)
        if own[0].norm_type == 0 or own[0].most < 0:
            raise CaptureError(method=method, place="", reason=_NEVER_SHORT)
        tensors = {**exported.state_dict, **exported.constants}
        places = places_read(exported.graph, exported.graph_signature, tensors)
        found[places[node.name]] = own[0]
    return found


def _attributes(exported: ExportedProgram) -> Mapping[str, Tensor]:
    """Return node name -> tensor, for tensors that are not parameters or buffers."""
    return {
        spec.arg.name: constant
        for spec in exported.graph_signature.input_specs
        if isinstance(constant := exported.constants.get(spec.target or ""), Tensor)
    }


def places_read(
    graph: fx.Graph, signature: ExportGraphSignature, tensors: Mapping[str, object]
) -> Mapping[str, TablePlace]:
    """Return node name -> place in memory, for tensors of a model that a method reads.

    Args:
        graph: the trace.
        signature: what its inputs stand for.
        tensors: the tensors by name.
    """
    used = {n.name for n in graph.find_nodes(op="placeholder") if n.users}
    return {
        spec.arg.name: _place(tensor)
        for spec in signature.input_specs
        if isinstance(tensor := tensors.get(spec.target or ""), Tensor)
        and spec.arg.name in used
    }


def _place(tensor: Tensor) -> TablePlace:
    start = tensor.storage_offset() * tensor.itemsize
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((count - 1) * step for count, step in steps)
    return TablePlace(memory_of(tensor), start, start + (last + 1) * tensor.itemsize)


def other_reads(method: str) -> CaptureError:
    """Return the error for a table with shortened rows that other code reads too."""
    reason = (
        "a table that embedding(..., max_norm=) shortens in place is read by other "
        "code too, or with another bound, or is given by the caller; shorten its rows "
        "before, and leave max_norm out"
    )
    return CaptureError(method=method, place="", reason=reason)


def _reads(node: fx.Node) -> int:
    return sum(user.target is torch.ops.aten.embedding.default for user in node.users)
