"""int4 weights in the layout of `kvc::linear_qb4`: groups of eight rows, interleaved.

The functions work on numpy arrays and torch tensors, and share no code with the
functions that they test.
"""

import numpy as np


def side_by_side(rows):
    """Convert a weight, or its scales, to the layout of `kvc::linear_qb4`.

    A weight uint8 [out, in / 2] becomes [out / 8, in / 8, 8, 4]. Scales [out, blocks]
    become [out / 8, blocks, 8].
    """
    last = (4,) if "uint8" in str(rows.dtype) else ()
    made = rows.reshape(len(rows) // 8, 8, -1, *last).swapaxes(1, 2)
    return made.copy() if isinstance(made, np.ndarray) else made.contiguous()


def one_by_one(groups):
    """Convert the result of `side_by_side` back to rows."""
    rows = groups.swapaxes(1, 2)
    return rows.reshape(8 * groups.shape[0], -1)


def unpack_int4(weight):
    """Return the numbers, int64 [out, in], of a weight uint8 [out / 8, in / 8, 8, 4].

    The low half of a byte is the first number.
    """
    rows = one_by_one(weight)
    values = np.empty((len(rows), 2 * rows.shape[1]), np.int64)
    values[:, 0::2], values[:, 1::2] = rows & 15, rows >> 4
    return values - 8
