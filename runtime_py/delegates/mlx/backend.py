"""The run-time part of the backend `mlx`: MLX, or reference kernels if MLX is missing.

Weights are copied to MLX once, and int8 weights are rearranged for MLX's products.
States that only this backend uses are arrays of MLX. Only one call runs at a time in a
process.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.operands import refuse_payload, taken_block, where_of
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Workspace,
    library_unless,
)
from kvc.runtime.execution.executor import Unbegun
from kvc.runtime.states.owner import Buffer, Group, InitialValue, Owner
from kvc.schema.backends.mlx import why_not
from kvc.schema.errors import BadProgram, KvcError
from kvc.schema.graph import Graph
from kvc.schema.model import Block
from kvc.schema.model import Delegate as Partition
from kvc.schema.ops import OPS, Aliasing

if TYPE_CHECKING:
    from kvc.runtime.delegates.mlx.evaluation import Weights
    from kvc.runtime.delegates.mlx.runs import Run
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

# Check without an import that MLX is installed, and import MLX.


VERSION: Final = "0.32.4"
MLX: Final = LibraryPackage(f"mlx {VERSION}", "mlx", {"mlx": VERSION})


def import_mlx() -> ModuleType:
    """Import MLX, and return the module.

    Raises:
        MissingLibrary: MLX is missing, or cannot be loaded.
    """
    check_installed()
    try:
        return import_module("mlx.core")
    except (ImportError, OSError) as error:
        raise MLX.missing(f"it cannot be loaded: {error}") from error


def check_installed() -> None:
    """Check that the required version of MLX and a package with MLX's code are there.

    Raises:
        MissingLibrary: MLX or the package is not installed.
    """
    MLX.check()
    if not _computes():
        raise MLX.missing("it is installed without a backend of its own")


def _computes() -> bool:
    """Tell whether a package with MLX's code, such as `mlx-cpu`, is installed."""
    spec = find_spec("mlx.core")
    if spec is None or spec.origin is None:
        return False
    return any((Path(spec.origin).parent / "lib").glob("libmlx*"))


# The backend `mlx`.


_MOST_SIZES: Final = 64  # sets of sizes for which a partition's function is kept
_turn = threading.Lock()  # MLX computes with the threads of one stream


class Mlx(Delegate):
    """Runs whole methods, with their states, by MLX."""

    runs_on = "a GPU of Apple's or a processor, by MLX"
    needs = MLX.needed

    def __init__(self, options: Options) -> None:
        self._options = options
        self._here = library_unless(options.reference, import_mlx, "mlx") is not None
        self._held: dict[int, FreeableBuffer] = {}
        self._weights = self._new_weights() if self._here else None

    def _new_weights(self) -> "Weights":
        from kvc.runtime.delegates.mlx.evaluation import Weights

        return Weights(lambda name: self._held[name].array())

    @staticmethod
    def check_library() -> None:
        """Check that MLX can be loaded.

        Raises:
            MissingLibrary: MLX cannot be loaded.
        """
        import_mlx()

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, and return the partition's handle.

        Raises:
            BadProgram: the backend does not support an operator, or the code writes a
                slice of an input, or the partition has a payload.
        """
        program, path = self._options.program, self._options.path
        block = taken_block(program, path, partition, why_not)
        refuse_payload(program, path, partition)
        for root, new in written_inputs(block.graph).items():
            if block.graph.values[root].type != block.graph.values[new].type:
                wrong = f"value {new} is a part of input {root}, which it is to become"
                raise _not_taken(self._options, partition, wrong)
        if self._weights is None:
            return ReferenceHandle(program, partition, data)
        self._held |= {i: data[program.names[i].name] for i in partition.names}
        return MlxHandle(self._options, partition, block, self._weights)

    def owner(
        self, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> Owner | None:
        """Return an owner that keeps states as arrays of MLX; see `Delegate.owner`."""
        if not self._here:
            return None
        from kvc.runtime.delegates.mlx.states import MlxOwner

        return MlxOwner(groups, sizes, initial)

    def packed(self) -> Mapping[str, int]:
        """Return the number of bytes of each weight's copy in MLX, by weight name."""
        names = self._options.program.names
        kept = {} if self._weights is None else self._weights.nbytes()
        return {names[n].name: nbytes for n, nbytes in sorted(kept.items())}

    def close(self) -> None:
        """Release the weights."""
        if self._weights is not None:
            self._weights.clear()
        for buffer in self._held.values():
            buffer.free()
        self._held.clear()


def written_inputs(graph: Graph) -> dict[int, int]:
    """Return the id of the new content of each written input, by the input's id."""
    return {
        graph.root_of(value): value
        for step in graph.instructions
        if OPS[step.op].aliasing is not Aliasing.VIEW
        for value in step.results
        if graph.root_of(value) in graph.inputs
    }


class MlxHandle(Handle):
    """A partition that runs on MLX."""

    def __init__(
        self,
        options: Options,
        partition: Partition,
        block: Block,
        weights: "Weights",
    ) -> None:
        self._method = options.program.methods[partition.method].name
        self._refuse = partial(_not_taken, options, partition)
        self._block, self._weights = block, weights
        self._lowered = lru_cache(_MOST_SIZES)(self._lower)

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that runs the partition's code; see `Handle.prepare`."""
        run = self._lowered(tuple(sizes.items()))
        return partial(self._run, run, inputs, outputs)

    def _lower(self, sizes: tuple[tuple[str, int], ...]) -> "Run":
        """Return the partition's code for the sizes of the program's symbols.

        Raises:
            BadProgram: a number does not fit in the dtype of a tensor.
        """
        from kvc.runtime.delegates.mlx.runs import Run

        try:
            return Run(self._method, self._block.graph, dict(sizes), self._weights)
        except NotTaken as error:
            raise self._refuse(str(error)) from error

    def _run(
        self, run: "Run", inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> None:
        """Compute all results, and write the results once all are computed.

        Raises:
            Unbegun: an error occurred before anything was written; the error is the
                cause of the exception.
        """
        with _turn:
            try:
                write = run.compute(inputs, outputs)
            except KvcError as error:
                raise Unbegun from error
            write()

    def close(self) -> None:
        """Do nothing: the data belongs to the backend."""


def _not_taken(options: Options, partition: Partition, what: str) -> BadProgram:
    where = where_of(options.program, partition)
    return BadProgram(path=options.path, where=where, what=what)
