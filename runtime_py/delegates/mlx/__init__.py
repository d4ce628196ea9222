"""The run-time part of the backend `mlx`: Apple's MLX, on a Mac's GPU or any processor.

backend.py       whether MLX is usable, and the delegate
runs.py          a partition at fixed sizes: its inputs, checks and results
evaluation.py    primitives as functions of arrays of MLX, and their computation
states.py        states as arrays of MLX
"""

from kvc.runtime.delegates.mlx.backend import Mlx

__all__ = ["Mlx"]
