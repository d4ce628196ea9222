"""The demo model: a byte-level language model of Python source code.

`tools/dev/train_demo.py` trains the model on the sources of the standard library. The
weights are stored as bfloat16 and become float32 when the model is made.
"""

from pathlib import Path

import torch

from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.request.spec import Dim, Method, ModelSpec, StateSpec

WEIGHTS = Path(__file__).parent / "demo.safetensors"
CONFIG = DecoderConfig(
    vocab=256, dim=256, layers=5, heads=8, kv_heads=4, ffn=704, capacity=1024
)
SEPARATOR = 0  # the byte between modules


def demo() -> ModelSpec:
    """Return the demo model with the three methods to compile."""
    model = Decoder(CONFIG).eval()
    with Checkpoint(WEIGHTS) as weights:
        weights.load_into(model)
    return ModelSpec(
        model=model,
        methods=decoder_methods(CONFIG, max_chunk=512, all_logits=True),
        states=(decoder_caches(CONFIG),),
        metadata={
            "tokenizer": "bytes",
            "generation_config": {
                "eos_token_id": SEPARATOR,
                "do_sample": True,
                "temperature": 0.6,
                "top_k": 20,
            },
        },
    )


def decoder_caches(config: DecoderConfig) -> StateSpec:
    """Let a session choose the capacity of the caches, up to `config.capacity`."""
    return StateSpec(
        "layers.*.attn.?_cache", axis=2, capacity=Dim("capacity", 16, config.capacity)
    )


def decoder_methods(
    config: DecoderConfig, max_chunk: int, all_logits: bool = False
) -> tuple[Method, ...]:
    """Return the methods to compile: prefill, for up to `max_chunk` tokens, and decode.

    With `all_logits`, also return prefill_all, which computes the logits of every
    position.
    """
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    seq = {"tokens": {1: Dim("seq", 1, min(max_chunk, config.capacity))}}
    prefill = Method("prefill", args=(tokens,), dynamic=seq, role="prefill")
    decode = Method("decode", args=(tokens[:, :1],), role="decode")
    if not all_logits:
        return (prefill, decode)
    every = Method("prefill_all", args=(tokens,), dynamic=seq, role="prefill_all")
    return (prefill, decode, every)
