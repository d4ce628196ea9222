# ruff: noqa: E501  a table reads best with one line a model
"""Tiny random models with an encoder, and the difference of a bundle from its model.

Weights are drawn as in `hf_models`, norms and biases too. The reference is the model
itself in its eager attention, without a cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from encoder_models import SIDE, VISION
from hf_models import VOCAB, rescale
from hf_parity import add_rows, decoded, fed, zero_row
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
)

from kvc.compiler import CacheConfig, export_hf
from kvc.recipes import Recipe
from kvc.runtime import Session, load

STEPS = 40
FRAMES = 6  # positions of an encoder of sounds
# T5 does not scale its scores, so that sums in another order show more.
TOLERANCE = 3e-4
NOTICED = 10  # times as large as all differences is a control
HEARD = (1, 2, 17)
CHUNKS = (5, 1, 6)
CAPACITY = 64

_T5: dict[str, object] = {
    "vocab_size": VOCAB, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2,
    "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
_BART: dict[str, object] = {
    "vocab_size": VOCAB, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}  # fmt: skip

_VIT = VISION | {"hidden_size": 48}
_TROCR: dict[str, object] = {
    "model_type": "trocr", "vocab_size": VOCAB, "d_model": 64, "decoder_layers": 2,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    "cross_attention_hidden_size": 48, "pad_token_id": 1,
}  # fmt: skip
_BERT: dict[str, object] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 66,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip


def _pair(encoder: str, decoder: Mapping[str, object]) -> dict[str, object]:
    beside = {"is_decoder": True, "add_cross_attention": True}
    beside |= {"is_encoder_decoder": False}
    return {
        "encoder": _VIT | {"model_type": encoder},
        "decoder": {**decoder, **beside},
        "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


SEQ2SEQ: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "t5": ("t5", _T5),
    "t5, gated": ("t5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 3, "num_decoder_layers": 2}),
    "mt5": ("mt5", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("bart", _BART),
    "mbart": ("mbart", _BART | {"scale_embedding": True}),
    "marian": ("marian", _BART | {"pad_token_id": 96, "decoder_start_token_id": 96, "scale_embedding": True}),
    "m2m_100": ("m2m_100", _BART | {"scale_embedding": True}),
    "pegasus": ("pegasus", _BART | {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "whisper": ("whisper", _BART | {"num_mel_bins": 8, "max_source_positions": FRAMES, "max_target_positions": 64, "pad_token_id": 96, "decoder_start_token_id": 95, "forced_eos_token_id": None, "begin_suppress_tokens": [4], "suppress_tokens": [5]}),
    "trocr": ("vision-encoder-decoder", _pair("vit", _TROCR)),
    "trocr, learned": ("vision-encoder-decoder", _pair("deit", _TROCR | {"use_learned_position_embeddings": True, "scale_embedding": True})),
    "vit and bart": ("vision-encoder-decoder", _pair("vit", _BART | {"model_type": "bart"})),
    "deit and bert": ("vision-encoder-decoder", _pair("deit", _BERT | {"model_type": "bert"})),
    "vit and roberta": ("vision-encoder-decoder", _pair("vit", _BERT | {"model_type": "roberta"})),
    "vit and gpt2": ("vision-encoder-decoder", _pair("vit", {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 2})),
}  # fmt: skip


_MAKERS = AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, AutoModelForImageTextToText


def build(name: str, **changes: object) -> PreTrainedModel:
    """Return a model in eager attention, rescaled so that all its weights matter."""
    kind, settings = SEQ2SEQ[name]
    config = AutoConfig.for_model(kind, **settings | changes)
    maker = next(one for one in _MAKERS if type(config) in one._model_mapping)
    model = maker.from_config(config, attn_implementation="eager")
    computed = [p for p in model.parameters() if not p.requires_grad]  # of positions
    before = [parameter.clone() for parameter in computed]
    rescale(model, seed=0)
    with torch.no_grad():
        for parameter, values in zip(computed, before, strict=True):
            parameter.copy_(values)
        if "final_logits_bias" in model._buffers:
            model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model.eval()


def text(length: int, seed: int = 7) -> np.ndarray:
    """Return tokens int64 [1, length], none of them special."""
    return np.random.default_rng(seed).integers(3, VOCAB - 1, (1, 4096))[:, :length]


def eager_logits(
    model: PreTrainedModel, heard: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Return the decoder's logits float32 [seq, vocab] of tokens, without a cache.

    `heard` is the input of the encoder.
    """
    given = {model.main_input_name: torch.from_numpy(heard)}
    given["decoder_input_ids"] = torch.from_numpy(tokens)
    with torch.no_grad():
        return model(**given, use_cache=False).logits[0].numpy()


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a bundle's logits are from the model's, in standard deviations."""

    # the largest difference of a prefill, after encodings of each length
    prefill: float
    decode: float  # that of 40 steps after prefills in chunks
    agreement: float  # share of steps with the same best token
    # own, cross: the least difference that a wrong row of one layer's cache makes, of
    # the decoder's own caches and of the cross caches
    own: float
    cross: float

    @property
    def far(self) -> float:
        """Return the larger of the two differences."""
        return max(self.prefill, self.decode)

    @property
    def noticed(self) -> bool:
        """Tell whether a wrong row of any cache makes a far larger difference."""
        return min(self.own, self.cross) > NOTICED * self.far


def compare(
    name: str, folder: Path, recipe: str | Recipe = "fp32", heard: Sequence[int] = HEARD
) -> Parity:
    model, path = build(name), folder / "model.kvc"
    longest = max(heard) if model.main_input_name == "input_ids" else None
    inputs = inputs_of(model, heard)
    cache = CacheConfig(CAPACITY, encoder_length=longest)
    export_hf(model, recipe=recipe, cache=cache, prefill_chunk=12).save(path)
    with load(path) as program, program.session() as session:
        return measure(model, session, inputs)


def inputs_of(model: PreTrainedModel, heard: Sequence[int] = HEARD) -> list[np.ndarray]:
    """Return inputs of an encoder: texts of lengths `heard`, sounds or pictures."""
    if model.main_input_name == "input_ids":
        return [text(length, 3) for length in heard]
    shape: tuple[int, ...] = (3, 1, 3, SIDE, SIDE)
    if model.main_input_name == "input_features":
        shape = (3, 1, model.config.num_mel_bins, 2 * FRAMES)
    return list(np.random.default_rng(3).normal(size=shape).astype(np.float32))


def measure(
    model: PreTrainedModel, session: Session, inputs: Sequence[np.ndarray]
) -> Parity:
    held = sum(CHUNKS)
    tokens = text(held + STEPS)
    prefills, steps, best = [], [], []
    for given in inputs:
        wanted = eager_logits(model, given, tokens)
        found = _run(session, given, tokens, CHUNKS)
        ends = [*(np.cumsum(CHUNKS) - 1), *range(held, held + STEPS)]
        differences = np.abs(np.stack(found) - wanted[ends]).max(1) / wanted.std()
        prefills += list(differences[: len(CHUNKS)])
        steps += list(differences[len(CHUNKS) :])
        best.append(np.mean(np.argmax(found, 1) == wanted[ends].argmax(1)))
    given = inputs[1]  # few enough that each of them matters
    wrong = list(_controls(session, given, tokens, eager_logits(model, given, tokens)))
    return Parity(
        prefill=float(max(prefills)),
        decode=float(max(steps)),
        agreement=float(np.mean(best)),
        own=min(w for name, w in wrong if "cross" not in name),
        cross=min(w for name, w in wrong if "cross" in name),
    )


def _run(session, given, tokens, chunks) -> list[np.ndarray]:
    session.encode(given)
    found, end = fed(session, tokens, chunks), sum(chunks)
    return [*found, *decoded(session, tokens, end, end + STEPS)]


def _controls(session, given, tokens, wanted) -> Iterator[tuple[str, float]]:
    held = sum(CHUNKS)
    caches = [name for name in session.state if name.endswith(("keys", "values"))]
    for name in caches:
        session.encode(given)
        session.prefill(tokens[:, :held])
        zero_row(session.state[name], 0 if "cross" in name else held - 2)
        found = decoded(session, tokens, held, held + 3)
        wrong = np.abs(found - wanted[held : held + 3]).max()
        yield name, float(wrong) / float(wanted.std())


# How many tokens each of three rows adds at each call.
RAGGED = ((5, 1, 3), (1, 1, 1), (0, 4, 2), (1, 0, 1), (2, 2, 6), *[(1, 1, 1)] * 20)
ROWS = (7, 1, 17)  # lengths of their inputs


def rows_of(model: PreTrainedModel) -> list[np.ndarray]:
    """Return an encoder's input for each of three rows; texts differ in length."""
    return inputs_of(model, ROWS)


def encode_rows(session: Session, rows: Sequence[np.ndarray]) -> None:
    """Run the encoder on one input for each row; padding has invalid tokens."""
    if rows[0].dtype != np.int64:
        session.encode(np.concatenate(rows))
        return
    lengths = np.array([row.shape[1] for row in rows])
    tokens = np.full((len(rows), lengths.max()), 1 << 20)
    for row, given in zip(tokens, rows, strict=True):
        row[: given.shape[1]] = given[0]
    session.encode(tokens, lengths)


def compare_rows(
    model: PreTrainedModel, session: Session, rows: Sequence[np.ndarray]
) -> tuple[float, float]:
    """Compare three rows that add different numbers of tokens with the model.

    The model runs on each row alone.

    Returns:
        The largest difference in standard deviations of logits. As the control, the
            least difference from the model when it is given the input of another row.
    """
    encode_rows(session, rows)
    count = len(rows)
    tokens = [text(sum(added[row] for added in RAGGED), 40 + row) for row in range(3)]
    wanted = [[eager_logits(model, given, own) for given in rows] for own in tokens]
    far, held = np.zeros((count, count)), np.zeros(count, np.int64)
    for added in np.array(RAGGED):
        logits = add_rows(session, [own[0] for own in tokens], held, added)
        held += added
        for row in np.flatnonzero(added):
            for other, of in enumerate(wanted[row]):
                wrong = np.abs(logits[row] - of[held[row] - 1]).max() / of.std()
                far[row, other] = max(far[row, other], wrong)
    own = np.eye(count, dtype=bool)
    return float(far[own].max()), float(far[~own].min())


def compare_at_end(
    model: PreTrainedModel, session: Session, rows: Sequence[np.ndarray]
) -> float:
    """Compare two rows with the model, of which the first is almost full.

    In the call that is compared, the first row adds one token, and its padding is
    longer than its free slots. Return the largest difference in standard deviations of
    logits.
    """
    encode_rows(session, rows)
    tokens, chunk, held = [text(CAPACITY, 50 + row) for row in range(2)], 12, 60
    for begin in range(0, held, chunk):
        pair = [one[:, begin : begin + chunk] for one in tokens]
        session.prefill(np.concatenate(pair), np.array([chunk, 0]))
    own = [one[0] for one in tokens]
    found = add_rows(session, own, np.array([held, 0]), np.array([1, chunk]))
    far = []
    for row, place in enumerate((held, chunk - 1)):
        wanted = eager_logits(model, rows[row], tokens[row])
        far.append(np.abs(found[row] - wanted[place]).max() / wanted.std())
    return float(max(far))
