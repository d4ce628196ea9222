"""Kernels over the last two or three axes: pooling, resizing, sampling; fresh.

`torch._C._nn` holds the bound functions that `torch.nn.functional` calls itself; only
there do these take `out=`.
"""

import torch
from torch._C import _nn

from kvc.runtime.kernels.adapters import copied, into
from kvc.runtime.kernels.kernel import Kernel

KERNELS: dict[str, Kernel] = {
    "aten::_adaptive_avg_pool2d": copied(_nn.adaptive_avg_pool2d),
    "aten::_adaptive_avg_pool3d": copied(_nn.adaptive_avg_pool3d),
    "aten::_upsample_bicubic2d_aa": into(_nn._upsample_bicubic2d_aa),
    "aten::_upsample_bilinear2d_aa": into(_nn._upsample_bilinear2d_aa),
    "aten::adaptive_max_pool2d": into(_nn.adaptive_max_pool2d),
    "aten::adaptive_max_pool3d": into(_nn.adaptive_max_pool3d),
    "aten::avg_pool2d": into(_nn.avg_pool2d),
    "aten::avg_pool3d": into(_nn.avg_pool3d),
    "aten::grid_sampler_2d": copied(torch.grid_sampler_2d),
    "aten::grid_sampler_3d": copied(torch.grid_sampler_3d),
    "aten::max_pool2d_with_indices": into(_nn.max_pool2d_with_indices),
    "aten::max_pool3d_with_indices": into(_nn.max_pool3d_with_indices),
    "aten::upsample_bilinear2d": into(_nn.upsample_bilinear2d),
    "aten::upsample_nearest2d": into(_nn.upsample_nearest2d),
}
