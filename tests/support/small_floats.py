"""Write a matrix in floats of 4 or 8 bits with a scale for each block of inputs."""

from collections.abc import Callable

import torch
from torch import Tensor

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
Written = tuple[dict[str, Tensor], Tensor]  # by the ends of names, and the weights


def small_floats(mode: str, library: str) -> Callable[[Tensor], Written]:
    """Return a writer of mxfp4, mxfp8 or nvfp4, as compressed-tensors or MLX has it."""
    group = 16 if mode == "nvfp4" else 32
    whole = 4.0 if (mode, library) == ("nvfp4", "compressed") else 1.0

    def write(weight: Tensor) -> Written:
        parts = weight.view(len(weight), -1, group)
        most = parts.abs().amax(-1)
        if mode == "nvfp4":
            stored = (most / 6 * whole).to(torch.float8_e4m3fn)
            scales, bits = stored.float() / whole, stored.view(torch.uint8)
        else:
            powers = (most / (448 if mode == "mxfp8" else 6)).log2().ceil()
            scales, bits = 2**powers, (powers + 127).byte()
            stored = bits
        unit = (parts / scales[..., None]).view_as(weight)
        if mode == "mxfp8":
            eights = unit.to(torch.float8_e4m3fn)
            packed, values = eights.view(torch.uint8), eights.float()
        else:
            nearest = (unit.abs()[..., None] - E2M1).abs().argmin(-1)
            values = E2M1[nearest] * unit.sign()
            nibbles = (nearest + 8 * (unit < 0)).byte()
            packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
        widened = (values.view_as(parts) * scales[..., None]).view_as(weight)
        if library == "mlx":
            return {"weight": packed.view(torch.uint32), "scales": bits}, widened
        if mode == "mxfp8":
            eights = packed.view(torch.float8_e4m3fn)
            return {"weight": eights, "weight_scale": stored}, widened
        tensors = {"weight_packed": packed, "weight_scale": stored}
        if mode == "nvfp4":
            tensors["weight_global_scale"] = torch.tensor([whole])
        return tensors, widened

    return write
