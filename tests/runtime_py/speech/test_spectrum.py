"""Features are those of transformers' feature extractor."""

import json

import numpy as np
import pytest
from spoken_sounds import RATE, sound
from transformers import WhisperFeatureExtractor

from kvc.runtime.speech import Spectrum, spectrum_of
from kvc.schema.errors import BadSetting

WHISPER = Spectrum(RATE, 80, 400, 160, 30)


def expected(samples: np.ndarray, extractor: WhisperFeatureExtractor) -> np.ndarray:
    is_long = len(samples) > extractor.n_samples
    whole = {"truncation": False, "padding": "longest"} if is_long else {}
    made = extractor(samples, sampling_rate=RATE, return_tensors="np", **whole)
    return made.input_features[0]


@pytest.mark.parametrize("seconds", [0.01, 1.7, 30.0, 41.3])
def test_features_are_those_of_transformers(seconds):
    samples = sound(seconds)
    wanted = expected(samples, WhisperFeatureExtractor())
    found = WHISPER.log_mel(samples)
    assert found.shape == wanted.shape == (80, max(3000, int(seconds * 100)))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_other_sizes_are_those_of_the_settings():
    other = Spectrum(RATE, 24, 512, 200, 5)
    extractor = WhisperFeatureExtractor(
        feature_size=24, n_fft=512, hop_length=200, chunk_length=5
    )
    samples = sound(2.0)
    found = other.log_mel(samples)
    assert found.shape == (24, other.frames) == (24, 400)
    np.testing.assert_allclose(found, expected(samples, extractor), atol=1e-4)


def test_silence_has_features_too():
    found = WHISPER.log_mel(np.zeros(1600, np.float32))
    wanted = expected(np.zeros(1600, np.float32), WhisperFeatureExtractor())
    np.testing.assert_array_equal(found, wanted)


def test_a_bundle_says_how_its_model_hears():
    names = {"rate": RATE, "bins": 80, "window": 400, "hop": 160, "seconds": 30}
    assert spectrum_of({"spectrum": json.dumps(names)}) == WHISPER
    with pytest.raises(BadSetting, match="expected a speech model"):
        spectrum_of({})
    wrong = ["[]", "{", "{}", *(json.dumps(names | {n: 0}) for n in names)]
    for text in (*wrong, json.dumps(names | {"bins": "80"})):
        with pytest.raises(
            BadSetting, match="spectrum: expected whole numbers above 0"
        ):
            spectrum_of({"spectrum": text})
