"""Check whether eager's results of a program must equal the compiled program's.

In: a program whose last step is new. Out: False or True from each check. Results need
not be equal if the last step does one of these:

- it draws random numbers
- in place, it gives an input or buffer another shape, or any tensor another number of
elements, which kvc refuses on purpose
- its result depends on where tensors lie in memory: it overwrites what it still has to
read, or the inputs of the second call are laid out otherwise than those of the first,
for which the program is compiled
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from operator_programs import (
    OperatorProgram,
    Ref,
    Tensors,
    bits_equal,
    copies,
    flat,
    operator,
)
from operator_samples import spread_apart
from other_roundings import Dispatching, close
from torch import Tensor
from torch._ops import OpOverload


def made_of(
    program: OperatorProgram, apart: bool = False, ended: bool = False
) -> list[Tensors]:
    held, found = copies(program.held), []
    for call in program.calls:
        inputs = copies(call)
        with torch.no_grad():
            made = program.code.made_of(inputs, held, apart)
        found.append(copies((*made, *inputs) if ended else made))
    return found


def draws_numbers(program: OperatorProgram) -> bool:
    """Tell whether the last step draws random numbers after setting a fixed seed."""
    code = getattr(operator(program.code.steps[-1].name).op, "__code__", None)
    if code is None or "wrapper_set_seed" not in code.co_names:
        return False
    with _Drawing() as drawing:
        made_of(program)
    return drawing.found


class _Drawing(Dispatching):
    """Notes whether any operator of a program draws random numbers."""

    found = False

    def dispatched(self, func: OpOverload, *args: object, **kwargs: object) -> object:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **kwargs)


def keeps_shapes(program: OperatorProgram) -> bool:
    """Tell whether a last step in place keeps all shapes of inputs and buffers.

    The number of elements of the tensor that it writes must stay the same too.
    """
    *before, last = program.code.steps
    if not (last.in_place or last.name.endswith("_")):
        return True
    code, held = replace(program.code, steps=tuple(before)), copies(program.held)
    for call in program.calls:
        inputs = copies(call)
        with torch.no_grad():
            made = code.made_of(inputs, held)
            arguments = last.arguments({"inputs": inputs, "held": held, "made": made})
            written = arguments[0]
            assert isinstance(written, Tensor)
            count = written.numel()
            last.call_with(arguments)
        pairs = zip((*inputs, *held), (*call, *program.held), strict=True)
        same = all(now.shape == then.shape for now, then in pairs)
        if not same or written.numel() != count:
            return False
    return True


def depends_on_memory(
    program: OperatorProgram, made: Sequence[Tensors], spread: bool
) -> bool:
    """Tell whether the last step's result depends on where tensors lie in memory.

    `spread`: inputs may have elements that do not lie side by side.
    """
    if _overwrites(program):
        apart = made_of(program, apart=True)
        if not all(map(bits_equal, flat(made), flat(apart))):
            return True
    if not spread:
        return False
    alike = made_of(_laid_out_alike(program), ended=True)
    return not all(map(_close, flat(made_of(program, ended=True)), flat(alike)))


def _overwrites(program: OperatorProgram) -> bool:
    last = program.code.steps[-1]
    return last.in_place and sum(isinstance(leaf, Ref) for leaf in last.leaves) > 1


def _laid_out_alike(program: OperatorProgram) -> OperatorProgram:
    first, second = program.calls
    return replace(program, calls=(first, tuple(map(_as_lies, second, first))))


def _as_lies(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a tensor that is laid out in memory as `like` is."""
    if like.is_contiguous():
        return tensor.contiguous()
    if like.ndim > 1 and like.mT.is_contiguous():
        return tensor.mT.contiguous().mT
    return spread_apart(tensor)


def _close(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and bool(close(one, other).all())
