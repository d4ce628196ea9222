"""The run-time part of the backend `xnnpack`: subgraphs run by the library."""

from kvc.runtime.delegates.xnnpack.backend import Xnnpack

__all__ = ["Xnnpack"]
