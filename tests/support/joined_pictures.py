"""A tiny Gemma 3, in which all positions of one picture attend to each other.

In: where to write. Out: a folder with the model and its processor, and a bundle for
batches of several rows, made by `kvc compile`.
"""

from pathlib import Path

from seeing_models import JOINED, MODELS, SIDE, TOKEN, build, compile_folder, tokenizer
from transformers import Gemma3Processor, PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import (
    Gemma3ImageProcessorPil,
)

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
    named = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<soft>"}
    words = tokenizer(SPECIAL, list(SPECIAL), **named)
    sides = {"height": SIDE, "width": SIDE}
    pictures = Gemma3ImageProcessorPil(size=sides, **settings)
    return Gemma3Processor(pictures, words, TEMPLATE, image_seq_length=JOINED)


def model() -> PreTrainedModel:
    return build(*MODELS["gemma3"])


def write_folder(path: Path) -> Path:
    model().save_pretrained(path)
    processor().save_pretrained(path)
    return path


def write_bundle(folder: Path, path: Path) -> Path:
    return compile_folder(folder, path, CAPACITY, CHUNK, ROWS)
