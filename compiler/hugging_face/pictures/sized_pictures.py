"""Vision towers for pictures of variable size: from patches to embeddings.

In transformers, these towers (Qwen2-VL, Qwen2.5-VL) split patches by sizes that they
read from the values of tensors. In: a tower, the patches of a picture in groups that
become one embedding each, the position of each patch, and the attention windows. Out:
the embeddings that the tower itself would compute, for any number of patches. Patches
stay in their given order; attention does not depend on the order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.attention.replaced import attend_among
from kvc.compiler.hugging_face.encoder.encoding_methods import call_of
from kvc.compiler.hugging_face.reading.calls import attending, current_call
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.compiler.request.spec import Dim, Method
from kvc.schema.errors import UnsupportedModel

if TYPE_CHECKING:  # all towers have the form of this one
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import (
        Qwen2_5_VLVisionConfig as VisionConfig,
    )
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel as VisionTower,
    )
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VLVisionAttention as VisionAttention,
    )
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VLVisionBlock as VisionBlock,
    )
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

_EXAMPLE: Final = 2  # groups and windows in a trace; pictures may have any number


@dataclass(frozen=True, slots=True)
class Tower:
    """The sizes of a tower's patches and windows.

    Attributes:
        merge: number of patches along a side of a group, which becomes one embedding.
        patch: number of pixels along a side of a patch.
        frames: the number of repetitions of a picture in a patch.
        channels: the number of channels of a picture.
        window: number of groups along a side of a window; 0: all patches attend to each
            other.
    """

    merge: int
    patch: int
    frames: int
    channels: int
    window: int

    @property
    def width(self) -> int:
        """Return the number of elements of a patch."""
        return self.channels * self.frames * self.patch**2

    def patches(self) -> dict[str, object]:
        """Return the sizes of patches, named as the settings of a processor are."""
        return {"side": self.patch, "merge": self.merge, "frames": self.frames}

    def example(self) -> tuple[Tensor, ...]:
        """Return examples of a method's arguments, as for `embeddings_of`.

        These are patches and places, and for a tower with windows also windows and
        back.
        """
        size = self.merge**2
        patches = torch.zeros(_EXAMPLE, size, self.width)
        places = torch.zeros(_EXAMPLE, size, 2, dtype=torch.int64)
        if not self.window:
            return patches, places
        windows = torch.zeros(_EXAMPLE, size * self.window**2, dtype=torch.int64)
        return patches, places, windows, places[..., 0].clone()

    def method(self, groups: int) -> Method:
        """Return the method that computes embeddings of at most `groups` groups."""
        given, names = self.example(), ("patches", "places", "windows", "back")
        sizes = {0: Dim("groups", 1, groups)}
        dynamic = {name: sizes for name, _ in zip(names, given, strict=False)}
        if "windows" in dynamic:
            dynamic["windows"] = {0: Dim("windows", 1, groups)}
        return Method("embed_image", args=given, dynamic=dynamic)


@dataclass(frozen=True, slots=True)
class PictureInput:
    """The picture input of a model.

    Attributes:
        token: the placeholder token at each position of a picture.
        positions: the number of positions of a picture.
        size: height and width of a picture.
        channels: the number of channels of a picture.
        joined: whether a picture's positions attend to each other in both directions.
        tower: the tower for pictures of variable size, with `positions` as the maximum;
            None if all pictures have one size.
    """

    token: int
    positions: int
    size: tuple[int, int]
    channels: int
    joined: bool = False
    tower: Tower | None = None

    def pixels(self) -> Tensor:
        """Return an example of a picture, float32 [1, channels, height, width]."""
        return torch.zeros(1, self.channels, *self.size)


def tower_of(model: PreTrainedModel) -> "tuple[VisionTower, Tower] | None":
    """Return a model's tower and the tower's sizes, None if no tower is known.

    Raises:
        UnsupportedModel: the tower has patches or windows of another kind.
    """
    for module in model.modules():
        if name_of(module) in _MODELS:
            tower = cast("VisionTower", module.get_submodule("visual"))
            return tower, _taken(model, tower.config, _MODELS[name_of(module)])
    return None


def _taken(model: PreTrainedModel, config: "VisionConfig", windows: bool) -> Tower:
    """Return the sizes of a tower.

    Raises:
        UnsupportedModel: the tower's patches are not squares of one size, or its
            windows are smaller than a group of patches.
    """
    patch, frames = config.patch_size, config.temporal_patch_size
    if not isinstance(patch, int) or not isinstance(frames, int):
        reason = f"patches of {frames} x {patch} pixels are no squares"
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    merge, window = config.spatial_merge_size, 0
    if windows:
        window = config.window_size // (patch * merge)
        if not window:
            reason = f"windows of {config.window_size} pixels hold no group of patches"
            raise UnsupportedModel(model=type(model).__name__, reason=reason)
    return Tower(merge, patch, frames, config.in_channels, window)


@dataclass(frozen=True, slots=True)
class _Sights:
    """The windows within which patches attend to each other.

    Attributes:
        windows: int64 [windows, patches], the indices of the patches of each window,
            padded with -1.
        back: int64 [patches], the index of each patch in the flattened `windows`.
    """

    windows: Tensor
    back: Tensor


def embeddings_of(
    tower: "VisionTower",
    patches: Tensor,
    places: Tensor,
    windows: Tensor | None = None,
    back: Tensor | None = None,
) -> Tensor:
    """Return a tower's embeddings of a picture, float32 [groups, hidden].

    Args:
        tower: a tower found by `tower_of`.
        patches: float32 [groups, patches, width], the pixels of each patch; groups are
            in the order of rows.
        places: int64 [groups, patches, 2], the row and column of each patch.
        windows: int64 [windows, places], the indices of the patches of each window,
            padded with -1; None for a tower without windows.
        back: int64 [groups, patches], the index of each patch in the flattened windows.
    """
    states = _embedded(tower, patches.flatten(0, 1))
    turned = tower.rotary_pos_emb(states, places.flatten(0, 1))
    sights = None
    if windows is not None and back is not None:
        sights = _Sights(windows, back.flatten())
    whole = getattr(tower, "fullatt_block_indexes", ())  # blocks without windows
    with attending(call_of(None)):
        for number, one in enumerate(tower.blocks):
            block = cast("VisionBlock", one)
            seen = None if number in whole else sights
            states = states + _attended(block.attn, block.norm1(states), turned, seen)
            states = states + block.mlp(block.norm2(states))
    made: Tensor = tower.merger(states)
    return made.float()


def _embedded(tower: "VisionTower", patches: Tensor) -> Tensor:
    """Embed patches by a matrix product, which equals a convolution over one patch."""
    product = tower.patch_embed.proj
    return nn.functional.linear(patches, product.weight.flatten(1), product.bias)


def _attended(
    module: "VisionAttention",
    states: Tensor,
    turned: tuple[Tensor, Tensor],
    sights: _Sights | None,
) -> Tensor:
    """Return the result of attention among patches, [patches, width]."""
    parts: Tensor = module.qkv(states).unflatten(-1, (3, module.num_heads, -1))
    query, key = (_turned(parts[:, i], *turned) for i in range(2))
    given = query, key, parts[:, 2]
    if sights is None:
        query, key, value = (part.transpose(0, 1)[None] for part in given)
        seen = attend_among(query, key, value, module.scaling)[0]
    else:
        seen = _in_windows(given, sights, module.scaling)
    made: Tensor = module.proj(seen.flatten(1))
    return made


def _in_windows(given: tuple[Tensor, ...], sights: _Sights, scaling: float) -> Tensor:
    """Return the result of attention within windows, [patches, heads, width]."""
    inside = sights.windows.clamp(min=0)
    query, key, value = (part[inside].transpose(1, 2) for part in given)
    call = current_call()
    call.row_lengths = (sights.windows >= 0).sum(1)
    made = attend_among(query, key, value, scaling)
    call.row_lengths = None
    return made.flatten(0, 1)[sights.back]


def _turned(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate states [patches, heads, width] by the angles of their positions."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return states * cosines[:, None] + turned * sines[:, None]


# The models with a known tower, and whether some of its blocks attend only within
# windows.
_MODELS: Final[Mapping[str, bool]] = {
    "qwen2_5_vl.Qwen2_5_VLModel": True,
    "qwen2_vl.Qwen2VLModel": False,
}


# Compute patches of a picture by operators that backends have.


@contextmanager
def as_products(model: PreTrainedModel) -> Iterator[None]:
    """Replace, in a model's modules, convolutions over patches and pools over patches.

    Convolutions become matrix products, and pools become means.
    """
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
    """Convolve pixels [batch, in, height, width] to [batch, out, rows, columns].

    Pixels after the last whole patch are dropped, as a convolution does.
    """
    tall, wide = module.kernel_size
    parts = _in_patches(pixels, tall, wide)
    batch, _, rows, _, columns, _ = parts.shape
    patches = parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)
    made = torch.nn.functional.linear(patches, module.weight.flatten(1), module.bias)
    return made.transpose(1, 2).reshape(batch, -1, rows, columns)


def _mean(module: nn.AvgPool2d, states: Tensor) -> Tensor:
    """Compute the mean of each whole patch.

    `states` are [batch, channels, height, width], the result is [batch, channels, rows,
    columns].
    """
    return _in_patches(states, *_pair(module.kernel_size)).mean(dim=(3, 5))


def _in_patches(pixels: Tensor, tall: int, wide: int) -> Tensor:
    """Split pixels into whole patches of `tall` by `wide` pixels.

    The result is [batch, channels, rows, tall, columns, wide].
    """
    batch, channels, height, width = pixels.shape
    rows, columns = height // tall, width // wide
    whole = pixels[:, :, : rows * tall, : columns * wide]
    return whole.reshape(batch, channels, rows, tall, columns, wide)


def _pair(sides: int | tuple[int, int]) -> tuple[int, int]:
    return (sides, sides) if isinstance(sides, int) else sides
