"""Transcribe a sound to text: `transcribe`.

wav --read_wave--> samples --Spectrum.log_mel--> features --encode, generate-->
tokens of each window --segments--> text with times
"""

from kvc.runtime.speech.spectrum import Spectrum, spectrum_of
from kvc.runtime.speech.transcribing import Segment, Transcription, transcribe
from kvc.runtime.speech.waves import read_wave

__all__ = [
    "Segment",
    "Spectrum",
    "Transcription",
    "read_wave",
    "spectrum_of",
    "transcribe",
]
