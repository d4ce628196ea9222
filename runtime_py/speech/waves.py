"""Read wav files with Python's own module: samples as numbers from -1 to 1.

In: the path of a PCM file of 8, 16, 24 or 32 bits, and the rate that a model takes.
Out: the samples, as the mean of the file's channels. Nothing is resampled.
"""

import os
import wave
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from kvc.schema.errors import BadSound, FileProblem, reason_of

Samples = npt.NDArray[np.float32]

_MOST_SECONDS: Final = 24 * 60 * 60
_WIDTHS: Final = (1, 2, 3, 4)


def read_wave(path: str | os.PathLike[str] | BinaryIO, rate: int) -> Samples:
    """Return the samples of a file, float32 [n].

    Args:
        path: the path of the file, or the file, opened to read bytes.
        rate: the rate of the samples.

    Raises:
        FileProblem: the system cannot read the file.
        BadSound: the file is not a PCM wav file, has samples of more than 32 bits, is
            cut off, is empty or longer than a day, or does not have the rate `rate`.
    """
    source = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    place = source if isinstance(source, str) else "the sound"
    try:
        with wave.open(source, "rb") as file:
            if file.getframerate() != rate:
                raise _bad(
                    place, f"it has {file.getframerate()} samples a second", rate
                )
            count, channels = file.getnframes(), file.getnchannels()
            if count > rate * _MOST_SECONDS:
                raise _bad(place, "it is longer than a day", rate)
            content, width = file.readframes(count), file.getsampwidth()
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise FileProblem(path=place, reason=reason_of(error)) from error
    except (wave.Error, EOFError) as error:
        reason = f"it is not a plain wav file ({str(error) or 'it ends too early'})"
        raise _bad(place, reason, rate) from error
    if width not in _WIDTHS:
        raise _bad(place, f"its samples have {8 * width} bits", rate)
    if not content or len(content) != count * channels * width:
        raise _bad(place, "it is empty" if not content else "it is cut off", rate)
    samples: Samples = _numbers(content, width).reshape(-1, channels).mean(axis=1)
    return samples


def _numbers(content: bytes, width: int) -> Samples:
    """Return samples of `width` bytes as numbers from -1 to 1."""
    if width == 1:  # 8-bit samples are unsigned
        whole = np.frombuffer(content, np.uint8).astype(np.float32)
        return ((whole - 128) / 128).astype(np.float32)
    if width == 3:
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        content, width = padded.tobytes(), 4
    found = np.frombuffer(content, "<i2" if width == 2 else "<i4")
    return (found / 2.0 ** (8 * width - 1)).astype(np.float32)


def _bad(path: str, reason: str, rate: int) -> BadSound:
    return BadSound(path=path, reason=reason, rate=rate)
