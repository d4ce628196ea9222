"""The native backend `cpu`, at run time: kvc's own kernels."""

from kvc.runtime.delegates.cpu.backend import Cpu

__all__ = ["Cpu"]
