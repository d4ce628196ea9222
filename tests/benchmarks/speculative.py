"""What a draft gains: tokens/s of a generation with and without one, and acceptance.

`python tests/benchmarks/speculative.py [--minutes 2] [--recipe xnnpack_q8]`. The target
is the demo model, or with `--width` one trained here, the draft has one layer;
both are trained for so many minutes on the text of `tools/dev/train_demo.py`.
Prompts are cut from the held-out text. Plain and drafted generations take turns, round
for round; the table has the medians. `--temperature 0` is greedy.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from kvc.compiler import compile_program
from kvc.compiler.models import BUILTIN
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import CONFIG, decoder_caches, decoder_methods
from kvc.runtime import Generation, Program, generate, load
from kvc.schema.text import columns
from kvc.tools.dev.train_demo import read_library

PROMPT, BATCH, SEQ = 200, 16, 256
GUESSES = (1, 2, 4, 6, 8)
DRAFT = DecoderConfig(
    vocab=256, dim=96, layers=1, heads=4, kv_heads=2, ffn=256, capacity=CONFIG.capacity
)


def trained(config: DecoderConfig, text: bytes, minutes: float) -> Decoder:
    """Return a decoder that has seen a text for so many minutes."""
    torch.manual_seed(0)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    model = Decoder(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    begun, loss = time.monotonic(), torch.zeros(())
    while (done := (time.monotonic() - begun) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, 2 * (1 - done))
        starts = torch.randint(len(tokens) - SEQ, (BATCH,))
        loss = _loss(model, torch.stack([tokens[s : s + SEQ] for s in starts]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    print(f"trained, last loss {loss.item() / 0.6931:.2f} bits per byte", flush=True)
    return model.eval()


def _loss(model: Decoder, windows: Tensor) -> Tensor:
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def compiled(model: Decoder, recipe: str, path: Path) -> Path:
    """Write a bundle with all methods."""
    methods = decoder_methods(model.config, 256, all_logits=True)
    compile_program(model, methods, recipe, states=[decoder_caches(model.config)]).save(
        path
    )
    return path


def run(
    target: Program,
    draft: Program | None,
    prompt: bytes,
    options: argparse.Namespace,
    count: int,
) -> Generation:
    """Return a generation that has ended."""
    with target.session() as session:
        guesser = None if draft is None else draft.session()
        made = generate(
            session,
            list(prompt),
            draft=guesser,
            draft_tokens=None if draft is None else count,
            max_tokens=options.tokens,
            temperature=options.temperature,
            seed=1,
        )
        for _ in made:
            pass
        if guesser is not None:
            guesser.close()
    return made


def main() -> int:
    """Train, compile, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--width", type=int, help="of a target that is trained, too")
    parser.add_argument("--recipe", default="xnnpack_q8")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    text, held_out = read_library()
    with tempfile.TemporaryDirectory() as folder:
        small = trained(DRAFT, text, options.minutes)
        large = _target(options, text)
        paths = [
            compiled(model, options.recipe, Path(folder) / f"{name}.kvc")
            for name, model in (("large", large), ("small", small))
        ]
        step = len(held_out) // options.rounds
        prompts = [held_out[i * step :][:PROMPT] for i in range(options.rounds)]
        with load(paths[0]) as target, load(paths[1]) as draft:
            measure(target, draft, prompts, options)
    return 0


def _target(options: argparse.Namespace, text: bytes) -> Decoder:
    if options.width is None:
        model = BUILTIN["demo"]().model
        assert isinstance(model, Decoder)
        return model
    width: int = options.width
    config = DecoderConfig(
        vocab=256,
        dim=width,
        layers=6,
        heads=width // 32,
        kv_heads=width // 64,
        ffn=width * 11 // 4,
        capacity=CONFIG.capacity,
    )
    return trained(config, text, options.minutes)


def measure(
    target: Program, draft: Program, prompts: list[bytes], options: argparse.Namespace
) -> None:
    """Measure all numbers of guesses in turn, and print a table."""
    rates: dict[int, list[float]] = {count: [] for count in (0, *GUESSES)}
    right, made, same = dict.fromkeys(rates, 0), dict.fromkeys(rates, 0), 0
    for prompt in (prompts[0], *prompts):  # the first warms up
        plain = run(target, None, prompt, options, 0)
        rates[0].append(plain.decode.tokens_per_second)
        for count in GUESSES:
            one = run(target, draft, prompt, options, count)
            rates[count].append(one.decode.tokens_per_second)
            right[count] += one.accepted
            made[count] += one.drafted
            same += one.tokens == plain.tokens
    plain_rate = statistics.median(rates[0][1:])
    rows = [("guesses", "tokens/s", "gain", "acceptance")]
    for count, found in rates.items():
        rate = statistics.median(found[1:])
        share = f"{right[count] / made[count]:.0%}" if count else "-"
        rows.append((str(count), f"{rate:.0f}", f"{rate / plain_rate:.2f}", share))
    print("\n".join(columns(rows, ">>>>")))
    total = (len(prompts) + 1) * len(GUESSES)
    print(f"{same} of {total} texts are equal to the plain ones, token by token")


if __name__ == "__main__":
    sys.exit(main())
