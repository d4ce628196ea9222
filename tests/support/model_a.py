"""Model A: the shape of SmolLM2-135M, with seeded random weights."""

from dataclasses import replace

import torch

from kvc.compiler import ModelSpec
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_caches, decoder_methods

CONFIG = DecoderConfig(
    vocab=49152,
    dim=576,
    layers=30,
    heads=9,
    kv_heads=3,
    ffn=1536,
    capacity=2048,
    rope_base=100000.0,
)


def model_a(layers: int | None = None) -> ModelSpec:
    return random_decoder(replace(CONFIG, layers=layers or CONFIG.layers))


def random_decoder(config: DecoderConfig) -> ModelSpec:
    """Return a decoder with random weights, wide enough for logits that differ."""
    generator = torch.Generator().manual_seed(0)
    model = Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                deviation = 1.5 * parameter.shape[1] ** -0.5
                parameter.normal_(0, deviation, generator=generator)
    return ModelSpec(
        model, decoder_methods(config, max_chunk=512), (decoder_caches(config),)
    )
