"""Compile one forward of a model without a cache.

model, example arguments --run once--> structure of the outputs
      --trace, `compile_program`--> a bundle with the method `forward`

The method takes a dict of tensors and returns the tensors of the model's outputs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.exporters.metadata import ExportMetadata, record_output_structure

from kvc.compiler import Bundle, Dim, Method, compile_program
from kvc.schema.errors import SizesRefused, UnsupportedModel
from kvc.transformers.config import KvcConfig
from kvc.transformers.description import described
from kvc.transformers.interface import FORWARD, TOKENS

_ROWS: Final = 64  # the most rows where nothing is said
_LENGTH: Final = 4096  # the longest text of a model without a limit
_INPUTS: Final = "inputs"


def compile_forward(
    model: nn.Module, inputs: Mapping[str, object], config: KvcConfig
) -> tuple[Bundle, ExportMetadata]:
    """Compile a forward; the model stays unchanged.

    Args:
        model: the model.
        inputs: example arguments of its forward: tensors, numbers, texts or None.
        config: the settings.

    Raises:
        UnsupportedModel: an argument or a result is no tensor, number, text or None.
        CompileError: as `compile_program`.
    """
    tensors, constants = _split(model, inputs)
    metadata = described(model)
    metadata.kwargs = {name: {} for name in inputs}
    metadata.in_constants = constants
    with _evaluated(model), torch.no_grad():
        whole = _Forward(model, constants)
        try:
            record_output_structure(metadata, whole.outputs(tensors))
        except ValueError as error:
            raise _refused(
                model, f"an export cannot hold its result: {error}"
            ) from None
        dims = _dims(model, tensors, config) if config.dynamic else {}
        method = Method(FORWARD, (tensors,), dynamic=dims)
        try:
            bundle = compile_program(whole, [method], config.recipe, fit=config.fit)
        except SizesRefused as error:
            reason = f"{error}; KvcConfig(dynamic=False) compiles the example's sizes"
            raise _refused(model, reason) from error
    return bundle, metadata


class _Forward(nn.Module):
    """A model whose forward returns the tensors of its outputs."""

    def __init__(self, model: nn.Module, constants: Mapping[str, object]) -> None:
        super().__init__()
        self.model = model
        self._constants = dict(constants)
        self.train(False)

    def outputs(self, inputs: dict[str, Tensor]) -> object:
        """Return what the model returns."""
        return self.model(**inputs, **self._constants)

    def forward(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the tensors in what the model returns."""
        leaves = _pytree.tree_leaves(self.outputs(inputs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _split(
    model: nn.Module, inputs: Mapping[str, object]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, and what is compiled as it is.

    Raises:
        UnsupportedModel: an argument is something else, such as a cache.
    """
    tensors, constants = dict[str, Tensor](), dict[str, Any]()
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, Cache):
            reason = (
                f"{name} is a cache, which kvc keeps in sessions; use "
                "export_for_generation for a model that writes one"
            )
            raise _refused(model, reason)
        elif value is None or isinstance(value, bool | int | float | str):
            constants[name] = value
        else:
            kind = type(value).__name__
            raise _refused(model, f"{name} is a {kind}, and no tensor or number")
    if not tensors:
        raise _refused(model, "no example argument is a tensor")
    return tensors, constants


def _dims(
    model: nn.Module, tensors: Mapping[str, Tensor], config: KvcConfig
) -> dict[str, dict[int, Dim]]:
    """Return which axes vary: rows, and of tokens their number."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    length = config.max_length or limit or _LENGTH
    rows = Dim("batch", 1, config.batch or _ROWS)
    seq = Dim("seq", 1, min(length, limit or length))
    first = next(iter(tensors.values()))
    count = tensors.get(TOKENS, first).shape[1:2]
    found = dict[str, dict[int, Dim]]()
    for name, tensor in tensors.items():
        axes = {}
        if tensor.dim() and tensor.shape[0] == first.shape[0]:
            axes[0] = rows
        if not tensor.is_floating_point() and tensor.shape[1:] == count:
            axes[1] = seq
        if axes:
            found[f"{_INPUTS}.{name}"] = axes
    return found


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """Let a model be in evaluation mode, and attend in code that asks for no sizes."""
    training = [module for module in model.modules() if module.training]
    kept = _implementation(model)
    model.train(False)
    if kept is not None:
        model.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        yield
    finally:
        if kept is not None:
            model.set_attn_implementation(kept)  # type: ignore[operator]
        for module in training:
            module.training = True


def _implementation(model: nn.Module) -> str | dict[str, str] | None:
    """Return how a model attends; None if it knows one way alone."""
    if (
        not isinstance(model, PreTrainedModel)
        or not model._can_set_attn_implementation()
    ):
        return None
    named: str | None = model.config._attn_implementation
    return named


def _refused(model: nn.Module, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(model).__name__, reason=reason)
