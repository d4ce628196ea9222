"""Run a program by the reference, and record the range of each value.

A range is the least and the greatest element that a value had in any call. In: the path
of a bundle that was partitioned for a backend that needs ranges. Out: the program,
which runs all partitions by the reference implementation, and the ranges that its calls
reached.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.state_memories import StateMemories
from kvc.runtime.delegates.stepped import SteppedHandle
from kvc.runtime.execution.delegate import Delegate, Options
from kvc.runtime.execution.recording import TimedStep
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.program import Program
from kvc.runtime.sessions.resources import FindBackend, LoadSettings
from kvc.schema import model
from kvc.schema.calibration import Range
from kvc.schema.container import BundleFile, StoredBlobs
from kvc.schema.errors import SamplesNotFinite
from kvc.schema.graph import Constant, Instruction

# Attention scores: products of queries and keys, which are not values of a graph


def _attention(
    q: Array, k: Array, _: Array, total: Array, scale: float | None, *rest: object
) -> Array:
    """Return an attention's scores for all positions that the cache holds."""
    if k.dtype == np.int8:  # its scales are another operand; no backend needs this
        return np.empty(0, np.float32)
    held = min(int(np.max(total, initial=0)), k.shape[2])
    return _products(q, k[:, :, :held], scale)


def _attention_product(
    q: Array,
    k: Array,
    _: Array,
    mask: Array,
    causal: bool,
    scale: float | None,
    *rest: object,
) -> Array:
    return _products(q, k, scale)


def _products(q: Array, k: Array, scale: float | None) -> Array:
    """Multiply queries with keys; axes before the last three are broadcast.

    Args:
        q: [..., heads, queries, width], or fewer axes.
        k: [..., groups, keys, width]; neighbouring heads share a group.
        scale: the factor of the products, None for 1 / sqrt(width).
    """
    import torch  # the reference uses its threads, which numpy would wait for

    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    made = torch.matmul(
        torch.from_numpy(_grouped(q, k).astype(np.float32) * np.float32(factor)),
        torch.from_numpy(np.swapaxes(k, -1, -2).astype(np.float32)),
    )
    return made.numpy()


def _grouped(q: Array, k: Array) -> Array:
    """Return queries with one axis for the heads and queries of a group of keys.

    Queries [..., heads, queries, width] become [..., groups, heads / groups * queries,
    width]. If keys are not grouped, return the queries unchanged.
    """
    if min(q.ndim, k.ndim) < 3 or not 1 < k.shape[-3] < q.shape[-3]:
        return q
    *batch, heads, queries, width = q.shape
    groups = k.shape[-3]
    return q.reshape(*batch, groups, heads // groups * queries, width)


SCORES: Final[Mapping[str, Callable[..., Array]]] = {
    "kvc::attention": _attention,
    "aten::scaled_dot_product_attention": _attention_product,
}


# Recording the ranges of values


Seen = dict[int, Range]  # by value id


class ObservedHandle(SteppedHandle):
    """A partition that records the ranges of its values.

    Attributes:
        graph: the code of the partition.
        seen: the ranges recorded so far, by value id.
        scores: the ranges of attention scores, by the id of the attention's result.
    """

    def __init__(
        self,
        program: model.Program,
        partition: model.Delegate,
        data: Mapping[str, FreeableBuffer],
    ) -> None:
        super().__init__(program, partition, data)
        self._method = program.methods[partition.method].name
        self.graph = self._graph
        self.seen: Seen = {}
        self.scores: Seen = {}

    def before(self, instruction: Instruction, values: Values) -> Sequence[TimedStep]:
        """Record the scores of an attention; see `SteppedHandle.before`."""
        multiply = SCORES.get(instruction.op)
        if multiply is None:
            return ()
        given = [values.argument(each, values.array) for each in instruction.arguments]
        (result,) = instruction.results
        return [(self._attends, (result, partial(multiply, *given)))]

    def _attends(self, result: int, multiply: Callable[[], Array]) -> None:
        self._note(self.scores, result, multiply())

    def reached(self, value: int, array: Array) -> None:
        """Record the range of a value.

        Raises:
            SamplesNotFinite: the value holds a NaN.
        """
        if self._graph.values[value].type.dtype.is_floating:
            self._note(self.seen, value, array)

    def _note(self, seen: Seen, value: int, array: Array) -> None:
        if not array.size:
            return
        found = Range(float(np.min(array)), float(np.max(array)))
        if math.isnan(found.low) or math.isnan(found.high):
            raise self._not_finite(value)
        before = seen.get(value)
        seen[value] = found if before is None else before.joined(found)

    def _not_finite(self, value: int) -> SamplesNotFinite:
        maker = next((s for s in self._graph.instructions if value in s.results), None)
        what = "an input of a partition" if maker is None else maker.op
        place = f" at {maker.source}" if maker is not None and maker.source else ""
        return SamplesNotFinite(method=self._method, what=what, place=place)

    def note_constants(self) -> None:
        """Record the ranges of the constants that the code reads."""
        for number, value in enumerate(self._graph.values):
            if isinstance(value.storage, Constant):
                self.reached(number, self.constant(value.storage.name))


class Observer(Delegate):
    """The runtime's substitute for every backend of a program, to record ranges."""

    def __init__(self, options: Options) -> None:
        self.declared = options.program
        self.handles: dict[int, ObservedHandle] = {}

    def init(
        self, partition: model.Delegate, data: Mapping[str, FreeableBuffer]
    ) -> ObservedHandle:
        """Return a handle that runs a partition and records its values' ranges."""
        handle = ObservedHandle(self.declared, partition, data)
        self.handles[self.declared.delegates.index(partition)] = handle
        return handle

    def packed(self) -> Mapping[str, int]:
        """Return an empty mapping: no weights are packed."""
        return {}

    def close(self) -> None:
        """Do nothing: no resources are shared."""


@contextmanager
def opened(path: Path, find_backend: FindBackend) -> Iterator[Program]:
    """Open a bundle, with the backends that `find_backend` returns.

    Raises:
        FormatError, LoadError: the bundle cannot be read.
    """
    bundle = BundleFile.open(path)
    try:
        stored = StoredBlobs.open(bundle, ())
    except BaseException:
        bundle.close()
        raise
    settings = LoadSettings(find_backend=find_backend)
    program = Program(bundle.path, bundle.digest, stored, "map", settings)
    try:
        yield program
    finally:
        program.close()


@contextmanager
def observed(path: Path) -> Iterator["Observation"]:
    """Open a bundle so that its runs record the ranges of values.

    Raises:
        FormatError, LoadError: as `opened`.
    """
    found: list[Observer] = []

    class Noted(Observer):
        def __init__(self, options: Options) -> None:
            super().__init__(options)
            found.append(self)

    with opened(path, lambda _: Noted) as program:
        yield Observation(program, found)


class Observation:
    """A program whose calls record the ranges of values.

    Attributes:
        program: the program to call.
    """

    def __init__(self, program: Program, observers: Sequence[Observer]) -> None:
        self.program = program
        self._observers = observers

    def _handles(self) -> dict[int, ObservedHandle]:
        """Return partition id -> handle, for the partitions that have run."""
        return {
            number: handle
            for observer in self._observers
            for number, handle in observer.handles.items()
            if handle.seen
        }

    def scores(self) -> dict[int, Seen]:
        """Return partition id -> ranges of the scores of each attention."""
        return {number: handle.scores for number, handle in self._handles().items()}

    def ranges(self) -> dict[int, Seen]:
        """Return partition id -> ranges of values, for each partition that has run.

        Values that share memory or a state have a common range.
        """
        handles = self._handles()
        if not handles:
            return {}
        for handle in handles.values():
            handle.note_constants()
        memories = StateMemories(self._observers[0].declared)
        groups: dict[object, Range] = {}
        for number, handle in handles.items():
            for value, found in handle.seen.items():
                key = memories.memory_of(number, handle.graph, value)
                groups[key] = groups.get(key, found).joined(found)
        return {
            number: {
                value: groups[key]
                for value, declared in enumerate(handle.graph.values)
                if declared.type.dtype.is_floating
                and (key := memories.memory_of(number, handle.graph, value)) in groups
            }
            for number, handle in handles.items()
        }
