"""Print how long models with an encoder take, beside transformers in eager mode.

Run it by hand: `python tests/benchmarks/encoder_decoders.py [RECIPE...]`. Models have
the shapes of Whisper-tiny and T5-small, and random weights. Times are the least of some
runs, in milliseconds: of the encoder, of the first tokens of the decoder, and of one
more token. kvc makes the cross caches with the encoder, transformers with the first
tokens; the sum of both is comparable. Of kvc also a fork, which decodes over the same
encoding, and what a session's states take, beside the keys and values in its caches.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Session, load

RECIPES = ("cpu_fp32", "cpu_q8")
REPEATS = 5
STEPS = 32
FIRST = np.array([[7, 8, 9, 10]])
HEARD = 128  # tokens of T5's input


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of an encoding, of the first tokens, and of one more."""

    encode: float
    first: float
    step: float

    def line(self, name: str) -> str:
        """Return the beginning of a line of the table."""
        parts = self.encode, self.first, self.encode + self.first, self.step
        return f"{name:24}" + "".join(f"{part * 1e3:10.2f}" for part in parts)


def whisper() -> tuple[PreTrainedModel, np.ndarray]:
    """Return a model of Whisper-tiny's shape, and features of 30 seconds."""
    config = WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )  # fmt: skip
    shape = 1, config.num_mel_bins, 2 * config.max_source_positions
    features = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return WhisperForConditionalGeneration(config).eval(), features


def t5() -> tuple[PreTrainedModel, np.ndarray]:
    """Return a model of T5-small's shape, and a text."""
    text = np.random.default_rng(1).integers(3, 32_000, (1, HEARD))
    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0)).eval(), text


def least(work: Callable[[], object]) -> float:
    """Return the least seconds of some runs, after one that is not counted."""
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def of_session(session: Session, given: np.ndarray) -> Times:
    """Return the times of kvc."""
    encode = least(lambda: session.encode(given))
    firsts, steps = [], []
    for _ in range(1 + REPEATS):
        session.encode(given)
        began = time.perf_counter()
        session.prefill(FIRST)
        firsts.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(STEPS):
            session.decode(FIRST[:, :1])
        steps.append((time.perf_counter() - began) / STEPS)
    return Times(encode, min(firsts[1:]), min(steps[1:]))


def of_model(model: PreTrainedModel, given: np.ndarray) -> Times:
    """Return the times of transformers."""
    heard, first = torch.from_numpy(given), torch.from_numpy(FIRST)
    encoder = model.get_encoder()
    encode = least(lambda: encoder(heard))
    encoded = encoder(heard)
    firsts, steps = [], []
    for _ in range(1 + REPEATS):
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        held = {"encoder_outputs": encoded, "past_key_values": cache, "use_cache": True}
        began = time.perf_counter()
        model(decoder_input_ids=first, **held)
        firsts.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(STEPS):
            model(decoder_input_ids=first[:, :1], **held)
        steps.append((time.perf_counter() - began) / STEPS)
    return Times(encode, min(firsts[1:]), min(steps[1:]))


def held_by(session: Session, model: PreTrainedModel, given: np.ndarray) -> str:
    """Return the end of a line: a fork, and bytes of states beside those of rows."""
    session.encode(given)
    session.prefill(FIRST)
    states = session.residency().own
    fork = least(lambda: session.fork().close())
    config = model.config
    heard = given.shape[1] if given.dtype == np.int64 else given.shape[2] // 2
    width, layers = config.d_model, getattr(config, "decoder_layers", None)
    layers = layers or config.num_decoder_layers
    rows = 4 * 2 * width * layers * (heard + FIRST.shape[1])
    return f"{fork * 1e3:10.2f}{states / 1e6:10.3f}{rows / 1e6:10.3f}\n"


def main() -> None:
    """Measure and print."""
    names = ("encode", "first", "sum", "token", "fork", "MB", "MB rows")
    sys.stdout.write(f"{'':24}" + "".join(f"{name:>10}" for name in names) + "\n")
    for name, make in (("whisper-tiny", whisper), ("t5-small", t5)):
        torch.manual_seed(0)
        model, given = make()
        with torch.no_grad():
            line = of_model(model, given).line(f"{name}, transformers")
        sys.stdout.write(f"{line}\n")
        for recipe in sys.argv[1:] or RECIPES:
            length = HEARD if given.dtype == np.int64 else None
            cache = CacheConfig(128, encoder_length=length)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.kvc"
                export_hf(model, recipe=recipe, cache=cache).save(path)
                with load(path) as program, program.session() as session:
                    line = of_session(session, given).line(f"{name}, {recipe}")
                    sys.stdout.write(line + held_by(session, model, given))


if __name__ == "__main__":
    main()
