"""Support list of the backend `cpu` for moving and looking up elements."""

from typing import Final

from kvc.schema.backends.cpu_rules import (
    ALL,
    FLOATS,
    INDEX,
    REALS,
    alike,
    filled,
    one_dtype,
    rules,
    takes_none_of,
    written,
)
from kvc.schema.backends.operands import Arguments, Results, Rule, operand


def _padded(arguments: Arguments, results: Results) -> str:
    """Return "" if a number can be put around the elements, else why not."""
    x, _, value = arguments
    return filled((x, value), results)


def _searched(arguments: Arguments, results: Results) -> str:
    """Return "" if numbers can be looked up among others of one dtype, else why not."""
    return alike(*REALS)(arguments, ())


def _bags(arguments: Arguments, results: Results) -> str:
    """Return "" if rows of floats can be reduced in bags of indices, else why not."""
    weight, indices, offsets, _, factors, *_ = arguments
    found = {operand(each).type.dtype for each in (indices, offsets)}
    if not found <= {*INDEX}:
        return takes_none_of(found)
    return alike(*FLOATS)((weight, factors), results)


PLACES: Final[dict[str, Rule]] = {
    **rules(one_dtype, "aten::roll aten::flip aten::diagonal aten::unfold"),
    "aten::constant_pad_nd": _padded,
    **rules(_searched, "aten::bucketize.Tensor aten::searchsorted.Tensor"),
    **rules(
        written(alike(*ALL)),
        "aten::index_add aten::scatter_add aten::scatter_reduce.two",
    ),
    "aten::_embedding_bag_forward_only": _bags,
    "aten::_cdist_forward": alike(*FLOATS),
}
