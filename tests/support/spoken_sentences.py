"""Sentences, spoken by a voice of espeak-ng, and a count of wrong words."""

import subprocess
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvc.runtime.speech import read_wave

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "My teacher told me to read the whole book before Monday.",
    "We will meet at the station at half past seven.",
    "She bought three apples and a bottle of milk.",
    "The weather will be cold and windy tomorrow.",
    "Please close the window before you leave the room.",
    "He plays the piano better than anyone I know.",
    "The train to London leaves from platform nine.",
    "Our garden is full of red and yellow flowers.",
    "I would like a cup of tea without sugar.",
]
OTHERS = [
    "A stitch in time saves nine.",
    "The museum opens at ten and closes at five in the afternoon.",
    "Nobody expected the results to be this good.",
    "You can leave your coat and your umbrella at the entrance.",
    "Scientists have discovered a new kind of fish in the deep sea.",
]
_RATE = 22050  # of espeak-ng


def spoken(text: str, voice: str = "en") -> np.ndarray:
    """Return a text spoken by espeak-ng: samples float32 [n] at 16 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        command = ["espeak-ng", "-v", voice, "-s", "140", "-w", str(path), text]
        subprocess.run(command, check=True)
        samples = read_wave(path, _RATE)
    places = np.arange(0, len(samples) - 1, _RATE / 16000)
    return np.interp(places, np.arange(len(samples)), samples).astype(np.float32)


def write_sound(path: Path, samples: np.ndarray) -> None:
    """Write samples at 16 kHz, float32 [n], as a .wav file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c == " ").split()


def wrong_words(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Return how many words to change, add or remove to make `found` `wanted`."""
    costs = list(range(len(wanted) + 1))
    for count, word in enumerate(found, 1):
        before, costs[0] = costs[0], count
        for at, other in enumerate(wanted, 1):
            changed = before + (word != other)
            before = costs[at]
            costs[at] = min(changed, costs[at] + 1, costs[at - 1] + 1)
    return costs[-1]
