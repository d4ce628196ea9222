"""Trace the methods of a module with torch.export."""

from kvc.compiler.capture.export import CapturedMethod, capture
from kvc.compiler.capture.unchanged import Unchanged

__all__ = ["CapturedMethod", "Unchanged", "capture"]
