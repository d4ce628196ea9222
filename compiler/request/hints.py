"""Limit the position to the caller's `max_length`, if caches do not limit it.

In: a compiled program, the greatest number of positions. Out: the program with that
number as the capacity of its cursor. A ring cache does not limit the position, but a
model can be trained for a limited number of positions.
"""

from dataclasses import replace

from torch import nn

from kvc.schema.errors import CaptureError, CompileError
from kvc.schema.model import Program
from kvc.schema.verify.limits import MAX_DIM


def check_max_length(max_length: object) -> None:
    """Check `max_length` before anything is traced.

    Raises:
        CompileError: `max_length` is no number of positions.
    """
    whole = isinstance(max_length, int) and not isinstance(max_length, bool)
    if max_length is None or (whole and 1 <= max_length <= MAX_DIM):  # type: ignore[operator]
        return
    raise CompileError(
        message=f"max_length: expected an int of 1..{MAX_DIM}, found {max_length!r}"
    )


def limited(program: Program, max_length: int | None) -> Program:
    """Return the program with its position limited to `max_length`.

    Raises:
        CompileError: no cursor counts tokens, or a session chooses the limit.
    """
    if max_length is None:
        return program
    position = program.position
    if position is None:
        raise CompileError(
            message=f"max_length {max_length}: nothing in this program counts tokens"
        )
    least = max_length if position.capacity is None else position.capacity
    if not isinstance(least, int):
        message = (
            f"max_length {max_length}: a session chooses how many positions there are, "
            f"up to {least}; give its caches that limit, StateSpec(capacity=Dim(...))"
        )
        raise CompileError(message=message)
    limit = replace(position, capacity=min(least, max_length))
    return replace(program, cursors=(limit, *program.cursors[1:]))


# Name `export_hf` in the error if the capture of a transformers model fails.


def with_front_end(model: nn.Module, error: CaptureError) -> CaptureError | None:
    """Return an error that advises to use the front end for this model.

    Return None if the model is not one of transformers, which the names of its classes
    tell without an import of transformers.
    """
    kinds = {
        (kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__
    }
    if ("transformers", "PreTrainedModel") not in kinds:
        return None
    advice = (
        "models of transformers are compiled with their caches by "
        "kvc.compiler.export_hf(folder), which declares the methods itself"
    )
    facts = vars(error) | {"reason": f"{error.reason}. Instead: {advice}"}
    return type(error)(**facts)
