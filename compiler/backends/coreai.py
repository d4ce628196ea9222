"""The backend `coreai`, ahead of time: takes whole methods, including their caches."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from kvc.compiler.backends.lowered import LoweredBackend
from kvc.compiler.ir import Constant
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends import coreai
from kvc.schema.backends.operands import WhyNot
from kvc.schema.errors import BadOption
from kvc.schema.types import Symbol

_PRECISIONS: Final = ("float32", "float16")


class CoreAI(LoweredBackend):
    """The backend `coreai`, which takes whole methods, including their caches."""

    name: ClassVar[str] = "coreai"
    anchors = coreai.ANCHORS

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take the option `precision`: the dtype in which float32 is computed.

        Raises:
            BadOption: an option is unknown, or the precision is.
        """
        given = dict(options)
        self._precision = given.pop("precision", _PRECISIONS[0])
        super().__init__(given)
        if self._precision not in _PRECISIONS:
            raise BadOption(
                backend=self.name,
                option="precision",
                expected=" or ".join(_PRECISIONS),
                found=repr(self._precision),
            )

    @property
    def supported(self) -> WhyNot:
        """Return the predicate for supported nodes."""
        return coreai.why_not

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the precision as the payload of each partition.

        The code of a partition is in the partition's block.
        """
        lowered = Lowered(payload=str(self._precision).encode())
        return {name: (lowered,) * len(some) for name, some in partitions.items()}
