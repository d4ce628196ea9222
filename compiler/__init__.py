"""kvc's compiler: from the methods of a torch module to a bundle."""

import kvc.schema.torch_ops  # noqa: F401  registers kvc::cache_update, kvc::attention
from kvc.compiler.backends import register_backend
from kvc.compiler.bundle import Bundle, SaveReport
from kvc.compiler.checkpoints import Checkpoint, empty_parameters
from kvc.compiler.pipeline import compile_program
from kvc.compiler.spec import Dim, Method, ModelSpec, StateSpec

__all__ = [
    "Bundle",
    "Checkpoint",
    "Dim",
    "Method",
    "ModelSpec",
    "SaveReport",
    "StateSpec",
    "compile_program",
    "empty_parameters",
    "register_backend",
]
