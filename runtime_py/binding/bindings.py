"""`Binding`: a method bound to sizes and memory, and what a call of it needs."""

from collections.abc import Mapping, Sequence

from kvc.runtime.arrays import Array
from kvc.runtime.binding.executor import Frame
from kvc.runtime.states.access import Demand
from kvc.schema.frozen import frozen


@frozen
class Binding:
    """A frame, and what a call of its sizes needs.

    Attributes:
        frame: what runs.
        demand: what a call asks of its session.
        fills: (array to fill, index among the arguments that fill it).
        callers: where the callers' arrays lie, by the value that lies there.
    """

    frame: Frame
    demand: Demand
    fills: Sequence[tuple[Array, int]]
    callers: Mapping[int, tuple[object, ...]]
