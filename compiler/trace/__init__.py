"""Trace the methods of a module with torch.export."""

from kvc.compiler.trace.export import CapturedMethod, capture
from kvc.compiler.trace.python_state import Unchanged

__all__ = ["CapturedMethod", "Unchanged", "capture"]
