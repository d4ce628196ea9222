"""An instruction that is being translated to MIL."""

from collections.abc import Callable, Sequence

from kvc.runtime.delegates.coreml.mil import Data, Emitter, Shape, Tensor
from kvc.schema.frozen import frozen


class NotTaken(Exception):
    """Something cannot be said in MIL; the message says what."""


@frozen
class Step:
    """An instruction, and where its operands come from.

    Attributes:
        emitter: takes its calls.
        read: returns an operand in a dtype of MIL.
        constant: returns named data as it is stored in a dtype.
        common: returns the dtype that tensors are compared in.
        dtype: of its results.
        shapes: of its results.
    """

    emitter: Emitter
    read: Callable[[object, str], Tensor]
    constant: Callable[[object, str], Data]
    common: Callable[[Sequence[object]], str]
    dtype: str
    shapes: Sequence[Shape]

    @property
    def shape(self) -> Shape:
        """The shape of its only result."""
        return self.shapes[0]
