"""The backend `coreml`, ahead of time: takes the operators that Core ML supports."""

from typing import ClassVar

from kvc.compiler.backends.base import BlockBackend, views_left
from kvc.compiler.ir import Method
from kvc.schema.backends import coreml
from kvc.schema.backends.operands import WhyNot


class CoreMl(BlockBackend):
    """The backend `coreml`, which takes whole methods.

    A Core ML package has one function for each method.
    """

    name: ClassVar[str] = "coreml"
    fixed_shapes = True

    @property
    def supported(self) -> WhyNot:
        """Return the function that says why Core ML does not support a node."""
        return coreml.why_not

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the indices of views that Core ML cannot make."""
        return views_left(method, self.supported)
