"""Tiny random models that read texts and pictures, and folders with such models.

Weights are drawn as in `hf_models`. The reference is the model itself in its eager
attention, given the whole text and all pictures at once, without a cache.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from click.testing import CliRunner
from encoder_models import SIDE, VISION, pixels
from hf_models import BASE, rescale
from hf_parity import decoded
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
from transformers.models.deepseek_vl import DeepseekVLProcessor
from transformers.models.deepseek_vl import image_processing_pil_deepseek_vl as squares

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Session, generate, load
from kvc.schema.container import BundleFile
from kvc.tools.cli import main
from kvc.tools.reports.methods import describe_methods

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]

TOLERANCE = 1e-4
NOTICED = 1e-3
PATCH = VISION["patch_size"]
WORDS = 96  # tokens of the text alone
TOKEN = 90  # that stands where a picture is
POSITIONS = (SIDE // PATCH) ** 2  # of a picture, for a LLaVA
JOINED = POSITIONS // 4  # of a picture, for a Gemma 3
CHUNKS = (3, 9, 12, 8, 12)  # pictures begin and end within them
BEGINS = (4, 25)
STEPS = 20
CAPACITY = 100

_TEXT = BASE | {"vocab_size": WORDS}


def _kind(text: str, vision: str, **settings: object) -> dict[str, object]:
    return {
        "text_config": _TEXT | {"model_type": text},
        "vision_config": VISION | {"model_type": vision},
        "image_token_id": TOKEN,
        **settings,
    }


_LLAVA = _kind("llama", "clip_vision_model")
_SIGLIP = _kind("qwen2", "siglip_vision_model", vision_feature_select_strategy="full")
_COHERE = _kind("cohere2", "siglip_vision_model", vision_feature_layer=-1)
_DEEPSEEK = _kind("llama", "siglip_vision_model")
_JANUS = _DEEPSEEK | {
    "vision_config": VISION | {"mlp_ratio": 1.5, "projection_dim": 64, "depth": 2},
    "vq_config": {
        "embed_dim": 4, "num_embeddings": 8, "latent_channels": 8, "base_channels": 32,
        "channel_multiplier": [1], "num_res_blocks": 1, "projection_dim": 8,
        "image_token_embed_dim": 64,
    },
}  # fmt: skip
_INTERNVL = _kind("qwen2", "internvl_vision")
_INTERNVL["vision_config"] = VISION | {
    "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH],
}  # fmt: skip

# One layer of two sees a window, which is shorter than a picture and its text.
_GEMMA3 = _kind("gemma3_text", "siglip_vision_model", mm_tokens_per_image=JOINED)
_GEMMA3["text_config"] = _TEXT | {
    "model_type": "gemma3_text", "sliding_window": 6, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip

# A window is of 2 x 2 groups of 2 x 2 patches; the second block has none.
_VISION_OF_QWEN: dict[str, object] = {
    "hidden_size": 64, "intermediate_size": 96, "depth": 2, "num_heads": 4,
    "patch_size": 4, "out_hidden_size": 64, "window_size": 16,
    "fullatt_block_indexes": [1],
}  # fmt: skip
_VISION_OF_QWEN2: dict[str, object] = {
    "embed_dim": 32, "hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 4,
}  # fmt: skip


def _qwen(kind: str, vision: dict[str, object]) -> dict[str, object]:
    """Return the settings of a model whose positions have three axes."""
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 100.0}
    text = _TEXT | {"model_type": f"{kind}_text", "rope_parameters": rope}
    return {"text_config": text, "vision_config": vision, "image_token_id": TOKEN}


# Pictures of these have sizes of their own.
SIZED: dict[str, tuple[str, dict[str, object]]] = {
    "qwen2_5_vl": ("qwen2_5_vl", _qwen("qwen2_5_vl", _VISION_OF_QWEN)),
    "qwen2_vl": ("qwen2_vl", _qwen("qwen2_vl", _VISION_OF_QWEN2)),
}
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llava": ("llava", _LLAVA),
    "llava, SigLIP and Qwen2": ("llava", _SIGLIP),
    "vipllava": ("vipllava", _LLAVA | {"vision_feature_layers": [-1, -2]}),
    "deepseek_vl": ("deepseek_vl", _DEEPSEEK),
    "janus": ("janus", _JANUS),
    "internvl": ("internvl", _INTERNVL),
    "aya_vision": ("aya_vision", _COHERE),
    "cohere2_vision": ("cohere2_vision", _COHERE),
    "idefics3": ("idefics3", _kind("llama", "idefics3_vision", scale_factor=2)),
    "smolvlm": ("smolvlm", _kind("llama", "smolvlm_vision", scale_factor=2)),
    "gemma3": ("gemma3", _GEMMA3),
}
# What is refused, and what the error says of it.
REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "paligemma": (
        "paligemma",
        _kind("gemma", "siglip_vision_model", projection_dim=64),
        "a prompt sees all of itself",
    ),
    "llava_next": ("llava_next", _LLAVA, "needs image_sizes"),
    "idefics2": (
        "idefics2",
        _kind("mistral", "idefics2_vision"),
        "read in several parts",
    ),
}  # fmt: skip


def build(kind: str, settings: Mapping[str, object]) -> PreTrainedModel:
    """Return a model in eager attention, rescaled so that all its weights matter."""
    config = AutoConfig.for_model(kind, **settings)
    maker = AutoModelForImageTextToText.from_config
    model: PreTrainedModel = maker(config, attn_implementation="eager")
    rescale(model, seed=0)
    return model.eval()


def picture(seed: int, width: int = 45, height: int = 33) -> Image.Image:
    """Return a picture of noise so coarse that a smaller size keeps its colors."""
    values = np.random.default_rng(seed).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((width, height))


def text_with_pictures(places: int) -> Tokens:
    """Return tokens int64 [1, n], `places` of a picture at each of `BEGINS`."""
    length = sum(CHUNKS) + STEPS
    tokens = np.random.default_rng(7).integers(3, TOKEN, (1, length))
    for begin in BEGINS:
        tokens[0, begin : begin + places] = TOKEN
    return tokens


def in_parts(model: PreTrainedModel) -> bool:
    """Tell whether a model takes pictures in parts, [texts, parts, 3, side, side]."""
    return model.config.model_type in ("idefics3", "smolvlm")


def eager(model: PreTrainedModel, tokens: Tokens, given: Floats) -> Floats:
    """Return logits float32 [seq, vocab] of a whole text with its pictures."""
    pictures = torch.from_numpy(given)
    beside = {"pixel_values": pictures[None] if in_parts(model) else pictures}
    if model.config.model_type == "gemma3":
        beside["token_type_ids"] = torch.from_numpy(tokens == TOKEN).long()
    with torch.no_grad():
        made = model(input_ids=torch.from_numpy(tokens), use_cache=False, **beside)
    return made.logits[0].numpy()


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a bundle's logits are from the model's, in standard deviations."""

    prefill: float  # the largest difference after chunks of embeddings
    decode: float  # the largest of the steps after them
    control: float  # the largest difference that a wrong row of a picture makes
    left: int  # how many operators no backend runs


def compare(
    model: PreTrainedModel, source: PreTrainedModel | Path, folder: Path, recipe: str
) -> Parity:
    path, cache = folder / "model.kvc", CacheConfig(CAPACITY)
    made = export_hf(source, recipe=recipe, cache=cache, prefill_chunk=max(CHUNKS))
    made.save(path)
    return measure(model, path)


def measure(model: PreTrainedModel, path: Path) -> Parity:
    with BundleFile.open(path) as file:
        left = sum(sum(each.left.values()) for each in describe_methods(file.program))
    given = pixels(len(BEGINS))
    with load(path) as program, program.session() as session:
        pictures = [program.embed_image(one[None]).copy() for one in given]
        tokens = text_with_pictures(len(pictures[0]))
        found = _fed(session, tokens, pictures)
        pictures[1][1] = pictures[1][2]
        changed = _fed(session, tokens, pictures)
        ends = [end for *_, end in pieces(session, len(pictures[0]))]
    logits = eager(model, tokens, given)
    wanted = logits[[*(end - 1 for end in ends), *range(ends[-1], ends[-1] + STEPS)]]
    far, wrong = (np.abs(one - wanted) / logits.std() for one in (found, changed))
    count = len(ends)
    return Parity(far[:count].max(), far[count:].max(), wrong.max(), left)


def pieces(session: Session, places: int) -> list[tuple[str, int, int]]:
    """Return the calls that read a text in chunks: method, first position, end.

    A picture that one method reads as a whole has a call of its own.
    """
    ends, joined = np.cumsum(CHUNKS).tolist(), dict[int, int]()
    if "prefill_picture" in session.methods:
        joined = {begin: begin + places for begin in BEGINS}
    cuts = sorted({0, *ends, *joined, *joined.values()})
    return [
        ("prefill_picture" if begin in joined else "prefill_embeds", begin, end)
        for begin, end in itertools.pairwise(cuts)
    ]


def _fed(session: Session, tokens: Tokens, pictures: Sequence[Floats]) -> Floats:
    """Return the logits after each chunk of embeddings, then after each decode step."""
    session.reset()
    parts = pieces(session, len(pictures[0]))
    texts = [session.embed_tokens(tokens[:, b:e]).copy() for _, b, e in parts]
    whole = np.concatenate(texts, axis=1)
    held = whole.shape[1]
    whole[0, tokens[0, :held] == TOKEN] = np.concatenate(pictures)
    made = [session.call(name, whole[:, b:e])[0].copy() for name, b, e in parts]
    return np.stack([*made, *decoded(session, tokens, held, held + STEPS)])


SPECIAL = {"<pad>": 0, "</s>": 2, "<image>": TOKEN}


def tokenizer(special=SPECIAL, added=("<image>",), **named) -> PreTrainedTokenizerFast:
    words = {str(n): n for n in range(WORDS) if n not in special.values()}
    made = Tokenizer(models.WordLevel({**words, **special}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(one, normalized=False) for one in added])
    more = {"extra_special_tokens": named} if named else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", **more
    )


def compile_folder(
    folder: Path, path: Path, capacity: int, chunk: int, rows: int
) -> Path:
    settings = {"max-length": capacity, "prefill-chunk": chunk, "max-batch": rows}
    given = [text for name, n in settings.items() for text in (f"--{name}", str(n))]
    given += ["--recipe", "cpu_fp32", "--output", str(path)]
    done = CliRunner().invoke(main, ["compile", str(folder), *given])
    assert done.exit_code == 0, done.output
    return path


def processor() -> LlavaProcessor:
    """Return the processor of texts and pictures for `llava`."""
    sides = {"height": SIDE, "width": SIDE}
    pictures = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=sides)
    told = {"patch_size": PATCH, "num_additional_image_tokens": 1}
    told["vision_feature_select_strategy"] = "default"
    return LlavaProcessor(pictures, tokenizer(), **told)


def squaring_processor() -> DeepseekVLProcessor:
    """Return the processor of texts and pictures for `deepseek_vl`."""
    named = {"image_token": "<image>", "pad_token": "<pad>", "eos_token": "</s>"}
    made = tokenizer().backend_tokenizer
    words = PreTrainedTokenizerFast(tokenizer_object=made, extra_special_tokens=named)
    sides = {"height": SIDE, "width": SIDE}
    pictures = squares.DeepseekVLImageProcessorPil(size=sides, min_size=4)
    return DeepseekVLProcessor(pictures, words, num_image_tokens=POSITIONS)


def save_folder(path: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(path)
    processor().save_pretrained(path)
    return path


def check_the_command(
    bundle: Path, session: Session, prompt: str, folder: Path
) -> None:
    """Check that `kvc generate --image` prints what a session generates."""
    file = folder / "picture.png"
    picture(0).save(file)
    arguments = ["generate", str(bundle), prompt, "--max-tokens", "9"]
    found = CliRunner().invoke(main, [*arguments, "--image", str(file)])
    assert found.exit_code == 0, found.stderr
    run = generate(session, prompt, images=[picture(0)], max_tokens=9)
    assert found.stdout == "".join(run.text()) + "\n"
