"""Tiny random models that read texts and pictures, and folders of them.

Weights are drawn as in `hf_models`. The reference is the model itself in its eager
attention, given the whole text and all pictures at once, without a cache.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from hf_models import rescale
from numpy.typing import NDArray
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]

TOLERANCE = 1e-4
NOTICED = 1e-3
SIDE = 32  # of a picture
PATCH = 8
WORDS = 96  # tokens of the text alone
TOKEN = 90  # that stands where a picture is
POSITIONS = (SIDE // PATCH) ** 2

_TEXT: dict[str, object] = {
    "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_VISION: dict[str, object] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
    "num_channels": 3,
}  # fmt: skip


def llava(text: str = "llama", vision: str = "clip_vision_model") -> PreTrainedModel:
    """Return a LLaVA of a text model and a vision tower."""
    return build(
        "llava",
        text_config=_TEXT | {"model_type": text},
        vision_config=_VISION | {"model_type": vision},
        image_token_index=TOKEN,
    )


def gemma3() -> PreTrainedModel:
    """Return a Gemma 3, in which the positions of a picture see each other."""
    return build(
        "gemma3",
        text_config=_TEXT | {"query_pre_attn_scalar": 16, "sliding_window": 8},
        vision_config=_VISION,
        image_token_index=TOKEN,
        mm_tokens_per_image=POSITIONS // 4,
    )


def build(kind: str, **settings: object) -> PreTrainedModel:
    """Return a model with weights that matter, in its eager attention."""
    config = AutoConfig.for_model(kind, **settings)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager"
    )
    rescale(model, seed=0)
    return model.eval()


def pixels(count: int) -> Floats:
    """Return pictures float32 [count, 3, height, width]."""
    shape = count, 3, SIDE, SIDE
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def picture(seed: int, width: int = 45, height: int = 33) -> Image.Image:
    """Return a picture of coarse noise, whose colours a small one still has."""
    values = np.random.default_rng(seed).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((width, height))


def text_with_pictures(length: int, begins: Sequence[int]) -> Tokens:
    """Return tokens int64 [1, length], with the places of a picture at each begin."""
    tokens = np.random.default_rng(7).integers(3, TOKEN, (1, length))
    for begin in begins:
        tokens[0, begin : begin + POSITIONS] = TOKEN
    return tokens


def eager(model: PreTrainedModel, tokens: Tokens, given: Floats) -> Floats:
    """Return logits float32 [seq, vocab] of a whole text with its pictures."""
    with torch.no_grad():
        made = model(
            input_ids=torch.from_numpy(tokens),
            pixel_values=torch.from_numpy(given),
            use_cache=False,
        )
    logits: Floats = made.logits[0].numpy()
    return logits


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words that are numbers, with a token for a picture."""
    vocabulary = {str(number): number for number in range(WORDS)}
    special = {"<pad>": 0, "</s>": 2, "<image>": TOKEN}
    for name, number in special.items():
        del vocabulary[str(number)]
        vocabulary[name] = number
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken("<image>", normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>"
    )


def processor() -> LlavaProcessor:
    """Return what prepares texts and pictures for `llava`."""
    sides = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=sides),
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def save_folder(path: Path, model: PreTrainedModel) -> Path:
    """Save a model with its processor; return the folder."""
    model.save_pretrained(path)
    processor().save_pretrained(path)
    return path
