"""Five models without a cache, of random weights, each with an input."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class FirstResult(nn.Module):
    """A model of transformers that returns the tensor which comes first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(x, return_dict=False)[0]
        return made


def whisper() -> Made:
    """Whisper tiny's encoder, 30 seconds of sound: [1, 80, 3000]."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    return FirstResult(WhisperEncoder(config)), (torch.randn(1, 80, 3000),)


def minilm() -> Made:
    """MiniLM's shape, six layers of 384, 128 tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    model = BertModel(config, add_pooling_layer=False)
    return FirstResult(model), (torch.randint(0, 30000, (1, 128)),)


def vit() -> Made:
    """ViT-tiny, one picture of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)
    model = ViTModel(config, add_pooling_layer=False)
    return FirstResult(model), (torch.randn(1, 3, 224, 224),)


def mobilenet() -> Made:
    """MobileNetV2, one picture of 224 x 224."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(tf_padding=False)
    model = MobileNetV2ForImageClassification(config)
    return FirstResult(model), (torch.randn(1, 3, 224, 224),)


class Block(nn.Sequential):
    """Two convolutions, each normalised over groups of channels."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        for channels in (given, made):
            self.append(nn.Conv2d(channels, made, 3, padding=1))
            self.append(nn.GroupNorm(8, made))
            self.append(nn.SiLU())


class UNet(nn.Module):
    """A denoiser of 10 M parameters (Ronneberger et al., 2015)."""

    def __init__(self, sizes: tuple[int, ...] = (32, 64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(Block, (3, *sizes[:-2]), sizes[:-1]))
        self.middle = nn.Sequential(
            Block(sizes[-2], sizes[-1]), nn.Conv2d(sizes[-1], sizes[-1], 3, padding=1)
        )
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.joined = nn.ModuleList(Block(2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(sizes[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, block in zip(self.up, self.joined, strict=True):
            x = block(torch.cat([kept.pop(), up(x)], 1))
        made: Tensor = self.last(x)
        return made


def unet() -> Made:
    """A U-Net, one picture of 128 x 128."""
    return UNet(), (torch.randn(1, 3, 128, 128),)


MODELS: Final[Mapping[str, Callable[[], Made]]] = {
    each.__name__: each for each in (whisper, minilm, vit, mobilenet, unet)
}


def make(name: str) -> Made:
    """Return a model in evaluation mode, with statistics that are not those of rest."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model.eval(), inputs
