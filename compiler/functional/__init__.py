"""Make traced programs functional: tensors that are written become values."""

from kvc.compiler.functional.program import (
    FunctionalProgram,
    WritesConstant,
    functional,
)
from kvc.compiler.functional.views import Unwritable

__all__ = ["FunctionalProgram", "Unwritable", "WritesConstant", "functional"]
