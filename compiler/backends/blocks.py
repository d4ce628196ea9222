"""Backends whose code is the block of a partition, which `kvc.runtime` binds.

In: a backend's list of what it supports. Out: the nodes that it takes, cache writes and
attention included, so that most methods are one partition; and nothing to store.
"""

from abc import abstractmethod

from kvc.compiler.backends.base import Backend
from kvc.compiler.backends.operands import able_nodes
from kvc.compiler.ir import Method
from kvc.schema.backends.operands import WhyNot


class BlockBackend(Backend):
    """Runs all of its nodes from the block."""

    in_place = True

    @property
    @abstractmethod
    def supported(self) -> WhyNot:
        """Return the list of what it supports."""

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take."""
        return frozenset(able_nodes(method, self.supported))
