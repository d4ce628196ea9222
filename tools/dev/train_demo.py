"""Train the demo model on the sources of Python's standard library.

Run once: `python tools/dev/train_demo.py --minutes 45`. Reads the library of the
running interpreter, leaves modules whose names hash to the held-out set out of
training, and writes `compiler/models/demo.safetensors` (bfloat16). Prints the held-out
loss in bits per byte as it goes. Not shipped.
"""

import argparse
import hashlib
import math
import sysconfig
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import CONFIG, WEIGHTS

SEPARATOR = b"\0"  # separates modules, and ends generation
SKIPPED = {"test", "tests", "idle_test", "site-packages", "lib2to3", "__pycache__"}
BATCH, SEQ = 10, 512


def read_library() -> tuple[bytes, bytes]:
    """Return the training text and the held-out text, modules joined by a zero byte."""
    root = Path(sysconfig.get_paths()["stdlib"])
    train, held_out = [], []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED.isdisjoint(Path(name).parts):
            (held_out if is_held_out(name) else train).append(path.read_bytes())
    return SEPARATOR.join(train) + SEPARATOR, SEPARATOR.join(held_out) + SEPARATOR


def is_held_out(name: str) -> bool:
    """Tell whether a module, named by its path below the library, is held out."""
    return hashlib.sha256(name.encode()).digest()[0] < 10


def held_out_bits(model: Decoder, text: Tensor) -> float:
    """Return bits per byte over `text` in windows of SEQ bytes."""
    windows = text[: len(text) // SEQ * SEQ].view(-1, SEQ)[:200]
    with torch.no_grad():
        losses = [window_loss(model, part).item() for part in windows.split(8)]
    return sum(losses) / len(losses) / math.log(2)


def window_loss(model: Decoder, windows: Tensor) -> Tensor:
    """Return the mean next-byte loss in nats of windows int64 [batch, seq]."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def train(minutes: float) -> None:
    """Train for `minutes` minutes and save the weights."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train_bytes, held_bytes = read_library()
    text = torch.frombuffer(bytearray(train_bytes), dtype=torch.uint8).long()
    held = torch.frombuffer(bytearray(held_bytes), dtype=torch.uint8).long()
    model = Decoder(CONFIG)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=2e-3, weight_decay=0.0, betas=(0.9, 0.95))
    optimizers = (muon, adam)
    rates = [
        group["lr"] for optimizer in optimizers for group in optimizer.param_groups
    ]
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, "
        f"{len(text)} bytes to train on, {len(held)} held out",
        flush=True,
    )
    begin, step = time.monotonic(), 0
    while (done := (time.monotonic() - begin) / 60 / minutes) < 1:
        factor = min(1.0, (step + 1) / 50, max(0.02, (1 - done) / 0.5))
        groups = (g for optimizer in optimizers for g in optimizer.param_groups)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        starts = torch.randint(len(text) - SEQ, (BATCH,))
        loss = window_loss(model, torch.stack([text[s : s + SEQ] for s in starts]))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 100 == 0:
            print(
                f"step {step} {done:.1%} train {loss.item() / math.log(2):.3f} "
                f"held out {held_out_bits(model, held):.3f} bits per byte",
                flush=True,
            )
        if step % 500 == 0:
            save(model)
    print(f"held out {held_out_bits(model.bfloat16().float(), held):.4f}")
    save(model)


def save(model: Decoder) -> None:
    """Write the parameters as bfloat16."""
    weights = {
        n: p.detach().bfloat16().contiguous() for n, p in model.named_parameters()
    }
    save_file(weights, WEIGHTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=45)
    train(parser.parse_args().minutes)
