"""The inputs and results of a partition's calls on the device.

A `Plan` is made for each set of sizes. Feeds are the device's inputs: operands rounded
to float16 or to a grid, the old content of caches, and attention masks. Takes are its
results: whole results, and new rows of caches. Values are those of the partition's
graph that the host has: inputs, constants and views of them.
"""

from collections.abc import Mapping
from dataclasses import field

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.runtime.delegates.qnn.attention_masks import Sight
from kvc.runtime.delegates.qnn.model_file import Model
from kvc.schema.backends.grids import Grid
from kvc.schema.frozen import frozen


@frozen
class Whole:
    """A whole operand."""

    name: str
    value: int


@frozen
class Past:
    """The old content of a cache, with zeros in slots that a mask hides."""

    name: str
    value: int
    sight: Sight


@frozen
class Bias:
    """The addition of a mask to the scores of an attention."""

    name: str
    sight: Sight


@frozen
class Seeing:
    """A factor per query: 1 if it sees a key, 0 if not, which gives zeros."""

    name: str
    sight: Sight


Feed = Whole | Past | Bias | Seeing


@frozen
class Made:
    """A whole result; `output` is its index among the graph's outputs."""

    name: str
    output: int


@frozen
class Rows:
    """New rows of a cache, [batch, heads, rows, width].

    Attributes:
        name: name of the device's result.
        output: index of the cache's new content among the graph's outputs.
        cache: value of the old content.
        writes: the locations of the rows.
    """

    name: str
    output: int
    cache: int
    writes: Writes


@frozen
class Stored:
    """A constant of the device, in the file of weights.

    Attributes:
        name: name of the weight there.
        data: id of its named data.
        transposed: whether its two axes are swapped.
        grid: the grid that it is rounded to; None if it is rounded to float16, or
            unchanged.
        is_exact: whether it is unchanged.
    """

    name: str
    data: int
    transposed: bool
    grid: Grid | None = None
    is_exact: bool = False


@frozen
class Plan:
    """The calls of a partition at one set of sizes.

    Attributes:
        model: the device's model; its weights have no offsets yet.
        stored: the origin of each weight of the model.
        feeds: the model's inputs, in its order.
        takes: the model's outputs, in its order, each with all uses of it.
        handed: results that need no device.
        grids: of the model's inputs and outputs, by name; empty in float16.
    """

    model: Model
    stored: tuple[Stored, ...]
    feeds: tuple[Feed, ...]
    takes: tuple[tuple[Made | Rows, ...], ...]
    handed: tuple[Handed, ...]
    grids: Mapping[str, Grid] = field(default_factory=dict)
