"""The run-time part of the backend `mlx`: Apple's MLX, on a Mac's GPU or any processor.

backend.py: what the runtime asks; library.py: whether MLX is here
evaluation.py: a block, instruction by instruction; functions.py, attention.py
states.py: states as arrays of MLX
"""

from kvc.runtime.delegates.mlx.backend import Mlx

__all__ = ["Mlx"]
