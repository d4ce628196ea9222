"""Refuse cache updates whose result is lost.

`kvc::cache_update` returns a new cache and changes none of its arguments, so a call
whose result nothing uses writes nothing. In: an exported method, before dead code is
removed. Out: nothing, or a `CaptureError` with the line and the remedy.
"""

import torch
from torch.export import ExportedProgram

from kvc.compiler.capture.sources import source_of
from kvc.schema.errors import CaptureError

_REASON = (
    "nothing uses what cache_update returns, and it changes none of its arguments; "
    "write it back: cache.copy_(torch.ops.kvc.cache_update(cache, ...))"
)


def refuse_lost_updates(method: str, exported: ExportedProgram) -> None:
    """Check that something uses each `kvc::cache_update` outside of control flow.

    Raises:
        CaptureError: nothing uses one.
    """
    for node in exported.graph.nodes:
        is_update = node.target == torch.ops.kvc.cache_update.default
        if is_update and not node.users:
            raise CaptureError(
                method=method, place=f" at {source_of(node.meta)}", reason=_REASON
            )
