"""Shape rules of linear algebra: inverses, systems of equations, decompositions.

Operands are [..., rows, columns]; the leading axes are batches.
"""

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import Rule, Shape, broadcast_shapes, require, shape_of
from kvc.schema.types import TensorType


def square(self: TensorType, *_: object) -> Rule:
    """Compute a matrix of the operand's shape from a square matrix."""
    return ((self.dtype, _square_of(self)),)


def square_told(self: TensorType, *_: object) -> Rule:
    """Compute a square matrix from a square matrix, and int32 status codes."""
    return ((self.dtype, _square_of(self)), (DType.INT32, _square_of(self)[:-2]))


def determinant(self: TensorType) -> Rule:
    """Compute the determinant, one number, of a square matrix."""
    return ((self.dtype, _square_of(self)[:-2]),)


def sign_and_logarithm(self: TensorType) -> Rule:
    """Compute two numbers of a square matrix: the determinant's sign and logarithm."""
    return determinant(self) * 2


def solve(a: TensorType, b: TensorType, left: bool) -> Rule:
    """Solve a x = b (`left`) or x a = b for x; b is a matrix or a vector."""
    square, right = _square_of(a), shape_of(b)
    if len(right) == 1 or right == square[:-1]:  # vectors, by the rule of torch
        require(left, f"{b} is no matrix")
        return ((b.dtype, _solved(square, (*right, 1), left=True)[:-1]),)
    return ((b.dtype, _solved(square, right, left)),)


def solve_told(a: TensorType, b: TensorType, left: bool, _: bool) -> Rule:
    """Solve as `solve` does, and return an int32 status code for each matrix too."""
    return (*solve(a, b, left), (DType.INT32, _square_of(a)[:-2]))


def solve_triangular(
    a: TensorType, b: TensorType, upper: bool, left: bool, unitriangular: bool
) -> Rule:
    """Solve a x = b (`left`) or x a = b for a matrix x; a is triangular."""
    return ((b.dtype, _solved(_square_of(a), shape_of(b), left)),)


def _solved(square: Shape, right: Shape, left: bool) -> Shape:
    fits = len(right) > 1 and right[-2 if left else -1] == square[-1]
    require(fits, f"{square} and {right} as sides of an equation")
    return (*broadcast_shapes([square[:-2], right[:-2]]), *right[-2:])


def orthogonal(a: TensorType, mode: str) -> Rule:
    """Decompose into an orthogonal and a triangular matrix (QR)."""
    *batch, rows, columns = _matrix_of(a)
    inner = rows if mode == "complete" else min(rows, columns)
    require(mode in ("reduced", "complete", "r"), f"the mode {mode!r}")
    first = (0,) if mode == "r" else (*batch, rows, inner)
    return ((a.dtype, first), (a.dtype, (*batch, inner, columns)))


def reflections(a: TensorType, factors: TensorType) -> Rule:
    """Multiply Householder reflections, whose vectors are the columns of a matrix."""
    *batch, rows, columns = _matrix_of(a)
    *others, count = shape_of(factors) or (-1,)
    fits = others == batch and count <= columns <= rows
    require(fits, f"{factors} for the reflections of {a}")
    return ((a.dtype, shape_of(a)),)


def singular_values(
    a: TensorType, full_matrices: bool, compute_uv: bool, driver: str | None
) -> Rule:
    """Decompose into singular values and two orthogonal matrices (SVD)."""
    *batch, rows, columns = _matrix_of(a)
    least = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (least, least)
    first = (*batch, rows, left) if compute_uv else (0,)
    last = (*batch, right, columns) if compute_uv else (0,)
    return ((a.dtype, first), (a.dtype, (*batch, least)), (a.dtype, last))


def eigenvalues(a: TensorType, uplo: str, compute_v: bool) -> Rule:
    """Find the eigenvalues and eigenvectors of a symmetric matrix."""
    shape = _square_of(a)
    require(uplo in ("L", "U"), f"the triangle {uplo!r}")
    return ((a.dtype, shape[:-1]), (a.dtype, shape if compute_v else (0,)))


def _matrix_of(tensor: TensorType) -> Shape:
    require(len(tensor.dims) > 1, "{} is no matrix", tensor)
    return shape_of(tensor)


def _square_of(tensor: TensorType) -> Shape:
    shape = _matrix_of(tensor)
    require(shape[-1] == shape[-2], "{} is no square matrix", tensor)
    return shape
