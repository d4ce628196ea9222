"""The handle of a partition that the library runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.xnnpack.identities import Identity
from kvc.runtime.delegates.xnnpack.runtimes import Kit, Runtime
from kvc.runtime.delegates.xnnpack.statics import Statics
from kvc.runtime.delegates.xnnpack.subgraph import Subgraph, build_subgraph
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.runtime.delegates.xnnpack.workspaces import NativeWorkspace
from kvc.runtime.execution.delegate import Handle, Workspace, on_host
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.native.library import native_library
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.xnnpack import CONVOLUTIONS
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.types import Affine, Dim, Symbol

# Sizes that must not be 0 for the library.


# The index of the first matrix among the arguments; the second comes next.
_PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1}


def dims_that_must_be(graph: Graph) -> tuple[Affine, ...]:
    """Return the symbolic dims that the library requires not to be 0, each once."""
    dims = (dim for step in graph.instructions for dim in _dims_of(graph, step))
    return tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, Affine)))


def _dims_of(graph: Graph, step: Instruction) -> Iterator[Dim]:
    """Yield the dims in an instruction that the library requires not to be 0."""
    if step.op == "aten::softmax.int":
        yield from graph.values[step.results[0]].type.dims[-1:]
    elif step.op in CONVOLUTIONS:
        given = step.arguments[0]
        assert isinstance(given, Ref)
        for value in (given.value, step.results[0]):
            yield from graph.values[value].type.dims
    elif step.op in _PRODUCTS:
        first = _PRODUCTS[step.op]
        left, right = step.arguments[first : first + 2]
        assert isinstance(left, Ref)
        assert isinstance(right, Ref)
        x, y = graph.values[left.value], graph.values[right.value]
        # A constant matrix is the weight of a linear, which may have no rows.
        if not (isinstance(y.storage, Constant) and len(y.type.dims) == 2):
            yield from (*x.type.dims, *y.type.dims)


# The handle of a partition that the library runs.


class XnnpackHandle(Handle):
    """A partition that the library runs, with a runtime in each context.

    Used by several threads.
    """

    moves = True

    def __init__(
        self,
        graph: Graph,
        symbols: Sequence[Symbol],
        statics: Statics,
        weights: Weights,
        threads: int,
        what: str,
        of_nothing: Callable[[], Handle],
    ) -> None:
        self._graph, self._symbols = graph, symbols
        self._statics = statics
        self._weights = weights
        self._threads = threads
        self._what = what
        self._of_nothing = of_nothing
        self._never_0 = dims_that_must_be(graph)

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that runs the partition; see `Handle.prepare`.

        Raises:
            NativeCallFailed: the library refuses the partition or the sizes.
            KvcError: the data of a weight cannot be read.
        """
        if any(dim.evaluate(sizes) == 0 for dim in self._never_0):
            handle = workspace.own((self, "of nothing"), self._of_nothing)
            return handle.prepare(inputs, outputs, workspace, sizes)
        runtime = workspace.own(self, lambda: self._runtime(workspace))
        return runtime.prepare(on_host(inputs), on_host(outputs), sizes)

    def pack(self) -> frozenset[Identity]:
        """Pack all weights of the partition, and return their identities.

        See `prepare` for errors.
        """
        sizes = {symbol.name: symbol.lower for symbol in self._symbols}
        workspace = Workspace(Arena(0))
        try:
            runtime = workspace.own(self, lambda: self._runtime(workspace))
            runtime.make(sizes)
        finally:
            workspace.close()
        return frozenset(self._statics.identities)

    def close(self) -> None:
        """Do nothing: contexts own the runtimes, the backend owns packed weights."""

    def _runtime(self, workspace: Workspace) -> Runtime:
        # One for all handles of a backend; made first, so that it goes last.
        weights = self._weights
        between = workspace.own(weights, lambda: NativeWorkspace(weights.library))

        def build(sizes: Mapping[str, int]) -> Subgraph:
            return build_subgraph(
                weights.library, self._graph, self._statics, sizes, self._what
            )

        kit = Kit(
            weights=weights,
            workspace=between,
            pool=weights.library.pool(self._threads),
            what=self._what,
            native=native_library(),
            threads=self._threads,
        )
        return Runtime(kit, build)
