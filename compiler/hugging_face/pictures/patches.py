"""Compute patches of a picture by operators that backends have.

A convolution whose windows lie side by side multiplies each patch by one matrix, and
such a pool is a mean. In: a model. Out: while `as_products` is active, such
convolutions are linear layers over patches, whose weights stay what they are, and such
pools are means.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def as_products(model: PreTrainedModel) -> Iterator[None]:
    """Let convolutions over patches be products, and pools over patches means."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and _is_of_patches(module):
                vars(module)["forward"] = partial(_product, module)
                stack.callback(vars(module).pop, "forward")
            if isinstance(module, nn.AvgPool2d) and _pools_patches(module):
                vars(module)["forward"] = partial(_mean, module)
                stack.callback(vars(module).pop, "forward")
        yield


def _is_of_patches(module: nn.Conv2d) -> bool:
    side_by_side = module.stride == module.kernel_size and module.dilation == (1, 1)
    return side_by_side and module.padding in ((0, 0), "valid") and module.groups == 1


def _pools_patches(module: nn.AvgPool2d) -> bool:
    padded = _pair(module.padding) != (0, 0) or module.ceil_mode
    divided = module.divisor_override is not None
    return module.stride == module.kernel_size and not padded and not divided


def _product(module: nn.Conv2d, pixels: Tensor) -> Tensor:
    """Return float32 [batch, out, rows, columns] of pixels [batch, in, height, width].

    Pixels after the last whole patch are left out, as a convolution does.
    """
    tall, wide = module.kernel_size
    parts = _in_patches(pixels, tall, wide)
    batch, _, rows, _, columns, _ = parts.shape
    patches = parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)
    made = torch.nn.functional.linear(patches, module.weight.flatten(1), module.bias)
    return made.transpose(1, 2).reshape(batch, -1, rows, columns)


def _mean(module: nn.AvgPool2d, states: Tensor) -> Tensor:
    """Return [batch, channels, rows, columns] of [batch, channels, height, width]."""
    return _in_patches(states, *_pair(module.kernel_size)).mean(dim=(3, 5))


def _in_patches(pixels: Tensor, tall: int, wide: int) -> Tensor:
    """Return [batch, channels, rows, tall, columns, wide]: whole patches."""
    batch, channels, height, width = pixels.shape
    rows, columns = height // tall, width // wide
    whole = pixels[:, :, : rows * tall, : columns * wide]
    return whole.reshape(batch, channels, rows, tall, columns, wide)


def _pair(sides: int | tuple[int, int]) -> tuple[int, int]:
    return (sides, sides) if isinstance(sides, int) else sides
