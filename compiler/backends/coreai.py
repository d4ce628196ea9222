"""The backend `coreai`, ahead of time: takes whole methods, including their caches.

The host checks write positions and lengths of caches before Core AI runs, so the nodes
that compute these positions and lengths are not taken together with the cache
operators.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from kvc.compiler.backends.base import BlockBackend, able_nodes
from kvc.compiler.ir import Constant, Method, Node, Value
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends import coreai
from kvc.schema.backends.lowered import ATTENTION
from kvc.schema.backends.operands import WhyNot
from kvc.schema.errors import BadOption
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing
from kvc.schema.types import Symbol

_PRECISIONS: Final = ("float32", "float16")
# Arguments that the host reads before Core AI runs: the write position and row lengths
# of a cache update; the valid length and row lengths of attention.
_OF_THE_HOST: Final = {CACHE_UPDATE: (2, 5), ATTENTION: (3, 15)}


class CoreAI(BlockBackend):
    """The backend `coreai`, which takes whole methods, including their caches."""

    name: ClassVar[str] = "coreai"
    fixed_shapes = True

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
        """Return the function that says why Core AI does not support a node."""
        return coreai.why_not

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions.

        No node is taken from a method without a matrix product or another anchor.
        """
        able = able_nodes(method, self.supported)
        while wrong := _unfit(able):
            able = {i: node for i, node in able.items() if i not in wrong}
        has_product = any(node.op in coreai.ANCHORS for node in able.values())
        return frozenset(able if has_product else ())

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the indices of views that Core AI cannot make."""
        able = able_nodes(method, self.supported)
        views = (
            i for i, n in enumerate(method.nodes) if OPS[n.op].aliasing is Aliasing.VIEW
        )
        return frozenset(i for i in views if i not in able)

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


def _unfit(taken: Mapping[int, Node]) -> frozenset[int]:
    """Return the indices of nodes whose arguments Core AI would compute too late.

    These are arguments that the host reads before Core AI runs.
    """
    made: set[int] = set()
    wrong: set[int] = set()
    for index, node in sorted(taken.items()):
        if made & _read_by_host(node):
            wrong.add(index)
        is_view = OPS[node.op].aliasing is Aliasing.VIEW
        if not (is_view and not made & {value.id for value in node.inputs}):
            made |= {value.id for value in node.outputs}
    return frozenset(wrong)


def _read_by_host(node: Node) -> frozenset[int]:
    """Return the ids of a node's arguments that the host reads before Core AI runs."""
    if OPS[node.op].aliasing is Aliasing.CHECK:
        return frozenset(value.id for value in node.inputs)
    arguments = (node.arguments[n] for n in _OF_THE_HOST.get(node.op, ()))
    return frozenset(each.id for each in arguments if isinstance(each, Value))
