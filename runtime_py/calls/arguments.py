"""Bind the arguments of a call to the inputs of a method, as Python binds them."""

from collections.abc import Mapping, Sequence

from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.inputs import Inputs, take_inputs
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import CallMismatch
from kvc.schema.trees import bind_call


def bind_inputs(
    entry: MethodEntry,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    states: StateMemory | None,
) -> Inputs:
    """Return the inputs of a call; row lengths that the caller left out are made.

    Raises:
        CallMismatch: the arguments are not nested as those of the compiled method.
        InputMismatch: an input has another dtype, or is no array.
    """
    method, row_lengths = entry.method, entry.row_lengths
    optional = None if row_lengths is None else row_lengths.leaf
    try:
        leaves = bind_call(method.input_tree, args, kwargs, optional)
    except ValueError as error:
        raise CallMismatch(method=method.name, reason=str(error)) from error
    left_out = row_lengths is not None and leaves[row_lengths.leaf] is None
    if row_lengths is not None and left_out:
        sizes = {} if states is None else states.sizes
        leaves[row_lengths.leaf] = row_lengths.stand_in(leaves, sizes)
    return take_inputs(entry.signature, leaves, left_out)
