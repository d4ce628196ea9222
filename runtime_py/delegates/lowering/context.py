"""`OpContext`: an instruction that is being lowered, and the traits of the device.

In: the instruction's operands and the types of its results. Out: names of tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from kvc.runtime.delegates.lowering.builder import FLOAT, HALF, Builder
from kvc.runtime.delegates.lowering.function import Shape
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen

Made = str | list[str]  # the names of an instruction's results
Emit = Callable[..., Made]


@frozen
class DeviceTraits:
    """What a vendor's device has, and how the device computes.

    Attributes:
        primitives: the operations that functions can use.
        dtypes: the device's dtype for each dtype of the program.
        half: whether products, and computations on their results, are float16.
        wide: whether sums and norms of float16 tensors are computed in float32.
        checked: whether functions clamp indices that are out of range.
        readable: whether the positions and indices that have to be checked are outputs
            of functions, which the host reads before the device computes the results.
        zeroed: whether unwritten slots of a cache have finite numbers, so that
            functions need not replace the content of hidden slots by zeros.
        empty: whether tensors can have no elements.
        forms: the functions that lower operators for this device in place of those of
            `OPERATORS`, by the operator's name.
    """

    primitives: frozenset[Primitive]
    dtypes: Mapping[DType, str]
    half: bool = False
    wide: bool = True
    checked: bool = True
    readable: bool = False
    zeroed: bool = False
    empty: bool = False
    forms: Mapping[str, Emit] = MappingProxyType({})

    @property
    def products(self) -> str:
        """Return the dtype in which the device computes products."""
        return HALF if self.half else FLOAT


@frozen
class OpContext:
    """An instruction that is being lowered.

    Attributes:
        build: collects the operations of the function.
        read: returns the name of an operand's tensor, given the operand and a dtype; a
            constant of floats gets this dtype.
        shapes: the shapes of the instruction's results.
        dtypes: the device's dtypes of the instruction's results.
        traits: the traits of the device.
        note: records the valid range of an index tensor, given the tensor's name, the
            minimum, and the exclusive maximum.
    """

    build: Builder
    read: Callable[[object, str], str]
    shapes: Sequence[Shape]
    dtypes: Sequence[str]
    traits: DeviceTraits
    note: Callable[[str, int, int], None]

    @property
    def shape(self) -> Shape:
        """Return the shape of the instruction's only result."""
        return self.shapes[0]

    def get(self, argument: object) -> str:
        """Return the name of an operand's tensor; constants of floats are float32."""
        return self.read(argument, FLOAT)

    def computed(self, argument: object) -> str:
        """Return the name of an operand's tensor, cast to the dtype of the result.

        A tensor of floats keeps its dtype if the result has floats, too.
        """
        return self._as(self.dtypes[0], self.get(argument))

    def _as(self, dtype: str, name: str) -> str:
        are_floats = {dtype, self.build.dtype(name)} <= {FLOAT, HALF}
        return name if are_floats else self.build.cast(name, dtype)

    def optional(self, argument: object) -> str | None:
        """Return the name of a tensor; None if the argument is None."""
        return None if argument is None else self.get(argument)

    def factor(self, argument: object) -> str:
        """Return the name of a tensor in the dtype in which products are computed."""
        dtype = self.traits.products
        return self.build.cast(self.read(argument, dtype), dtype)

    def operand(self, argument: object, like: str) -> str:
        """Return the name of a number, or of a tensor, in the dtype of `like`.

        A tensor of floats keeps its dtype if `like` has floats, too.
        """
        dtype = self.build.dtype(like)
        if isinstance(argument, bool | int | float):
            return self.build.number(argument, dtype)
        return self._as(dtype, self.get(argument))
