"""The inputs and results of a partition's calls on the device.

A `Plan` is made for each set of sizes. Feeds are the device's inputs: operands rounded
to float16 or to a grid, the old content of caches, and attention masks. Takes are the
device's outputs: whole results, and new rows of caches. A field `value` is the id of a
value in the partition's graph that the host has: an input, a constant, or a view of an
input or constant.
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
    """A feed: a whole operand."""

    name: str
    value: int


@frozen
class Past:
    """A feed: the old content of a cache, with zeros in slots that no query sees."""

    name: str
    value: int
    sight: Sight


@frozen
class Bias:
    """A feed: the numbers to add to the scores of an attention."""

    name: str
    sight: Sight


@frozen
class Seeing:
    """A feed: a factor for each query, 1 if the query sees a key, 0 if it sees none."""

    name: str
    sight: Sight


Feed = Whole | Past | Bias | Seeing


@frozen
class Made:
    """A take: a whole result; `output` is its index among the graph's outputs."""

    name: str
    output: int


@frozen
class Rows:
    """A take: new rows of a cache, [batch, heads, rows, width].

    Attributes:
        name: name of the device's result.
        output: index of the cache's new content among the graph's outputs.
        cache: id of the value that is the cache's old content.
        writes: which slots the rows are written to.
    """

    name: str
    output: int
    cache: int
    writes: Writes


@frozen
class Stored:
    """A constant of the device, in the file of weights.

    Attributes:
        name: name of the weight in the file.
        data: id of the weight's named data.
        transposed: whether the weight's two axes are swapped.
        grid: the grid that the weight is rounded to; None for a weight that is rounded
            to float16 or stored unchanged.
        is_exact: whether the weight is stored unchanged.
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
        model: the device's model; the offsets of its weights are not set yet.
        stored: for each weight of the model, which named data it is made from.
        feeds: the model's inputs, in order.
        takes: the model's outputs, in order, each with all its uses.
        handed: results that the host has without the device.
        grids: grids of the model's inputs and outputs, by name; empty in float16.
    """

    model: Model
    stored: tuple[Stored, ...]
    feeds: tuple[Feed, ...]
    takes: tuple[tuple[Made | Rows, ...], ...]
    handed: tuple[Handed, ...]
    grids: Mapping[str, Grid] = field(default_factory=dict)
