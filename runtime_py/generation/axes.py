"""Positions with axes, of prompts whose pictures have sizes of their own (Qwen2-VL).

In: tokens, the grid of each picture. Out: time, row and column of each token, and what
number follows it. A text counts on all axes. A picture has one time, and rows and
columns from there on; what follows it begins after the longer of its sides.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.embedding.patches import Ids, grid_of

NUMBERS: Final = 4  # of a token: time, row, column, and what follows


def positions_of(prompt: Sequence[int], token: int, grids: Sequence[str]) -> Ids:
    """Return int64 [4, tokens], counted from the first one.

    Args:
        prompt: tokens, with one for each group of patches of each picture.
        token: that stands in these places.
        grids: rows and columns of groups of each picture.
    """
    made = np.zeros((NUMBERS, len(prompt)), np.int64)
    at, begin, left = 0, 0, iter(grids)
    while at < len(prompt):
        if prompt[at] != token:
            made[:, at] = begin
            begin += 1
            made[-1, at] = begin
            at += 1
            continue
        rows, columns = grid_of(next(left))
        count = rows * columns
        shown = made[:, at : at + count]
        shown[0] = begin
        shown[1] = begin + np.repeat(np.arange(rows), columns)
        shown[2] = begin + np.tile(np.arange(columns), rows)
        begin += max(rows, columns)
        shown[3] = begin
        at += count
    return made
