"""Support list of the backend `cpu` for operators that reduce, rank and accumulate."""

from typing import Final

from kvc.schema.backends.cpu_rules import (
    ALL,
    ARITHMETIC,
    FLOATING,
    FLOATS,
    INTEGERS,
    REALS,
    alike,
    chosen,
    rules,
    takes_none_of,
    told,
)
from kvc.schema.backends.operands import Arguments, Results, Rule, operand
from kvc.schema.dtypes import DType


def _summed(arguments: Arguments, results: Results) -> str:
    """Return "" if elements can be added up in the result's dtype, else why not."""
    found = operand(arguments[0]).type.dtype, results[0].dtype
    whole = found[0] not in FLOATS and found[1] in INTEGERS
    known = found[0] in ALL and (whole or found[1] in FLOATS)
    return "" if known else takes_none_of(found)


def _truth(arguments: Arguments, results: Results) -> str:
    """Return "" if the truth of elements is reduced along some axes, else why not.

    An empty tuple of axes is refused.
    """
    empty = len(arguments) > 1 and arguments[1] == ()
    return "no axes" if empty else told(DType.BOOL, *ALL)(arguments, results)


def _rows(arguments: Arguments, results: Results) -> str:
    """Return "" if rows are normalised along axes of known sizes, else why not."""
    axes = arguments[1]
    assert isinstance(axes, tuple)
    if not all(isinstance(size, int) for size in axes):
        return f"normalising over {axes}"
    return alike(*FLOATS)(arguments, results)


# Those whose operands are cast to the dtype of the result.
COMPUTED_REDUCTIONS: Final[dict[str, Rule]] = {
    **rules(ARITHMETIC, "aten::prod aten::prod.dim_int aten::cumsum aten::cumprod"),
    **rules(
        FLOATING,
        "aten::mean.dim aten::linalg_vector_norm aten::softmax.int "
        "aten::log_softmax.int",
    ),
}
REDUCTIONS: Final[dict[str, Rule]] = {
    "aten::sum.dim_IntList": _summed,
    **rules(alike(*ALL), "aten::amax aten::amin"),
    **rules(
        _truth,
        "aten::any aten::all aten::any.dim aten::all.dim aten::any.dims aten::all.dims",
    ),
    **rules(told(DType.INT64, *REALS), "aten::argmax aten::argmin"),
    **rules(_rows, "aten::rms_norm aten::layer_norm"),
    **rules(
        chosen(*ALL),
        "aten::max.dim aten::min.dim aten::sort aten::cummax aten::cummin",
    ),
    **rules(
        chosen(*REALS),
        "aten::median aten::median.dim aten::nanmedian "
        "aten::nanmedian.dim aten::kthvalue aten::topk",
    ),
    **rules(
        chosen(*FLOATS),
        "aten::var.correction aten::var_mean.correction aten::logcumsumexp",
    ),
}
