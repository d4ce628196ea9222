"""Run a partition, lowered for fixed sizes, on arrays of MLX and arrays of the host.

In: buffers of the partition's inputs and outputs. Out: a function that writes the
outputs and states. The host reads and checks positions and indices, in the order of the
instructions, before MLX computes what depends on the positions and indices, since MLX
silently reads and writes out of bounds.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from kvc.runtime.delegates.host_checks import check_of
from kvc.runtime.delegates.lowering.partition import Names, lower_partition
from kvc.runtime.delegates.lowering.plan import Indexed, Looked, index_name, value_name
from kvc.runtime.delegates.lowering.runs import check_access
from kvc.runtime.delegates.mlx.evaluation import TRAITS, Evaluation, Weights
from kvc.runtime.delegates.mlx.states import MlxState
from kvc.runtime.delegates.operands import settled
from kvc.runtime.execution.executor import fail
from kvc.runtime.memory.arrays import Array, copy_into
from kvc.runtime.states.owner import Buffer
from kvc.schema.errors import IndexOutOfRange
from kvc.schema.graph import Graph, Ref

_Arrays = Mapping[str, mx.array]
_Check = Callable[[_Arrays], None]


class Run:
    """A partition at fixed sizes.

    Args:
        method: name of the partition's method, for messages.
        graph: the partition's code.
        sizes: the sizes of the program's symbols.
        weights: the named data of the partitions.
    """

    def __init__(
        self, method: str, graph: Graph, sizes: Mapping[str, int], weights: Weights
    ) -> None:
        self._method, self._graph, self._sizes = method, graph, sizes
        self._places = {value: place for place, value in enumerate(graph.inputs)}
        called = [f"in{place}" for place in range(len(graph.inputs))]
        results = [f"out{place}" for place in range(len(graph.outputs))]
        names = Names(method, called, results)
        self._plan = lower_partition(graph, sizes, names, TRAITS)
        self._evaluation = Evaluation(self._plan.function, weights)
        self._checks = sorted(self._all_checks(), key=lambda check: check[0])

    def compute(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> Callable[[], None]:
        """Compute all results, and return a function that writes the results.

        Args:
            inputs: buffers of the graph's inputs.
            outputs: buffers of the graph's outputs.

        Raises:
            KvcError: an operation or a check fails.
        """
        feeds = self._plan.feeds
        given = {each.name: _array(inputs[self._places[each.value]]) for each in feeds}
        made = self._made(given)
        written = [(each.output, each.name) for each in self._plan.takes]
        written += [(each.output, each.name) for each in self._plan.changed]
        pairs = [(outputs[place], made[name]) for place, name in written]
        mx.eval([array for _, array in pairs])
        return partial(_write, pairs)

    def _made(self, given: _Arrays) -> _Arrays:
        at, begins = 0, self._plan.begins
        try:
            try:
                made = self._evaluation(given)
            except Exception:
                at = bisect_right(begins, self._evaluation.done) - 1
                raise
            for at, check in self._checks:  # noqa: B007  # the check that failed
                check(made)
        except Exception as error:
            fail(self._method, at, self._graph.instructions[at], error)
        return made

    def _all_checks(self) -> Iterator[tuple[int, _Check]]:
        """Yield the checks of a call's values, each with its instruction's index."""
        for at, step in enumerate(self._graph.instructions):
            check = check_of(self._graph, step, self._sizes)
            if check is not None:
                arguments = [settled(each, self._sizes) for each in step.arguments]
                yield at, partial(_check_values, check, arguments)
        for looked in self._plan.looked:
            yield looked.instruction, partial(_check_access, looked)
        for number, indexed in enumerate(self._plan.indexed):
            yield indexed.instruction, partial(_check_index, indexed, number)


def _array(buffer: Buffer) -> mx.array:
    if isinstance(buffer, MlxState):
        return buffer.value
    assert isinstance(buffer, np.ndarray), "the host owns all other buffers"
    return mx.array(np.ascontiguousarray(buffer))


def _write(pairs: Sequence[tuple[Buffer, mx.array]]) -> None:
    for target, array in pairs:
        if isinstance(target, MlxState):
            target.value = array
        elif isinstance(target, np.ndarray):
            copy_into(target, np.array(array))


def _read(made: _Arrays, value: int) -> Array:
    return np.array(made[value_name(value)])


def _check_values(
    check: Callable[..., None], arguments: Sequence[object], made: _Arrays
) -> None:
    """Run the check of a check instruction on the values that the host reads."""
    check(*(_read(made, x.value) if isinstance(x, Ref) else x for x in arguments))


def _check_access(looked: Looked, made: _Arrays) -> None:
    check_access(looked, partial(_read, made))


def _check_index(indexed: Indexed, number: int, made: _Arrays) -> None:
    for index in np.array(made[index_name(number)]).reshape(-1).tolist():
        if not indexed.least <= index < indexed.most:
            raise IndexOutOfRange(place="", index=index, size=indexed.most)
