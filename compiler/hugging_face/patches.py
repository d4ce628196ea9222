"""Compute patches of a picture as rows of a product, which backends have.

A convolution whose windows lie side by side multiplies each patch by one matrix. In: a
model. Out: while `as_products` is active, such convolutions are linear layers over
patches; their weights stay what they are.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def as_products(model: PreTrainedModel) -> Iterator[None]:
    """Let convolutions over patches be products."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and _is_of_patches(module):
                vars(module)["forward"] = partial(_product, module)
                stack.callback(vars(module).pop, "forward")
        yield


def _is_of_patches(module: nn.Conv2d) -> bool:
    side_by_side = module.stride == module.kernel_size and module.dilation == (1, 1)
    return side_by_side and module.padding in ((0, 0), "valid") and module.groups == 1


def _product(module: nn.Conv2d, pixels: Tensor) -> Tensor:
    """Return float32 [batch, out, rows, columns] of pixels [batch, in, height, width].

    Pixels after the last whole patch are left out, as a convolution does.
    """
    (tall, wide), (batch, channels, height, width) = module.kernel_size, pixels.shape
    rows, columns = height // tall, width // wide
    whole = pixels[:, :, : rows * tall, : columns * wide]
    parts = whole.reshape(batch, channels, rows, tall, columns, wide)
    patches = parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)
    made = torch.nn.functional.linear(patches, module.weight.flatten(1), module.bias)
    return made.transpose(1, 2).reshape(batch, -1, rows, columns)
