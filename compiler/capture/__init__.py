"""Trace the methods of a module with torch.export."""

from kvc.compiler.capture.export import CapturedMethod, capture

__all__ = ["CapturedMethod", "capture"]
