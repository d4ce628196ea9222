"""Look up rows of a table whose norms are bounded, without writing the table.

`functional.embedding(..., max_norm=)` shortens rows in the table itself before it looks
them up. In: such a call. Out: the rows, shortened after they are looked up, which are
the same numbers. What else reads the table would see other rows in torch; that is found
in the trace and refused.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from kvc.compiler.capture.registered import memory
from kvc.schema.errors import CaptureError

_SMALL = 1e-7  # what torch adds to a norm before it divides by it
_BOUNDED: ContextVar[list[Tensor] | None] = ContextVar("bounded", default=None)


@contextmanager
def noted_tables() -> Iterator[list[Tensor]]:
    """Note the tables whose rows are shortened, one entry for each lookup."""
    tables: list[Tensor] = []
    token = _BOUNDED.set(tables)
    try:
        yield tables
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
    """Return rows of `weight`, none longer than `max_norm`; None where it is None."""
    noted = _BOUNDED.get()
    if max_norm is None or noted is None:
        return None
    noted.append(weight)
    rows = functional.embedding(x, weight)
    norms = torch.linalg.vector_norm(rows, norm_type, -1, keepdim=True)
    return torch.where(norms > max_norm, rows * (max_norm / (norms + _SMALL)), rows)


def refuse_other_reads(
    method: str, exported: ExportedProgram, tables: list[Tensor]
) -> None:
    """Check that nothing but such lookups reads a table of theirs.

    Raises:
        CaptureError: something else does, which torch gives shortened rows; or it is
            an argument of the method.
    """
    lookups = Counter(map(memory, tables))
    given = exported.graph_signature.user_inputs
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        wanted = lookups.get(memory(value), 0) if isinstance(value, Tensor) else 0
        alone = _reads(node) == wanted == len(node.users) and node.name not in given
        if wanted and not alone:
            reason = (
                "a table that embedding(..., max_norm=) shortens in place is read by "
                "other code too, or is given by the caller; shorten its rows before, "
                "and leave max_norm out"
            )
            raise CaptureError(method=method, place="", reason=reason)


def _reads(node: fx.Node) -> int:
    return sum(user.target is torch.ops.aten.embedding.default for user in node.users)
