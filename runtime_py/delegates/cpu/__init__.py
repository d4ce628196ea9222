"""The run-time part of the native backend `cpu`: kvc's own kernels."""

from kvc.runtime.delegates.cpu.backend import Cpu

__all__ = ["Cpu"]
