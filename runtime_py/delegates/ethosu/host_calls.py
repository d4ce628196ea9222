"""A partition bound to the arrays of a session: its TOSA graph, run on the host.

In: a partition's code and grids, its TOSA graph, arrays for inputs and outputs. Out: a
function that reads all inputs, computes, and writes outputs and the new contents of
inputs. In caches, the function writes only the new rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.lowered_values import ref
from kvc.runtime.delegates.ethosu.lowering import results_of, written_inputs
from kvc.runtime.delegates.ethosu.tosa import TosaGraph
from kvc.runtime.delegates.host_checks import check_length, check_of, check_slots
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.ethosu import ATTENTION, CACHE_UPDATE
from kvc.schema.backends.grids import Grid
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph
from kvc.schema.types import Affine

_SLOTS: Final = 2  # the axis of a cache


_Check = Callable[[], None]


@frozen
class _Target:
    """Where a result of the TOSA graph is written.

    Attributes:
        array: the array to write.
        place: index of the result among the outputs of the TOSA graph.
        grid: the grid of the result's integers.
        rows: for a cache, an array with the first new slot, and the number of new rows;
            None to write the whole array.
    """

    array: Array
    place: int
    grid: Grid
    rows: tuple[Array, int] | None


def bind_call(
    graph: Graph,
    tosa: TosaGraph,
    grids: Mapping[int, Grid],
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> Callable[[], None]:
    """Return a function that runs a partition.

    Args:
        graph: the partition's graph.
        tosa: the partition's TOSA graph at `sizes`.
        grids: the grids of the partition's values, by value id.
        sizes: the sizes of the symbols.
        inputs: arrays of the graph's inputs.
        outputs: arrays of the graph's outputs.
    """
    given = dict(zip(graph.inputs, inputs, strict=True))
    places = {value: place for place, value in enumerate(results_of(graph))}
    checks, rows = _caches(graph, sizes, given)
    targets, written = list[_Target](), written_inputs(graph)
    for root, value in written.items():
        target = _Target(given[root], places[value], grids[value], rows.get(value))
        targets.append(target)
    for value, array in zip(graph.outputs, outputs, strict=True):
        root = graph.root_of(value)
        held = given.get(root) if written.get(root) == value else None
        if held is None or not np.may_share_memory(array, held):
            targets.append(_Target(array, places[value], grids[value], None))
    sources = [(array, grids.get(value)) for value, array in given.items()]
    return partial(_run, tosa, checks, sources, targets)


def _caches(
    graph: Graph, sizes: Mapping[str, int], given: Mapping[int, Array]
) -> tuple[list[_Check], dict[int, tuple[Array, int]]]:
    """Return the checks of positions, and which rows of caches are written.

    Returns:
        The checks, as functions. For each value that is the new content of a cache: the
        array with the first new slot, and the number of new rows.
    """
    checks, rows = list[_Check](), dict[int, tuple[Array, int]]()

    def count(value: int) -> int:
        return graph.values[value].type.shape(sizes)[_SLOTS]

    for step in graph.instructions:
        if step.op == CACHE_UPDATE:
            cache, new, start = (ref(step.arguments[i]) for i in range(3))
            rows[step.results[0]] = given[start], count(new)
            checks.append(partial(_slots_fit, given[start], count(new), count(cache)))
        elif step.op == ATTENTION:
            keys, length = ref(step.arguments[1]), ref(step.arguments[3])
            checks.append(partial(_length_fits, given[length], count(keys)))
        elif check := check_of(graph, step, sizes):
            index, *numbers = step.arguments
            bounds = [
                n.evaluate(sizes) if isinstance(n, Affine) else n for n in numbers
            ]
            checks.append(partial(check, given[ref(index)], *bounds))
    return checks, rows


def _slots_fit(start: Array, count: int, slots: int) -> None:
    check_slots(0, int(start[0]), count, slots)


def _length_fits(length: Array, slots: int) -> None:
    check_length(0, int(length[0]), slots)


def _run(
    graph: TosaGraph,
    checks: Sequence[_Check],
    sources: Sequence[tuple[Array, Grid | None]],
    targets: Sequence[_Target],
) -> None:
    """Run the checks, then the graph, then write the results to the targets.

    All inputs are read before any output is written.

    Args:
        graph: the TOSA graph.
        checks: functions that raise an error for a position out of range.
        sources: the array of each input, with its grid, or None for integers.
        targets: where results are written.
    """
    for check in checks:
        check()
    given = [
        array if grid is None else grid.integers(array.astype(np.float32))
        for array, grid in sources
    ]
    made = evaluate(graph, given)
    for target in targets:
        numbers = target.grid.numbers(made[target.place].astype(np.int32))
        if target.rows is None:
            target.array[...] = numbers
            continue
        first, count = int(target.rows[0][0]), target.rows[1]
        new = slice(first, first + count)
        target.array[:, :, new] = numbers[:, :, new]
