"""Sounds to calibrate with are checked when they are read, before any work."""

import io
import wave
from pathlib import Path

import pytest
from hand_built import write_bundle
from stateful_programs import linear_program

from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.runtime.calibration.samples import run_sound
from kvc.schema.errors import BadSamples


def sound(count: int) -> bytes:
    raw = io.BytesIO()
    with wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * count))
    return raw.getvalue()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"no sound", "not a plain wav file"),
        (sound(100)[:20], r"not a plain wav file \(it ends too early\)"),
        (sound(100)[:-3], "the sound is cut off"),
        (sound(0), "the sound is empty"),
        (b"", "the file is empty"),
    ],
)
def test_what_is_no_whole_sound_is_refused_at_once(tmp_path: Path, raw, reason):
    path = tmp_path / "x.wav"
    path.write_bytes(raw)
    with pytest.raises(BadSamples, match=reason):
        Samples(path)


def test_a_whole_sound_is_taken_whatever_its_rate_is(tmp_path: Path):
    path = tmp_path / "x.WAV"
    path.write_bytes(sound(100))
    Samples(path)


def test_a_model_that_writes_down_no_sound_says_so(tmp_path: Path):
    path = tmp_path / "x.wav"
    path.write_bytes(sound(100))
    bundle = write_bundle(tmp_path / "l.kvc", linear_program())
    reason = r"transcribes no sound \(.*preprocessor_config.json.*\); give a text"
    with load(bundle) as program, pytest.raises(BadSamples, match=reason):
        run_sound(str(path), program)
