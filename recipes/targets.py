"""Targets that have no backend here: what to use meanwhile, and whether they may come.

A recipe is named after its target, `vulkan_q8`. A name that begins with one of these
targets is refused with what is known of it, in place of a list of other names.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """A target without a backend.

    Attributes:
        name: of the target, in words.
        state: whether a backend is planned, and why not.
        instead: recipes to use meanwhile.
    """

    name: str
    state: str
    instead: str


_ANYWHERE: Final = "cpu_q8 or cpu_q4, which run on every processor"
_GPU: Final = f"vulkan_fp32 on a GPU with a Vulkan driver, {_ANYWHERE}"
TARGETS: Final = {
    "mps": Target(
        "Apple's Metal Performance Shaders",
        "not planned: ExecuTorch, where recipes of this name came from, has removed it",
        f"mlx_q8 on a Mac, what is exported for Core AI or Core ML, {_ANYWHERE}",
    ),
    "cuda": Target("NVIDIA's CUDA", "planned", _GPU),
    "openvino": Target(
        "Intel's OpenVINO",
        "not planned: on processors it was no faster than XNNPACK",
        f"xnnpack_q8, {_ANYWHERE}",
    ),
}


def target_of(recipe: str) -> Target | None:
    """Return the target without a backend that a recipe's name begins with."""
    return TARGETS.get(recipe.lower().partition("_")[0])
