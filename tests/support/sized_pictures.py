"""A tiny Qwen2.5-VL, whose pictures differ in size, and whose positions have axes.

In: where to write. Out: a folder with the model and its processor, and a bundle for
batches of several rows, made by `kvc compile`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from hf_parity import zero_row
from seeing_models import (
    SIZED,
    TOKEN,
    Parity,
    build,
    compile_folder,
    picture,
    tokenizer,
)
from transformers import PreTrainedModel, ProcessorMixin, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
)

from kvc.runtime import Session, load
from kvc.runtime.generation.image_prefill import Picturing
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import prepared
from kvc.schema.container import BundleFile
from kvc.tools.reports.methods import describe_methods

CHUNK = 7
CAPACITY = 120
ROWS = 3
SIDE, MERGE = 4, 2  # of a patch, of a group of them
LEAST, MOST = 4 * 64, 30 * 64  # pixels
BEGIN, END = 88, 89  # tokens around a picture
SPECIAL = {"<pad>": 0, "</s>": 2, "<begin>": BEGIN, "<end>": END, "<image>": TOKEN}
TEMPLATE = """\
{% for message in messages %} 80
{% for part in message.content %}
{% if part.type == "image" %} <begin> <image> <end> {% else %} {{ part.text }}
{% endif %}
{% endfor %} 81
{% endfor %}{% if add_generation_prompt %} 82{% endif %}
"""


# A text with pictures, and the width and height of each.
PROMPT = "<image> 5 <image> 6 <image> 7"
SIZES = ((20, 61), (3, 3), (90, 30))
MORE = 40  # tokens after it


class Processor(Qwen2_5_VLProcessor):
    """The processor of transformers without videos, which need more packages."""

    def __init__(self, image_processor: object, tokenizer: object) -> None:
        self.image_token, self.image_token_id = "<image>", TOKEN
        self.video_token, self.video_token_id = "<video>", None
        ProcessorMixin.__init__(
            self, image_processor, tokenizer, chat_template=TEMPLATE
        )

    @property
    def model_input_names(self) -> list[str]:
        return ["input_ids", "pixel_values", "image_grid_thw", "mm_token_type_ids"]


def processor() -> Processor:
    words = tokenizer(SPECIAL, list(SPECIAL), image_token="<image>")
    pictures = Qwen2VLImageProcessorPil(
        patch_size=SIDE, merge_size=MERGE, temporal_patch_size=2,
        size={"shortest_edge": LEAST, "longest_edge": MOST},
    )  # fmt: skip
    return Processor(pictures, words)


def model(name: str = "qwen2_5_vl", layers: int = 1) -> PreTrainedModel:
    kind, settings = SIZED[name]
    text = settings["text_config"] | {"num_hidden_layers": layers}
    return build(kind, settings | {"text_config": text})


def write_folder(path: Path, name: str = "qwen2_5_vl", layers: int = 1) -> Path:
    model(name, layers).save_pretrained(path)
    whole = processor()
    whole.tokenizer.save_pretrained(path)
    whole.image_processor.save_pretrained(path)
    (path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    described = json.loads((path / "preprocessor_config.json").read_text())
    described["processor_class"] = "Qwen2_5_VLProcessor"
    (path / "preprocessor_config.json").write_text(json.dumps(described))
    return path


def write_bundle(folder: Path, path: Path, rows: int = ROWS) -> Path:
    return compile_folder(folder, path, CAPACITY, CHUNK, rows)


def compare(path: Path, whole: PreTrainedModel) -> Parity:
    """Compare a bundle with its model, on chunks of a text with pictures and on steps.

    The first steps are taken again after a rewind. A control is a fork of the session
    in which a row of one cache is zeroed.
    """
    images = [picture(i, *size) for i, size in enumerate(SIZES)]
    given = processor()(images=images, text=PROMPT, return_tensors="pt")
    held = given["input_ids"].shape[1]
    more = torch.from_numpy(np.random.default_rng(7).integers(3, BEGIN, (1, MORE)))
    tokens = torch.cat([given.pop("input_ids"), more], dim=1)
    del given["attention_mask"]
    given["mm_token_type_ids"] = (tokens == TOKEN).long()
    with torch.no_grad():
        logits = whole(input_ids=tokens, use_cache=False, **given).logits[0].numpy()
    listed, spread = tokens[0].tolist(), logits.std()
    with load(path) as program, program.session() as session:
        prefill = _fed(session, listed[:held], images, logits)
        decode = _decoded(session, listed[held:], logits[held:])
        session.rewind(MORE)
        again = _decoded(session, listed[held : held + 3], logits[held:])
        session.rewind(3)
        controls = []
        values = [name for name in session.state if name.endswith(".values")]
        for name in ("kvc_cache.0.keys", values[-1], "kvc_after"):
            with session.fork() as other:
                zero_row(other.state[name], held - 1)
                rest = listed[held : held + 3]
                controls.append(_decoded(other, rest, logits[held:]))
    with BundleFile.open(path) as file:
        left = sum(sum(one.left.values()) for one in describe_methods(file.program))
    far = max(decode, again)
    return Parity(prefill / spread, far / spread, min(controls) / spread, left)


def _fed(session: Session, tokens: Sequence[int], images, wanted: np.ndarray) -> float:
    """Return the largest difference from the logits `wanted` after prompt chunks."""
    places = places_of(session)
    picturing = Picturing(session, places, [prepared(session, places, images)])
    at, far = 0, list[float]()
    for feed in picturing.plan([tokens]):
        part = [tokens], [at], feed.counts
        made = picturing.embeddings(*part)
        found = session.call(feed.method, made, **picturing.positions(*part))
        at += feed.counts[0]
        far.append(np.abs(found[0] - wanted[at - 1]).max())
    return max(far)


def _decoded(session: Session, tokens: Sequence[int], wanted: np.ndarray) -> float:
    """Return the largest difference of logits from `wanted` while decoding tokens."""
    pairs = zip(tokens, wanted, strict=False)
    return max(
        np.abs(session.decode(np.array([[token]]))[0] - logits).max()
        for token, logits in pairs
    )
