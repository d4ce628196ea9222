"""Support list of the backend `cpu` for linear algebra."""

from typing import Final

from kvc.schema.backends.cpu_rules import FLOATS, alike, rules
from kvc.schema.backends.operands import Arguments, Results, Rule
from kvc.schema.dtypes import DType

_MATRICES: Final = alike(*FLOATS)


def _told(arguments: Arguments, results: Results) -> str:
    """Return "" if matrices can be solved, and how it went be told, else why not."""
    *made, info = results
    known = info.dtype is DType.INT32
    return _MATRICES(arguments, made) if known else f"{info} tells how it went"


LINEAR_ALGEBRA: Final[dict[str, Rule]] = {
    **rules(
        _MATRICES,
        "aten::linalg_cholesky aten::linalg_det aten::linalg_householder_product "
        "aten::linalg_inv aten::linalg_matrix_exp aten::linalg_qr "
        "aten::linalg_slogdet aten::linalg_solve aten::linalg_solve_triangular",
    ),
    **rules(
        _told, "aten::linalg_cholesky_ex aten::linalg_inv_ex aten::linalg_solve_ex"
    ),
}
