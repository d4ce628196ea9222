"""A model's weights in files: opened by their headers, read one block at a time."""

from kvc.compiler.checkpoints.checkpoint import Checkpoint
from kvc.compiler.checkpoints.empty import empty_parameters
from kvc.compiler.checkpoints.loading import Loaded

__all__ = ["Checkpoint", "Loaded", "empty_parameters"]
