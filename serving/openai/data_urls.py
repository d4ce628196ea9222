"""Pictures in messages: `data:` URLs, decoded without asking anybody."""

import binascii
from typing import TYPE_CHECKING, Final

from kvc.runtime.embedding.pictures import picture_in
from kvc.serving.openai.fields import bad

if TYPE_CHECKING:
    from PIL.Image import Image

_SHOWN: Final = 32


def picture_at(url: str, name: str, most: int) -> "Image":
    """Return the picture in a data: URL.

    Args:
        url: the URL.
        name: the place of the URL in the request, for messages.
        most: the greatest number of its pixels.

    Raises:
        BadSetting: it is another URL, or no picture in base64.
        BadPicture, MissingPackage: as `picture_in`.
    """
    if not url.lower().startswith("data:"):
        expected = (
            "a data: URL with the picture itself (data:image/png;base64,...): this "
            "server fetches nothing from the network"
        )
        raise bad(name, expected, url[:_SHOWN])
    head, comma, content = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise bad(name, "data:image/...;base64,...", url[:_SHOWN])
    try:
        raw = binascii.a2b_base64(content, strict_mode=True)
    except ValueError as error:
        raise bad(name, "base64 after the comma", content[:_SHOWN]) from error
    return picture_in(raw, name, most)
