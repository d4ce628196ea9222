"""Wav files: samples of each width, and what is refused."""

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from kvc.runtime.speech import read_wave
from kvc.schema.errors import BadSound, FileProblem

RATE = 16_000
VALUES = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.75])


def write(path: Path, content: bytes, width: int, channels: int = 1, rate: int = RATE):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def packed(values: np.ndarray, width: int) -> bytes:
    """Return values as samples of so many bytes."""
    whole = np.round(values * 2.0 ** (8 * width - 1)).astype(np.int64)
    if width == 1:
        return (whole + 128).astype(np.uint8).tobytes()
    return b"".join(int(v).to_bytes(width, "little", signed=True) for v in whole)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_each_width_are_numbers_from_minus_one_to_one(width, tmp_path):
    found = read_wave(write(tmp_path / "a.wav", packed(VALUES, width), width), RATE)
    np.testing.assert_array_equal(found, VALUES.astype(np.float32))
    assert found.dtype == np.float32


def test_channels_become_their_mean(tmp_path):
    both = np.stack([VALUES, VALUES[::-1]], 1).reshape(-1)
    found = read_wave(write(tmp_path / "a.wav", packed(both, 2), 2, 2), RATE)
    np.testing.assert_allclose(found, (VALUES + VALUES[::-1]) / 2, atol=1e-7)


def test_another_rate_is_refused_with_the_way_to_change_it(tmp_path):
    path = write(tmp_path / "a.wav", packed(VALUES, 2), 2, rate=44_100)
    with pytest.raises(BadSound, match=r"44100 samples a second.*ffmpeg.*-ar 16000"):
        read_wave(path, RATE)


def floats(samples: bytes) -> bytes:
    """Return a wav file of floats, which are no plain samples."""
    return of_form(struct.pack("<HHIIHH", 3, 1, RATE, 4 * RATE, 4, 32), samples)


def wide(samples: bytes) -> bytes:
    """Return a wav file of integers of 64 bits."""
    return of_form(struct.pack("<HHIIHH", 1, 1, RATE, 8 * RATE, 8, 64), samples)


def of_form(form: bytes, samples: bytes) -> bytes:
    """Return a wav file."""
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: b"", "it ends too early"),
        (lambda _: b"ID3 an mp3, say, whatever it holds", "not a plain wav file"),
        (lambda _: floats(bytes(16)), "not a plain wav file"),
        (lambda _: wide(bytes(16)), "its samples have 64 bits"),
        (lambda content: content[:-3], "it is cut off"),
        (lambda content: content[: -2 * len(VALUES)], "it is empty"),
        (lambda content: content[:30], "not a plain wav file"),
    ],
)
def test_what_is_no_whole_wav_file_is_refused(change, says, tmp_path):
    path = write(tmp_path / "a.wav", packed(VALUES, 2), 2)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadSound, match=says):
        read_wave(path, RATE)


def test_a_file_that_is_not_there_is_a_problem_of_the_file(tmp_path):
    with pytest.raises(FileProblem, match="No such file"):
        read_wave(tmp_path / "a.wav", RATE)


def test_a_name_that_no_file_can_have_is_a_problem_of_the_file():
    with pytest.raises(FileProblem, match="null byte"):
        read_wave("a\0.wav", RATE)
