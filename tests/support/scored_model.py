"""A tiny decoder with every kind of method by which texts can be scored."""

from collections.abc import Iterator
from pathlib import Path

import torch
from made_once import MadeOnce

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods
from kvc.runtime import Program, load

CONFIG = DecoderConfig(
    vocab=256, dim=32, layers=1, heads=2, kv_heads=1, ffn=48, capacity=40
)
_ROLES = ("prefill", "decode")
KINDS = {
    "decode": _ROLES,
    "prefill_all": (*_ROLES, "prefill_all"),
    "forward": ("forward",),
}
TOKENS = list(b"def score(text):\n    return 'bits', 8 * text # and so on ...")
CHUNK, LEAST = 8, 3  # prefill takes up to 8, the others 3 at least


def scored_model() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3)
    return model


def write_scored(
    path: Path, *names: str, files: dict[str, bytes] | None = None
) -> Path:
    model = scored_model()
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    most = {"prefill_all": CHUNK, "forward": CONFIG.capacity}
    known = {m.name: m for m in decoder_methods(CONFIG, max_chunk=CHUNK)}
    for name, upper in most.items():
        seq = {"tokens": {1: Dim("seq_" + name, LEAST, upper)}}
        role = name if name == "prefill_all" else ""
        known[name] = Method(name, args=(tokens,), dynamic=seq, role=role)
    metadata = {"tokenizer": "tokenizer.json" if files else "bytes"}
    compile_program(
        model, [known[name] for name in names], "fp32", metadata=metadata, files=files
    ).save(path)
    return path


def scored_programs(folder: Path) -> Iterator[MadeOnce[Program]]:
    """Yield programs of the model by kind, opened when used, closed at the end."""
    opened = MadeOnce(
        lambda kind: load(write_scored(folder / f"{kind}.kvc", *KINDS[kind]))
    )
    yield opened
    for program in opened.values():
        program.close()
