"""The demo model: a byte-level language model of Python source."""

from pathlib import Path

from kvc.compiler.models.decoder import DecoderConfig

WEIGHTS = Path(__file__).parent / "demo.safetensors"
CONFIG = DecoderConfig(
    vocab=256, dim=256, layers=5, heads=8, kv_heads=4, ffn=704, capacity=1024
)
