"""Generation: from prompts to tokens or text, on a session."""

from kvc.runtime.generation.answer import EndReason
from kvc.runtime.generation.feeding import Pace
from kvc.runtime.generation.generation import BatchGeneration, Generation
from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.generation.prompts import right_padded
from kvc.runtime.generation.session_rows import check_session
from kvc.runtime.generation.settings import (
    Arguments,
    GenerationSettings,
    SettingIgnored,
    settings_of,
)
from kvc.runtime.generation.start import BegunTwice, generate

__all__ = [
    "Arguments",
    "BatchGeneration",
    "BegunTwice",
    "EndReason",
    "Generation",
    "GenerationSettings",
    "Pace",
    "SettingIgnored",
    "TokenLogprob",
    "check_session",
    "generate",
    "right_padded",
    "settings_of",
]
