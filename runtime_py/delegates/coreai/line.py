"""An instruction that is being translated, as the functions of operators see it."""

from collections.abc import Callable, Sequence

from kvc.runtime.delegates.coreai.emitting import FLOAT, HALF, Emitter
from kvc.runtime.delegates.coreai.function import Shape
from kvc.schema.frozen import frozen

Made = str | list[str]


@frozen
class Line:
    """An instruction that is being translated.

    Attributes:
        emitter: takes its steps.
        read: returns the name of a tensor; a constant float comes in a dtype.
        shapes: of its results.
        dtypes: of its results, in Core AI.
        half: whether products are to be of float16.
        note: notes what an index may be: from a number on, below another.
    """

    emitter: Emitter
    read: Callable[[object, str], str]
    shapes: Sequence[Shape]
    dtypes: Sequence[str]
    half: bool
    note: Callable[[str, int, int], None]

    @property
    def shape(self) -> Shape:
        """Return the shape of its only result."""
        return self.shapes[0]

    @property
    def wanted(self) -> str:
        """Return the dtype of products."""
        return HALF if self.half else FLOAT

    def get(self, argument: object) -> str:
        """Return the name of a tensor."""
        return self.read(argument, FLOAT)

    def product_of(self, argument: object) -> str:
        """Return the name of a tensor as products take it."""
        return self.emitter.cast(self.read(argument, self.wanted), self.wanted)
