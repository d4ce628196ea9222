"""`Spectrum`: how loud each pitch is in each moment of a sound, as Whisper hears it.

In: samples, settings as a model's preprocessor_config.json has them. Out: features, as
transformers' `WhisperFeatureExtractor` makes them: a Fourier transform of overlapping
windows, its power in bands that are spaced as Slaney's mel scale, the logarithm, cut at
8 below the loudest.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

Floats = npt.NDArray[np.float32]

KEY: Final = "spectrum"  # of the metadata that has its settings
_HIGHEST: Final = 8000.0  # pitch in hertz
_STRAIGHT: Final = 1000.0  # hertz up to which Slaney's scale is one of equal steps
_FRAMES: Final = 3000  # that are transformed at a time


@frozen
class Spectrum:
    """How features are made.

    Attributes:
        rate: samples a second.
        bins: bands of pitches.
        window: samples of a Fourier transform.
        hop: samples from one frame to the next.
        seconds: of the sound that a model hears at once.
    """

    rate: int
    bins: int
    window: int
    hop: int
    seconds: int

    @property
    def frames(self) -> int:
        """Return how many frames a model hears at once."""
        return self.seconds * self.rate // self.hop

    def log_mel(self, samples: Floats) -> Floats:
        """Return features float32 [bins, frames] of samples float32 [n].

        A sound shorter than what a model hears at once is followed by silence.
        """
        missing = max(0, self.seconds * self.rate - len(samples))
        half = self.window // 2
        sound = np.pad(np.pad(samples, (0, missing)), half, mode="reflect")
        bands = self._bands()
        mels = [power @ bands for power in self._powers(sound)]
        logarithms = np.log10(np.maximum(np.concatenate(mels), 1e-10)).T
        cut = np.maximum(logarithms, logarithms.max() - 8.0)
        features: Floats = ((cut + 4.0) / 4.0).astype(np.float32)
        return features

    def _powers(self, sound: Floats) -> Iterator[npt.NDArray[np.float64]]:
        """Yield the power of each pitch, [some frames, window / 2 + 1]."""
        views = np.lib.stride_tricks.sliding_window_view(sound, self.window)
        frames = views[:: self.hop][:-1]  # the last one is left out there
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        for first in range(0, len(frames), _FRAMES):
            yield np.abs(np.fft.rfft(frames[first : first + _FRAMES] * hann)) ** 2

    def _bands(self) -> npt.NDArray[np.float64]:
        """Return how much each pitch counts in each band, [window / 2 + 1, bins].

        Bands are triangles of equal area, whose corners are equal steps apart on
        Slaney's scale (Auditory Toolbox, 1998).
        """
        pitches = np.linspace(0, self.rate // 2, self.window // 2 + 1)
        corners = _hertz(np.linspace(0, _mel(_HIGHEST), self.bins + 2))
        widths = np.diff(corners)
        apart = corners[None, :] - pitches[:, None]
        rising, falling = -apart[:, :-2] / widths[:-1], apart[:, 2:] / widths[1:]
        triangles = np.maximum(0, np.minimum(rising, falling))
        bands: npt.NDArray[np.float64] = triangles * (2 / (corners[2:] - corners[:-2]))
        return bands


def spectrum_of(metadata: Mapping[str, str]) -> Spectrum:
    """Return how a bundle's model hears.

    Raises:
        BadSetting: the bundle does not say it, or says something impossible.
    """
    text = metadata.get(KEY)
    if text is None:
        expected = "a speech model, compiled with its preprocessor_config.json"
        other = "one that does not say how to hear"
        raise BadSetting(name="the bundle", expected=expected, found=other)
    try:
        found: object = json.loads(text)
        return Spectrum(**{n: _number(found, n) for n in Spectrum.__annotations__})
    except (ValueError, RecursionError) as error:
        name, expected = f"the bundle's {KEY}", "whole numbers above 0"
        raise BadSetting(name=name, expected=expected, found=repr(text)) from error


def _number(settings: object, name: str) -> int:
    """Return one of the settings; raises ValueError where it is impossible."""
    found = settings.get(name) if isinstance(settings, dict) else None
    if type(found) is not int or not 0 < found < 1 << 20:
        raise ValueError(name)
    return found


def _mel(hertz: float) -> float:
    """Return a pitch of 1000 hertz or more on Slaney's scale."""
    return 15.0 + math.log(hertz / _STRAIGHT) * 27.0 / math.log(6.4)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return pitches of Slaney's scale in hertz."""
    curved = _STRAIGHT * np.exp((mels - 15.0) * np.log(6.4) / 27.0)
    found: npt.NDArray[np.float64] = np.where(mels < 15.0, mels * 200.0 / 3.0, curved)
    return found
