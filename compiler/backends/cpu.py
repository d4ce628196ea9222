"""The backend `cpu`, ahead of time; `kvc.runtime` runs it with its own kernels."""

from typing import ClassVar

from kvc.compiler.backends.base import BlockBackend
from kvc.schema.backends import cpu
from kvc.schema.backends.operands import WhyNot


class Cpu(BlockBackend):
    """Runs float32 and int8 graphs with kvc's own kernels."""

    name: ClassVar[str] = "cpu"
    fuses: ClassVar[bool] = True
    over_operands: ClassVar[bool] = True

    @property
    def supported(self) -> WhyNot:
        """Return the function that says why kvc's kernels do not support a node."""
        return cpu.why_not
