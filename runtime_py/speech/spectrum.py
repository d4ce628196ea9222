"""`Spectrum`: the log-mel spectrogram of a sound, as Whisper's.

In: samples, settings of a model's preprocessor_config.json. Out: features equal to
those of transformers' `WhisperFeatureExtractor`. The steps: a Fourier transform of
overlapping windows; the power in frequency bands, which are spaced by Slaney's mel
scale; the logarithm, raised to at least the maximum minus 8.
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

KEY: Final = "spectrum"  # the metadata key of the settings
_HIGHEST: Final = 8000.0  # the highest frequency in hertz
_STRAIGHT: Final = 1000.0  # hertz up to which Slaney's scale is linear
_FRAMES: Final = 3000  # the frames of one Fourier transform


@frozen
class Spectrum:
    """The settings of the log-mel features.

    Attributes:
        rate: samples per second.
        bins: the number of frequency bands.
        window: the number of samples of one Fourier transform.
        hop: the number of samples from the start of a frame to the start of the next.
        seconds: the length of the model's input window.
    """

    rate: int
    bins: int
    window: int
    hop: int
    seconds: int

    @property
    def frames(self) -> int:
        """Return the number of frames in the model's input window."""
        return self.seconds * self.rate // self.hop

    def log_mel(self, samples: Floats) -> Floats:
        """Return features float32 [bins, frames] of samples float32 [n].

        A sound shorter than the model's input window is padded with silence.
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
        """Yield the power of each frequency, a chunk of frames at a time.

        A chunk is float64 [frames, window / 2 + 1].
        """
        views = np.lib.stride_tricks.sliding_window_view(sound, self.window)
        frames = views[:: self.hop][:-1]  # transformers drops the last one
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        for first in range(0, len(frames), _FRAMES):
            yield np.abs(np.fft.rfft(frames[first : first + _FRAMES] * hann)) ** 2

    def _bands(self) -> npt.NDArray[np.float64]:
        """Return the weight of each frequency in each band, [window / 2 + 1, bins].

        Bands are triangles of equal area, whose corners are equally spaced on Slaney's
        scale (Auditory Toolbox, 1998).
        """
        pitches = np.linspace(0, self.rate // 2, self.window // 2 + 1)
        # From Slaney's scale to hertz.
        mels = np.linspace(0, _mel(_HIGHEST), self.bins + 2)
        curved = _STRAIGHT * np.exp((mels - 15.0) * np.log(6.4) / 27.0)
        corners: npt.NDArray[np.float64] = np.where(
            mels < 15.0, mels * 200.0 / 3.0, curved
        )
        widths = np.diff(corners)
        distances = corners[None, :] - pitches[:, None]
        rising, falling = (
            -distances[:, :-2] / widths[:-1],
            distances[:, 2:] / widths[1:],
        )
        triangles = np.maximum(0, np.minimum(rising, falling))
        bands: npt.NDArray[np.float64] = triangles * (2 / (corners[2:] - corners[:-2]))
        return bands


def spectrum_of(metadata: Mapping[str, str]) -> Spectrum:
    """Return the spectrum settings of a bundle.

    Raises:
        BadSetting: the settings are missing or invalid.
    """
    text = metadata.get(KEY)
    if text is None:
        expected = "a speech model, compiled with its preprocessor_config.json"
        other = "one without spectrum settings"
        raise BadSetting(name="the bundle", expected=expected, found=other)
    try:
        found: object = json.loads(text)
        return Spectrum(**{n: _number(found, n) for n in Spectrum.__annotations__})
    except (ValueError, RecursionError) as error:
        name, expected = f"the bundle's {KEY}", "whole numbers above 0"
        raise BadSetting(name=name, expected=expected, found=repr(text)) from error


def _number(settings: object, name: str) -> int:
    """Return a positive integer setting.

    Raises:
        ValueError: the setting is missing or invalid.
    """
    found = settings.get(name) if isinstance(settings, dict) else None
    if type(found) is not int or not 0 < found < 1 << 20:
        raise ValueError(name)
    return found


def _mel(hertz: float) -> float:
    """Return a frequency of 1000 hertz or more on Slaney's scale."""
    return 15.0 + math.log(hertz / _STRAIGHT) * 27.0 / math.log(6.4)
