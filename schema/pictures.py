"""The largest that pictures may be; settings beyond are refused when they are read."""

from typing import Final

MOST_PIXELS: Final = 1 << 26  # of a picture: 256 MiB once it is unpacked
MOST_LONGEST: Final = 4096  # of a side that a picture in parts is resized to
MOST_PATCH: Final = 1 << 10  # of a side of a patch
