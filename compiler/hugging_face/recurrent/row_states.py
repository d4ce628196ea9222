"""States of recurrent layers, for rows with different numbers of real tokens.

`state_before` returns the state before a layer's tokens, as the running call has it.
`of_tokens` returns tensors with zeros for padding. `scanned` runs a step for each token
and returns the results.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from kvc.compiler.hugging_face.reading.calls import current_call

# From the carried state and a step's inputs to the next state and a result.
RowStep = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]


def of_tokens(tensor: Tensor, axis: int) -> Tensor:
    """Return a tensor with zeros for padding; `axis` is the axis of tokens."""
    row_lengths = current_call().row_lengths
    if row_lengths is None:
        return tensor
    padding = torch.arange(tensor.shape[axis]) >= row_lengths[:, None]
    shape = [tensor.shape[0], *[1] * (tensor.dim() - 1)]
    shape[axis] = tensor.shape[axis]
    return tensor.masked_fill(padding.view(shape), 0)


def is_single(seq: int | torch.SymInt) -> bool:
    """Tell whether a call has a single token; False for a dynamic number of tokens."""
    return type(seq) is int and seq == 1


def state_before(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the state [batch, ...] that the layer has just requested, or zeros.

    A layer that computes one head after the other (Zamba) requests the states of all
    heads, [batch, heads, ...]; each call of this function then returns the state of the
    next head.
    """
    call = current_call()
    state = call.take_recurrent()
    if state is None:
        return torch.zeros(like.shape[0], *shape, dtype=like.dtype)
    if state.dim() == len(shape) + 1:
        return state.clone()
    if state.shape[1] > 1:
        call.recurrent = state[:, 1:]
    return state[:, 0].clone(memory_format=torch.contiguous_format)


def scanned(
    step: RowStep, before: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run a step for each element along the first axis of the tensors in `given`.

    Returns:
        The state after the last step, and the results of all steps, stacked.
    """
    if torch.compiler.is_exporting():
        # Copies, since torch would check whether views cover their whole tensor.
        last, out = scan(step, before, [tensor.clone() for tensor in given])
        return last, out
    made = []
    for i in range(given[0].shape[0]):
        before, out = step(before, [tensor[i] for tensor in given])
        made.append(out)
    return before, torch.stack(made)
