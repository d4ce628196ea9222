"""Limits on the sizes of pictures; larger sizes in a model's settings are refused."""

from typing import Final

MOST_PIXELS: Final = 1 << 26  # per picture: 256 MiB when unpacked
MOST_LONGEST: Final = 4096  # for a side of a resized picture in parts
MOST_PATCH: Final = 1 << 10  # for a side of a patch
