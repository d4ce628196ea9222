"""Support list of the backend `cpu` for linear algebra.

Singular values and eigenvectors are left out: their signs follow from the steps of
LAPACK's iterations.
"""

from typing import Final

from kvc.schema.backends.cpu_rules import FLOATS, chosen, rules
from kvc.schema.backends.operands import Rule

LINEAR_ALGEBRA: Final[dict[str, Rule]] = rules(
    chosen(*FLOATS),
    "aten::linalg_cholesky aten::linalg_cholesky_ex aten::linalg_det "
    "aten::linalg_householder_product aten::linalg_inv aten::linalg_inv_ex "
    "aten::linalg_matrix_exp aten::linalg_qr aten::linalg_slogdet aten::linalg_solve "
    "aten::linalg_solve_ex aten::linalg_solve_triangular",
)
