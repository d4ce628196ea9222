"""The run-time part of the backend `mlx`: Apple's MLX, on a Mac's GPU or any processor.

backend.py                    the delegate
library.py                    whether MLX is usable
evaluation.py                 computes a block, instruction by instruction
functions.py, attention.py    operators as functions of arrays of MLX
states.py                     states as arrays of MLX
"""

from kvc.runtime.delegates.mlx.backend import Mlx

__all__ = ["Mlx"]
