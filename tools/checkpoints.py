"""Check the path of a model before torch is imported, which takes seconds.

In: the path of a Hugging Face folder or of a .gguf file. Out: nothing, or the error
that compiling would end with.
"""

import json
import os
from pathlib import Path
from typing import Final

from kvc.schema.checkpoints.gguf_header import SUFFIX, read_gguf_header
from kvc.schema.checkpoints.hub_names import why_not_fetched
from kvc.schema.checkpoints.problems import Problems, bad_checkpoint
from kvc.schema.checkpoints.quantization import check_method
from kvc.schema.errors import (
    CheckpointError,
    ModelNotFound,
    listing,
    meant,
    reason_of,
)

BUILT_IN: Final = ("demo",)  # the names of `kvc.compiler.models`, which imports torch


def is_checkpoint(model: str) -> bool:
    """Tell whether a name is the path of a folder or a .gguf file, not built in."""
    path = Path(model)
    return model not in BUILT_IN and (path.is_dir() or path.suffix == SUFFIX)


def check_checkpoint(model: str) -> None:
    """Check what can be checked of a folder or file without torch.

    Raises:
        BadCheckpoint: a .gguf file is damaged; the error lists all problems.
        CheckpointError: a .gguf file cannot be opened.
        MissingPackage: the gguf package is not installed.
        UnsupportedModel: weights are quantized in a way that kvc does not read.
    """
    path = Path(model)
    if path.is_dir():
        _check_config(path)
    else:
        _check_gguf(path)


def check_name(model: str) -> None:
    """Check that a name may be a folder, a built-in model or `package.module:factory`.

    Raises:
        ModelNotFound: it is none of them.
    """
    if not is_checkpoint(model) and model not in BUILT_IN and ":" not in model:
        raise not_a_model(model)


def not_a_model(name: str) -> ModelNotFound:
    """Return the error for a name that is no built-in model, folder or factory."""
    path = Path(name)
    if path.suffix == ".py":
        reason = f"name the function in it that returns the model, {path.stem}:factory"
    elif path.exists():
        reason = "it is a file; a model's weights need the folder that they lie in"
    else:
        near = f"it is not built in{meant(name, BUILT_IN)}, "
        reason = f"{near * (path.name == name)}{why_not_fetched(name)}"
    return ModelNotFound(model=name, reason=reason, known=listing(BUILT_IN))


def _check_config(folder: Path) -> None:
    try:
        described = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):  # told when the folder is opened
        return
    if isinstance(described, dict):
        check_method(described, str(folder))


def _check_gguf(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(path=str(path), reason=reason_of(error)) from error
    try:
        read_gguf_header(descriptor, os.fstat(descriptor).st_size)
    except (OSError, Problems) as error:
        reasons = error.reasons if isinstance(error, Problems) else [reason_of(error)]
        raise bad_checkpoint(reasons, str(path)) from error
    finally:
        os.close(descriptor)
