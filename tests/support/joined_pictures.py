"""A tiny Gemma 3, in whose prompts the places of a picture see each other.

In: where to write. Out: a folder of it with its processor, and a bundle of some rows,
made by `kvc compile`.
"""

from pathlib import Path

from click.testing import CliRunner
from seeing_models import JOINED, MODELS, SIDE, TOKEN, WORDS, build
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import Gemma3Processor, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import (
    Gemma3ImageProcessorPil,
)

from kvc.tools.cli import main

BEGIN, END = 88, 89  # tokens around a picture
CHUNK = 5
CAPACITY = 120
ROWS = 4
SPECIAL = {"<pad>": 0, "</s>": 2, "<boi>": BEGIN, "<eoi>": END, "<soft>": TOKEN}
TEMPLATE = """\
{% for message in messages %} 80
{% for part in message.content %}
{% if part.type == "image" %} <boi> {% else %} {{ part.text }} {% endif %}
{% endfor %} 81
{% endfor %}{% if add_generation_prompt %} 82{% endif %}
"""


def processor(**settings: object) -> Gemma3Processor:
    """Return what prepares texts and pictures."""
    words = {str(n): n for n in range(WORDS) if n not in SPECIAL.values()}
    made = Tokenizer(models.WordLevel(words | SPECIAL, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(one, normalized=False) for one in SPECIAL])
    named = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<soft>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>",
        extra_special_tokens=named,
    )  # fmt: skip
    sides = {"height": SIDE, "width": SIDE}
    pictures = Gemma3ImageProcessorPil(size=sides, **settings)
    return Gemma3Processor(pictures, tokenizer, TEMPLATE, image_seq_length=JOINED)


def model() -> PreTrainedModel:
    return build(*MODELS["gemma3"])


def write_folder(path: Path) -> Path:
    model().save_pretrained(path)
    processor().save_pretrained(path)
    return path


def write_bundle(folder: Path, path: Path) -> Path:
    settings = ["--recipe", "cpu_fp32", "--max-length", str(CAPACITY)]
    settings += ["--prefill-chunk", str(CHUNK), "--max-batch", str(ROWS)]
    settings += ["--output", str(path)]
    done = CliRunner().invoke(main, ["compile", str(folder), *settings])
    assert done.exit_code == 0, done.output
    return path
