"""What of torch is changed while a method is traced, and why (torch 2.13).

Here: what torch refuses or drops, though kvc can express it. Elsewhere, beside the code
that takes its place:

- `aliases`: which tensors a module registers, since some are hidden from torch;
- `bodies`: under which modes torch reads bodies, which would read the modes' code too;
- `sizes_kept`: how torch computes sizes, which it does for each tensor anew;
- `sources`: which frames it keeps of a node, some hundred where a few are of use;
- `terminal`: where Ctrl-C ends a trace, which native code does not survive.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo.variables import higher_order_ops
from torch.fx import node as fx_node
from torch.fx.experimental.symbolic_shapes import statically_known_true


@contextmanager
def writes_traced() -> Iterator[None]:
    """Let torch trace writes, and what it takes for unused, as the code has them."""
    with _writing_loops(), _overlaps_by_strides(), _unused_kept():
        yield


@contextmanager
def _writing_loops() -> Iterator[None]:
    """Let loops do what branches may: write what they capture, take memory twice."""
    scan = higher_order_ops.ScanHigherOrderVariable
    allowed = {
        "supports_input_mutation": (scan, higher_order_ops.MapHigherOrderVariable),
        "supports_aliasing": (scan, higher_order_ops.WhileLoopHigherOrderVariable),
    }
    with ExitStack() as stack:
        for name, loops in allowed.items():
            for loop in loops:
                stack.enter_context(patch.object(loop, name, True))
        yield


@contextmanager
def _overlaps_by_strides() -> Iterator[None]:
    """Let torch tell from strides alone whether a written tensor overlaps itself.

    Otherwise torch asks whether the tensor is contiguous. `cache[:, :count]` is
    contiguous only if `count` is the size of the axis, so the trace would be refused
    for this count or for all other counts.
    """
    with patch.object(torch, "_debug_has_internal_overlap", _overlap):
        yield


def _overlap(tensor: Tensor) -> int:
    """Return torch's code for a tensor's memory.

    The code is 1 if elements of the tensor share memory, and 2 if that is unknown.
    """
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    known = statically_known_true
    repeated = (known(step == 0) and not known(size == 1) for size, step in pairs)
    return 1 if any(repeated) else 2


@contextmanager
def _unused_kept() -> Iterator[None]:
    """Keep torch from dropping unused nodes that have an effect.

    Otherwise torch drops unused cache updates, which are refused, and norms in training
    mode from bodies, and drops checks without a message from methods and bodies.
    """
    kept = fx_node._side_effectful_functions
    update, check = torch.ops.kvc.cache_update, torch.ops.aten._assert_async.default
    norms = torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default
    every = update, update.default, check, *norms
    added = [one for one in every if one not in kept]
    kept.update(added)
    try:
        yield
    finally:
        kept.difference_update(added)
