"""Models of torchvision and timm, with random weights and small inputs.

Out: for each name an evaluated module and an input that it takes. torchvision's wheel
may bring a library that does not load beside a CPU torch; its Python half needs only
that the operators have names, and detection an `nms`, so both are given here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the boxes that no better one overlaps by more, best first."""
    left = scores.argsort(descending=True)
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        a, b = boxes[best], boxes[left]
        sides = torch.minimum(a[2:], b[:, 2:]) - torch.maximum(a[:2], b[:, :2])
        shared = sides.clamp(min=0).prod(1)
        areas = (a[2:] - a[:2]).prod() + (b[:, 2:] - b[:, :2]).prod(1)
        left = left[shared / (areas - shared) <= threshold]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


NAMES = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        NAMES.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
        NAMES.impl(name, _nms, "CPU")

import timm  # noqa: E402  the operators must have names first
import torchvision  # noqa: E402
from torchvision import models  # noqa: E402

torchvision.extension._assert_has_ops = lambda: None
torchvision.ops.boxes._assert_has_ops = lambda: None

VERSIONS = {"torchvision": torchvision.__version__, "timm": timm.__version__}
# The smallest of each family: names that begin alike, of one of timm's files.
TIMM = [
    "resnet10t",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mobilenetv3_small_050",
    "efficientnet_b0",
    "halonet26t",
    "botnet26t_256",
    "lambda_resnet26t",
    "xcit_nano_12_p16_224",
    "mixer_s32_224",
    "gmlp_ti16_224",
    "resmlp_12_224",
    "poolformer_s12",
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "coat_lite_tiny",
    "convit_tiny",
    "convmixer_768_32",
    "crossvit_tiny_240",
    "cspdarknet53",
    "davit_tiny",
    "deit_tiny_distilled_patch16_224",
    "densenet121",
    "dla46_c",
    "dpn48b",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientformerv2_s0",
    "efficientvim_m1",
    "efficientvit_b0",
    "efficientvit_m0",
    "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3",
    "fasternet_t0",
    "fastvit_t8",
    "focalnet_tiny_srf",
    "gcvit_xxtiny",
    "ghostnet_050",
    "ghostnetv2_100",
    "hardcorenas_a",
    "hgnetv2_b0",
    "hiera_tiny_224",
    "sam2_hiera_tiny",
    "hrnet_w18_small",
    "iformer_t",
    "inception_next_atto",
    "levit_128s",
    "lowformer_b0",
    "mambaout_femto",
    "coatnet_nano_rw_224",
    "maxvit_tiny_tf_224",
    "maxxvit_rmlp_nano_rw_256",
    "caformer_s18",
    "convformer_s18",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "mvitv2_tiny",
    "naflexvit_base_patch16_gap",
    "nest_tiny",
    "nextvit_small",
    "eca_nfnet_l0",
    "nf_resnet26",
    "pit_ti_224",
    "pvt_v2_b0",
    "rdnet_tiny",
    "regnetx_002",
    "regnety_002",
    "regnetz_b16",
    "repghostnet_050",
    "repvit_m0_9",
    "res2net50_14w_8s",
    "resnest14d",
    "ecaresnet26t",
    "resnext50_32x4d",
    "seresnet18",
    "resnetblur18",
    "resnetrs50",
    "resnetv2_50",
    "rexnet_100",
    "selecsls42",
    "legacy_seresnet18",
    "sequencer2d_s",
    "shvit_s1",
    "skresnet18",
    "starnet_s1",
    "swiftformer_xs",
    "swinv2_cr_tiny_224",
    "swinv2_tiny_window8_256",
    "tiny_vit_5m_224",
    "tnt_s_patch16_224",
    "tresnet_m",
    "twins_svt_small",
    "vgg11",
    "visformer_tiny",
    "flexivit_small",
    "vit_relpos_small_patch16_224",
    "vitamin_small_224",
    "volo_d1_224",
    "ese_vovnet19b_slim",
    "xception41",
    "legacy_xception",
    "repvgg_a0",
    "mobileone_s0",
    "gernet_s",
    "bat_resnext26ts",
    "gcresnext26ts",
    "mixnet_s",
    "mnasnet_050",
    "mobilenetv2_035",
    "fbnetc_100",
    "lcnet_035",
    "tinynet_e",
    "spnasnet_100",
    "semnasnet_050",
    "tf_efficientnetv2_b0",
    "fbnetv3_b",
    "mobilenetv1_100",
    "mobilenetv4_conv_small_035",
    "cs3darknet_s",
    "cspresnet50",
    "darknet17",
    "vit_small_r26_s32_224",
    "sehalonet33ts",
    "sebotnet33ts_256",
    "inception_v4",
    "beitv2_base_patch16_224",
    "convnextv2_atto",
    "efficientnetv2_rw_t",
    "csatv2",
    "cspnext_s",
    "hgnet_tiny",
    "lcnetv2_small",
    "twins_pcpvt_small",
    "wide_resnet50_2",
    "resnetaa50",
    "nasnetalarge",
    "pnasnet5large",
    "nfnet_f0",
    "dm_nfnet_f0",
    "samvit_base_patch16_224",
    "inception_resnet_v2",
]
GROUPS = ("classification", "segmentation", "video", "detection")
_MODULES = {"classification": models, **{g: getattr(models, g) for g in GROUPS[1:]}}
# Input shapes of torchvision's models that take no image of 64 by 64.
_IMAGE, _CLIP = (1, 3, 64, 64), (1, 3, 8, 64, 64)
_SHAPES = {
    "inception_v3": (1, 3, 96, 96),
    "maxvit_t": (1, 3, 224, 224),
    "mvit_v1_b": (1, 3, 16, 224, 224),
    "mvit_v2_s": (1, 3, 16, 224, 224),
    "s3d": (1, 3, 14, 224, 224),
}
_SETTINGS: dict[str, dict[str, object]] = {
    **{name: {"image_size": 64} for name in ("vit_b_16", "vit_b_32")},
    **{name: {"image_size": 64} for name in ("vit_l_16", "vit_l_32")},
    "vit_h_14": {"image_size": 56},
    **{name: {"init_weights": False} for name in ("inception_v3", "googlenet")},
}
_SHAPES |= {"vit_h_14": (1, 3, 56, 56)}


@dataclass(frozen=True, slots=True)
class Zoo:
    """A model to be made: its group, name, and how."""

    group: str
    name: str
    make: Callable[[], tuple[nn.Module, Tensor]]


def zoo() -> Iterator[Zoo]:
    """Yield all models."""
    for group, module in _MODULES.items():
        for name in models.list_models(module):
            yield Zoo(group, name, lambda group=group, name=name: _vision(group, name))
    for name in TIMM:
        yield Zoo("timm", name, lambda name=name: _timm(name))


class Detector(nn.Module):
    """Takes an image as a detection model does, in a list."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image: Tensor) -> object:
        return self.inner([image])


def _vision(group: str, name: str) -> tuple[nn.Module, Tensor]:
    backbone = (
        {"weights_backbone": None} if group in ("segmentation", "detection") else {}
    )
    found = models.get_model(name, weights=None, **backbone, **_SETTINGS.get(name, {}))
    model = lively(found.eval())
    if group == "detection":
        return Detector(model).eval(), torch.rand(3, 96, 96)
    usual = _CLIP if group == "video" else _IMAGE
    return model, torch.randn(_SHAPES.get(name, usual))


def _timm(name: str) -> tuple[nn.Module, Tensor]:
    model = lively(timm.create_model(name, pretrained=False).eval())
    size = model.pretrained_cfg["input_size"]
    smaller = [] if model.pretrained_cfg.get("fixed_input_size") else [(3, 96, 96)]
    return model, _first_taken(
        model, [torch.randn(1, *each) for each in [*smaller, size]]
    )


def _first_taken(model: nn.Module, inputs: Iterable[Tensor]) -> Tensor:
    """Return the first input that a model takes, the last one where it takes none."""
    for x in inputs:
        try:
            with torch.no_grad():
                model(x)
        except (RuntimeError, AssertionError, ValueError):
            continue
        return x
    return x


@torch.no_grad()
def lively(model: nn.Module) -> nn.Module:
    """Return a model in which whole layers are not zero, nor statistics 0 and 1.

    Libraries begin with scales of 1e-6, biases and last layers of 0, which would hide
    what these layers do.
    """
    for parameter in model.parameters():
        if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
            near = 0.05 * torch.randn_like(parameter)
            parameter.copy_(
                near
                + (
                    0.2
                    if parameter.dim() == 1 and 0 < abs(parameter.flatten()[0]) < 0.2
                    else parameter
                )
            )
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.7, 1.5)
    return model
