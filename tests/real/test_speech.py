"""Whisper: what is said by a voice of espeak-ng is written down."""

from difflib import SequenceMatcher

import numpy as np
import pytest
import torch
from spoken_sentences import SENTENCES, words
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from kvc.runtime import load
from kvc.runtime.speech import transcribe


@pytest.fixture(scope="module")
def sounds(say):
    return [say(sentence) for sentence in SENTENCES]


def heard(bundle, recipe, sounds):
    with load(bundle("whisper", recipe)) as program, program.session() as session:
        return [transcribe(session, sound).text for sound in sounds]


def test_by_float32_it_writes_what_transformers_does(bundle, folder, sounds):
    model = WhisperForConditionalGeneration.from_pretrained(folder("whisper")).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(folder("whisper"))
    tokenizer = Tokenizer.from_file(str(folder("whisper") / "tokenizer.json"))
    found = heard(bundle, "cpu_fp32", sounds)
    for sound, text in zip(sounds, found, strict=True):
        given = extractor(sound, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(given.input_features, num_beams=1)[0].tolist()
        assert words(text) == words(tokenizer.decode(tokens))
    # The voice is a machine's: most words are right, not all.
    pairs = zip(SENTENCES, found, strict=True)
    alike = [SequenceMatcher(None, words(s), words(t)).ratio() for s, t in pairs]
    assert np.mean(alike) > 0.75
