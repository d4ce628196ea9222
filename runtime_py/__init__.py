"""The runtime: load a bundle, open sessions, run methods.

`import kvc.runtime` never imports torch; kernels do, on first need.
"""

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.generation import Generation, generate
from kvc.runtime.program import Program, load
from kvc.runtime.sessions import Session
from kvc.schema.errors import (
    BadSetting,
    BufferFreed,
    Busy,
    CacheOverflow,
    CallMismatch,
    Closed,
    DigestMismatch,
    ExecutionError,
    FileChanged,
    FileProblem,
    FormatError,
    InputMismatch,
    KernelFailed,
    KvcError,
    LoadError,
    MissingDelegate,
    NoPosition,
    StateNeeded,
    UnknownName,
)

__all__ = [
    "BadSetting",
    "BufferFreed",
    "Busy",
    "CacheOverflow",
    "CallMismatch",
    "Closed",
    "DigestMismatch",
    "ExecutionError",
    "FileChanged",
    "FileProblem",
    "FormatError",
    "FreeableBuffer",
    "Generation",
    "InputMismatch",
    "KernelFailed",
    "KvcError",
    "LoadError",
    "MissingDelegate",
    "NoPosition",
    "Program",
    "Session",
    "StateNeeded",
    "UnknownName",
    "generate",
    "load",
]
