"""Support list of the backend `cpu` for pools, resizing and norms over channels."""

from typing import Final

from kvc.schema.backends.cpu_rules import FLOATS, INDEX, alike, chosen, rules
from kvc.schema.backends.operands import Arguments, Results, Rule
from kvc.schema.dtypes import DType


def _average(arguments: Arguments, results: Results) -> str:
    """Return "" if windows can be averaged, else why not.

    torch refuses a divisor of 0 too.
    """
    if arguments[-1] == 0:
        return "a divisor of 0"
    return chosen(*FLOATS, DType.INT64)(arguments, results)


SPATIAL: Final[dict[str, Rule]] = {
    **rules(_average, "aten::avg_pool2d aten::avg_pool3d"),
    **rules(
        chosen(*FLOATS, *INDEX, DType.INT16, DType.INT8, DType.UINT8),
        "aten::max_pool2d_with_indices aten::max_pool3d_with_indices",
    ),
    **rules(
        chosen(*FLOATS),
        "aten::_adaptive_avg_pool2d aten::_adaptive_avg_pool3d "
        "aten::adaptive_max_pool2d aten::adaptive_max_pool3d aten::upsample_bilinear2d "
        "aten::_upsample_bilinear2d_aa aten::_upsample_bicubic2d_aa",
    ),
    "aten::upsample_nearest2d": chosen(*FLOATS, DType.UINT8),
    **rules(
        alike(*FLOATS),
        "aten::grid_sampler_2d aten::grid_sampler_3d aten::batch_norm aten::group_norm",
    ),
}
