"""What a call of a partition gives the device, and takes from it.

A `Plan` is made for each set of sizes. Feeds are what the device is given: operands
rounded to float16 or to a grid, the old content of caches, and what hides parts of
them. Takes are what it makes: results, and new rows of caches. Values are those of the
partition's graph that the host has: inputs, constants and views of them.
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
    """An operand, all of it."""

    name: str
    value: int


@frozen
class Past:
    """The old content of a cache, where a sight sees it; zeros elsewhere."""

    name: str
    value: int
    sight: Sight


@frozen
class Bias:
    """What is added to the scores of an attention."""

    name: str
    sight: Sight


@frozen
class Seeing:
    """1 for each query that sees a key, 0 for others, which give zeros."""

    name: str
    sight: Sight


Feed = Whole | Past | Bias | Seeing


@frozen
class Made:
    """A result, all of it; `output` is its index among the graph's outputs."""

    name: str
    output: int


@frozen
class Rows:
    """New rows of a cache, [batch, heads, rows, width].

    Attributes:
        name: of the device's result.
        output: index among the graph's outputs, of the cache's new content.
        cache: value of the old content.
        writes: where the rows go.
    """

    name: str
    output: int
    cache: int
    writes: Writes


@frozen
class Stored:
    """A constant of the device's, in the file of weights.

    Attributes:
        name: of the weight there.
        data: id of the named data that it is.
        transposed: whether its two axes are swapped.
        grid: that it is rounded to; None where it is rounded to float16, or left as it
            is.
        is_exact: whether it is left as it is.
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
        model: what the device runs; its weights have no offsets yet.
        stored: the model's weights, by what they are.
        feeds: the model's inputs, in its order.
        takes: the model's outputs, in its order, each with all that is made of it.
        handed: what needs no device.
        grids: of the model's inputs and outputs, by name; empty in float16.
    """

    model: Model
    stored: tuple[Stored, ...]
    feeds: tuple[Feed, ...]
    takes: tuple[tuple[Made | Rows, ...], ...]
    handed: tuple[Handed, ...]
    grids: Mapping[str, Grid] = field(default_factory=dict)
