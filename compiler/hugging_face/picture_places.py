"""How a prompt says where its pictures go, as the processor of a folder has it.

In: a folder. Out: `PicturePlaces`: what a prompt has for a picture, and what the
processor of transformers makes of it, which is one text for all pictures. A processor
for which it depends on the picture is refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvc.compiler.hugging_face.picture_settings import check_pillow
from kvc.schema.errors import BadModelFolder, UnsupportedModel

# Width and height of pictures that a processor could tell apart.
_TRIED: Final = ((40, 30), (30, 40), (1000, 20), (900, 1300))
_REPLACED: Final = "text_replacement_offsets"


@dataclass(frozen=True, slots=True)
class PicturePlaces:
    """Where the pictures of a prompt go.

    Attributes:
        placeholder: the part of a prompt that stands for a picture.
        expansion: the text that takes its place.
        tokens: of it, and of what the tokenizer adds to every text.
    """

    placeholder: str
    expansion: str
    tokens: tuple[int, ...]


def read_places(folder: Path) -> PicturePlaces:
    """Return how the processor of a folder expands a prompt.

    Raises:
        BadModelFolder: it has none, or one that fails.
        UnsupportedModel: what it makes depends on the picture.
        MissingPackage: Pillow is not installed.
    """
    check_pillow()
    from PIL import Image
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
        placeholder = str(processor.image_token)
        made = [
            processor(
                images=Image.new("RGB", size),
                text=placeholder,
                return_text_replacement_offsets=True,
            )
            for size in _TRIED
        ]
        found = {
            (str(replaced["replacement"]), tuple(map(int, one["input_ids"][0])))
            for one in made
            for replaced in one[_REPLACED][0]
        }
    except Exception as error:
        reason = f"its processor: {type(error).__name__}: {error}"
        raise BadModelFolder(path=str(folder), reason=reason) from error
    if len(found) != 1:
        reason = "how many places a picture has in a prompt depends on the picture"
        raise UnsupportedModel(model=str(folder), reason=reason)
    ((expansion, tokens),) = found
    return PicturePlaces(placeholder, expansion, tokens)
