"""The XNNPACK backend, at run time: graphs run by the library, through ctypes."""

from kvc.runtime.delegates.xnnpack.backend import Xnnpack

__all__ = ["Xnnpack"]
