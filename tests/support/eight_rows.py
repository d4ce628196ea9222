"""int4 weights as `kvc::linear_qb4` reads them: eight rows side by side.

Written for both numpy and torch, apart from the code that it is compared with.
"""

import numpy as np


def side_by_side(rows):
    """Return weights [out / 8, in / 8, 8, 4] of uint8 [out, in / 2]; else scales.

    Scales [out, blocks] become [out / 8, blocks, 8].
    """
    last = (4,) if "uint8" in str(rows.dtype) else ()
    made = rows.reshape(len(rows) // 8, 8, -1, *last).swapaxes(1, 2)
    return made.copy() if isinstance(made, np.ndarray) else made.contiguous()


def one_by_one(groups):
    """Return what `side_by_side` was given."""
    rows = groups.swapaxes(1, 2)
    return rows.reshape(8 * groups.shape[0], -1)


def unpack_int4(weight):
    """Return int64 [out, in] of uint8 [out / 8, in / 8, 8, 4]: low halves first."""
    rows = one_by_one(weight)
    values = np.empty((len(rows), 2 * rows.shape[1]), np.int64)
    values[:, 0::2], values[:, 1::2] = rows & 15, rows >> 4
    return values - 8
