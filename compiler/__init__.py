"""kvc's compiler: turns methods of a torch module into a bundle.

Raises:
    MissingPackage: torch is not installed.
    WrongTorch: the installed torch is outside of the range that is tested.
"""

from typing import TYPE_CHECKING

from kvc.schema.torch_package import has_torch, missing_torch

if not has_torch():
    raise missing_torch("kvc's compiler")

import torch

from kvc.compiler.request.releases import TORCH
from kvc.schema.errors import WrongTorch

if not TORCH.has(torch.__version__):
    raise WrongTorch(found=torch.__version__, expected=str(TORCH))

import kvc.schema.torch_ops  # noqa: F401  registers kvc::cache_update, kvc::attention
from kvc.compiler.backends import register_backend
from kvc.compiler.checkpoints import Checkpoint, empty_parameters
from kvc.compiler.emit.bundle import Bundle, SaveReport
from kvc.compiler.lower.calibration import Calibrator
from kvc.compiler.lower.left_to_pytorch import LeftToPyTorch
from kvc.compiler.pipeline import compile_program
from kvc.compiler.request.adapter_slots import AdapterSlots
from kvc.compiler.request.spec import Dim, Method, ModelSpec, StateSpec

if TYPE_CHECKING:
    from kvc.compiler.hugging_face import CacheConfig, export_hf

__all__ = [
    "AdapterSlots",
    "Bundle",
    "CacheConfig",
    "Calibrator",
    "Checkpoint",
    "Dim",
    "LeftToPyTorch",
    "Method",
    "ModelSpec",
    "SaveReport",
    "StateSpec",
    "compile_program",
    "empty_parameters",
    "export_hf",
    "register_backend",
]


def __getattr__(name: str) -> object:
    """Import names that need transformers on first use.

    Raises:
        MissingTransformers: transformers is not installed.
    """
    if name not in ("CacheConfig", "export_hf"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvc.compiler import hugging_face

    return getattr(hugging_face, name)
