"""Placeholders of pictures in a prompt, as in the processor of a folder.

In: a model's folder, and the pixel settings. Out: `PicturePlaces`: the placeholder of a
picture in a prompt, and the text by which transformers' processor replaces the
placeholder (its expansion). There is one expansion for all pictures, or one for each
number of parts that a picture may have. A processor whose expansion depends on the
picture in another way is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvc.compiler.hugging_face.reading.model_lines import words_of
from kvc.compiler.hugging_face.reading.picture_settings import PATCHES, check_pillow
from kvc.compiler.hugging_face.reading.preprocessor_files import read_json
from kvc.schema.errors import BadModelFolder, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

# Width and height of test pictures that a processor might treat differently.
_TRIED: Final = ((40, 30), (30, 40), (1000, 20), (900, 1300))


_TOKEN: Final = "image_token"
_OF_VIDEOS: Final = "SmolVLMProcessor"
_OF_PATCHES: Final = frozenset({"Qwen2VLProcessor", "Qwen2_5_VLProcessor"})
_USUAL: Final = {
    _TOKEN: "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
}
_USUAL_LENGTH: Final = 169  # default number of positions of a part
_STEP: Final = 64  # pixels of a test picture per wanted part
WHOLE: Final = ""  # grid of a picture without parts


@dataclass(frozen=True, slots=True)
class Expansion:
    """The text that replaces a placeholder of a picture in a prompt.

    Attributes:
        text: the text.
        tokens: the tokens of the text, with the tokens that the tokenizer adds to every
            text.
    """

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PicturePlaces:
    """The placeholder of pictures in prompts, and its expansions.

    Attributes:
        placeholder: the part of a prompt that stands for a picture.
        expansions: the expansions of the placeholder, by rows and columns of parts
            ("2x3"; "0x0" for a picture that is not split); if no picture is ever split,
            a single expansion, with the key `WHOLE`.
    """

    placeholder: str
    expansions: Mapping[str, Expansion]


def read_places(folder: Path, pictures: Mapping[str, object]) -> PicturePlaces:
    """Return the placeholder of a folder's processor, and its expansions.

    Args:
        folder: the folder of the processor.
        pictures: the pixel settings, from `read_pictures`.

    Raises:
        BadModelFolder: the folder has no processor, or the processor fails.
        UnsupportedModel: the expansion depends on the picture.
        MissingPackage: Pillow is not installed.
    """
    check_pillow()
    from PIL import Image

    try:
        processor = _processor(folder)
        placeholder = str(getattr(processor, _TOKEN))
        if PATCHES in pictures:
            return _of_patches(folder, processor, placeholder)
        splits = _splits(pictures)
        found = {
            (_grid(processor, one) if splits else WHOLE, expansion)
            for one in (Image.new("RGB", size) for size in (*_TRIED, *splits))
            for expansion in _expanded(processor, placeholder, one)
        }
    except Exception as error:
        reason = f"its processor: {words_of(error)}"
        raise BadModelFolder(path=str(folder), reason=reason) from error
    expansions = dict(sorted(found, key=lambda one: one[0]))
    if len(found) != len(expansions):
        reason = "how many places a picture has in a prompt depends on the picture"
        raise UnsupportedModel(model=str(folder), reason=reason)
    return PicturePlaces(placeholder, expansions)


def _of_patches(
    folder: Path, processor: "ProcessorMixin", placeholder: str
) -> PicturePlaces:
    """Check the expansion of pictures of variable size; return the placeholder.

    Raises:
        UnsupportedModel: there is not one placeholder for each group of patches.
    """
    from PIL import Image

    for size in _TRIED:
        picture = Image.new("RGB", size)
        (expansion,) = _expanded(processor, placeholder, picture)
        made = processor.image_processor(picture)["image_grid_thw"][0]
        merge = processor.image_processor.merge_size
        groups = int(made[1]) * int(made[2]) // merge**2
        if expansion.text != placeholder * groups:
            reason = "its processor gives a picture other places than groups of patches"
            raise UnsupportedModel(model=str(folder), reason=reason)
    return PicturePlaces(placeholder, {})


def _without_videos(folder: Path) -> "ProcessorMixin":
    """Return a processor that expands pictures as the processor of Qwen2.5-VL does.

    The original processor also reads videos, which needs more packages.
    """
    from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin
    from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor

    class PicturesAlone(ProcessorMixin):
        replace_image_token = Qwen2_5_VLProcessor.replace_image_token

        def __init__(
            self, image_processor: object, tokenizer: "PreTrainedTokenizerBase"
        ) -> None:
            token = getattr(tokenizer, _TOKEN, None) or "<|image_pad|>"
            self.image_token = token
            self.image_token_id = tokenizer.convert_tokens_to_ids(token)
            super().__init__(image_processor, tokenizer)  # type: ignore[no-untyped-call]

    local = {"local_files_only": True, "trust_remote_code": False}
    pictures = AutoImageProcessor.from_pretrained(folder, backend="pil", **local)  # type: ignore[no-untyped-call]
    return PicturesAlone(pictures, AutoTokenizer.from_pretrained(folder, **local))


def _processor(folder: Path) -> "ProcessorMixin":
    """Return the processor of a folder.

    SmolVLM's processor also reads videos, which needs more packages. The processor of
    Idefics 3 replaces it: both expand prompts with pictures in the same way, if tokens
    have their usual names.
    """
    from transformers import (
        AutoImageProcessor,
        AutoProcessor,
        AutoTokenizer,
        Idefics3Processor,
    )

    local = {"local_files_only": True, "trust_remote_code": False}
    said = _said(folder)
    if said.get("processor_class") in _OF_PATCHES:
        return _without_videos(folder)
    if said.get("processor_class") != _OF_VIDEOS:
        opened: ProcessorMixin = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            folder, backend="pil", **local
        )
        return opened
    pictures = AutoImageProcessor.from_pretrained(folder, backend="pil", **local)  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder, **local)
    for name, usual in _USUAL.items():
        if getattr(tokenizer, name, usual) != usual:
            raise ValueError(f"{name} of its tokenizer is not {usual}")
    length = said.get("image_seq_len", _USUAL_LENGTH)
    if type(length) is not int or length < 1:
        raise ValueError(f"image_seq_len is {length!r:.40}")
    return Idefics3Processor(pictures, tokenizer, image_seq_len=length)


def _said(folder: Path) -> Mapping[str, object]:
    """Return a folder's processor settings, merged from all files with settings."""
    found: dict[str, object] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).exists():
            found |= read_json(folder, name)
    return found


def _splits(pictures: Mapping[str, object]) -> list[tuple[int, int]]:
    """Return a picture size for each grid of parts into which a picture may be split.

    The longer side of the picture always has the maximum number of parts.
    """
    match pictures.get("parts"):
        case {"longest": int(longest), "side": int(side), "splits": True}:
            most = -(-longest // side)
            long = _STEP * most
            shorts = [_STEP * parts - _STEP // 2 for parts in range(1, most + 1)]
            return [size for short in shorts for size in ((long, short), (short, long))]
        case {}:
            return [_TRIED[0]]
    return []


def _grid(processor: "ProcessorMixin", picture: object) -> str:
    """Return the grid of parts into which a processor splits a picture.

    The result is the number of rows and columns, as in "2x3".
    """
    made = processor.image_processor(picture, return_row_col_info=True)
    return f"{made['rows'][0][0]}x{made['cols'][0][0]}"


def _expanded(
    processor: "ProcessorMixin", placeholder: str, picture: object
) -> Iterator[Expansion]:
    made = processor(
        images=picture, text=placeholder, return_text_replacement_offsets=True
    )
    for replaced in made["text_replacement_offsets"][0]:
        tokens = tuple(map(int, made["input_ids"][0]))
        yield Expansion(str(replaced["replacement"]), tokens)
