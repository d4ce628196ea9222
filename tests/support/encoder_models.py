"""Tiny random models without a cache, and functions that compare bundles with them.

Weights, norms and biases are random, as in `hf_models`. The reference is the model
itself with eager attention, given the same rows and a mask; numpy pools its states to
embeddings.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hf_models import VOCAB, rescale
from numpy.typing import NDArray
from transformers import AutoConfig, PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.tasks import Task, class_of, maker_of
from kvc.runtime import Program, load

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]

TOLERANCE = 1e-5
NOTICED = 1e-3
LONGEST = 40
SIDE = 32  # of a picture
# Rows of each call; the last are one text, and texts of one length.
LENGTHS = ((40, 1, 17), (3, 9, 2), (23,), (8, 8))

_BASE: dict[str, object] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip
# Padding is token 1 here, and so the first position 2.
_ROBERTA = _BASE | {"pad_token_id": 1, "max_position_embeddings": 66}
_DISTILBERT: dict[str, object] = {
    "vocab_size": VOCAB, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
_MODERNBERT = _BASE | {
    "local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 3,
    "bos_token_id": 3, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 2,
}  # fmt: skip
_DEBERTA = _BASE | {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
    "max_relative_positions": 16, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
_DEBERTA_V3 = _DEBERTA | {
    "share_att_key": True, "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip

Models = dict[str, tuple[str, Mapping[str, object]]]
TEXTS: Models = {
    "bert": ("bert", _BASE),
    "roberta": ("roberta", _ROBERTA),
    "xlm-roberta": ("xlm-roberta", _ROBERTA),
    "camembert": ("camembert", _ROBERTA),
    "distilbert": ("distilbert", _DISTILBERT),
    "electra": ("electra", _BASE | {"embedding_size": 32}),
    "albert": ("albert", _BASE | {"embedding_size": 32}),
    "modernbert": ("modernbert", _MODERNBERT),
    "nomic_bert": ("nomic_bert", _BASE),
    "esm": ("esm", _ROBERTA | {"mask_token_id": 4}),
    "mpnet": ("mpnet", _ROBERTA),
    "deberta-v2": ("deberta-v2", _DEBERTA),
    "deberta-v2, third version": ("deberta-v2", _DEBERTA_V3),
    "llama": ("llama", _BASE | {"num_key_value_heads": 2}),
}  # fmt: skip


VISION: dict[str, object] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": SIDE, "patch_size": 8, "num_channels": 3,
}  # fmt: skip
_TOWERS: dict[str, object] = {
    "text_config": _BASE
    | {"max_position_embeddings": 16, "bos_token_id": 95, "eos_token_id": 96,
        "pad_token_id": 1,
        "projection_dim": 48, "projection_size": 64},
    "vision_config": VISION | {"projection_dim": 48},
    "projection_dim": 48,
}  # fmt: skip

PICTURES: Models = {
    "vit": ("vit", VISION),
    "deit": ("deit", VISION),
    "dinov2": ("dinov2", VISION),
    "clip": ("clip", _TOWERS),
    "siglip": ("siglip", _TOWERS),
}
# Pictures that no class token stands for: one model pools them itself, one does not.
WITHOUT_CLASS_TOKEN: Models = {
    "siglip_vision_model": ("siglip_vision_model", VISION),
    "ijepa": ("ijepa", VISION),
}


def build(name: str, task: Task = "embed", **changes: object) -> PreTrainedModel:
    """Return a model with eager attention, and weights that affect its results."""
    kind, settings = (TEXTS | PICTURES | WITHOUT_CLASS_TOKEN)[name]
    config = AutoConfig.for_model(kind, **settings | changes)
    maker = maker_of(task, config)
    assert maker is not None, "each has a model for its tasks"
    model = class_of(maker, config)._from_config(config, attn_implementation="eager")
    rescale(model, seed=0)
    return model.eval()


def rows(lengths: tuple[int, ...], seed: int = 7) -> tuple[Tokens, Tokens]:
    """Return random tokens [batch, seq] and the lengths [batch] of the rows.

    Tokens after the length of a row are padding; they are random, too.
    """
    shape = len(lengths), max(lengths)
    tokens = np.random.default_rng(seed).integers(5, VOCAB, shape)
    return tokens, np.array(lengths, np.int64)


def eager(
    model: PreTrainedModel, tokens: Tokens, lengths: Tokens, masked: bool = True
) -> Floats:
    """Return the results of a model: logits, or states [batch, seq, hidden].

    Args:
        model: the model.
        tokens: int64 [batch, seq].
        lengths: int64 [batch], the number of real tokens of each row.
        masked: whether the attention mask hides padding.
    """
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    padding = model.config.pad_token_id or 0
    given = torch.from_numpy(np.where(real, tokens, padding))
    mask = torch.from_numpy((real if masked else np.ones_like(real)).astype(np.int64))
    with torch.no_grad():
        made = model(input_ids=given, attention_mask=mask)
    found = made.logits if hasattr(made, "logits") else made.last_hidden_state
    return found.numpy()


def pooled(states: Floats, lengths: Tokens) -> Floats:
    """Return the mean of each row's states, [batch, hidden]."""
    return np.stack([row[:n].mean(0) for row, n in zip(states, lengths, strict=True)])


def pixels(count: int) -> Floats:
    """Return random pictures float32 [count, 3, height, width].

    Height and width are those in `VISION`.
    """
    shape = count, 3, SIDE, SIDE
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def eager_pictures(model: PreTrainedModel, given: Floats) -> Floats:
    with torch.no_grad():
        if hasattr(model, "get_image_features"):
            made = model.get_image_features(pixel_values=torch.from_numpy(given))
            return made.pooler_output.numpy()
        made = model(pixel_values=torch.from_numpy(given))
    found = made.logits if hasattr(made, "logits") else made.last_hidden_state[:, 0]
    return found.numpy()


def compare_pictures(name: str, folder: Path) -> tuple[float, float]:
    """Compare a model of pictures with its bundle.

    Returns:
        The largest difference between the embeddings of bundle and model; and, as a
        control, the largest difference after the model's embeddings were put in another
        order. Both are in standard deviations of the embeddings.
    """
    model, given, path = build(name), pixels(3), folder / "model.kvc"
    export_hf(model).save(path)
    with load(path) as program:
        found = program.call("embed_image", given)
    wanted = eager_pictures(model, given)
    far, changed = (
        float(np.abs(found - other).max() / wanted.std())
        for other in (wanted, wanted[[1, 2, 0]])
    )
    return far, changed


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def say_pooling(folder: Path, normalize: bool = True, **modes: object) -> None:
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    if normalize:
        modules.append({"path": "2_Normalize", "type": "a.models.Normalize"})
    write(folder, "modules.json", modules)
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 64, **modes})


@dataclass(frozen=True, slots=True)
class Parity:
    """Differences of a bundle and its model, in standard deviations of results."""

    far: float  # the largest difference
    padded: float  # the control: how far it is from the model that sees padding, too
    # the control: how far the model is from itself with another first token in each row
    changed: float


def compare(name, folder, task="embed", recipe="fp32", **changes) -> Parity:
    model, path = build(name, task, **changes), folder / "model.kvc"
    export_hf(model, recipe=recipe, cache=CacheConfig(LONGEST)).save(path)
    with load(path) as program:
        return measure(model, program, task)


def measure(model: PreTrainedModel, program: Program, task: Task) -> Parity:
    """Compare a bundle with its model on several batches of rows."""
    far, padded, changed = [], [], []
    for lengths in LENGTHS:
        tokens, counts = rows(lengths)
        other = tokens.copy()
        other[:, 0] = (tokens[:, 0] - 4) % (VOCAB - 5) + 5
        found = program.call(task, tokens, counts)
        wanted = eager(model, tokens, counts)
        ways = [(far, wanted), (changed, eager(model, other, counts))]
        if min(lengths) < max(lengths):
            ways.append((padded, eager(model, tokens, counts, masked=False)))
        for kept, made in ways:
            kept.append(_distance(task, found, made, counts) / float(wanted.std()))
    return Parity(max(far), min(padded), min(changed))


def _distance(task: Task, found: Floats, wanted: Floats, lengths: Tokens) -> float:
    if task == "embed":
        wanted = pooled(wanted, lengths)
    if found.ndim < 3:
        return float(np.abs(found - wanted).max())
    real = np.arange(found.shape[1]) < lengths[:, None]
    return float(np.abs(found - wanted)[real].max())
