"""Generation: a prompt in, tokens or text out, on a session."""

from kvc.runtime.generation.feeding import Pace
from kvc.runtime.generation.generation import Generation, Reason
from kvc.runtime.generation.ignored import SettingIgnored
from kvc.runtime.generation.settings import Arguments, GenerationSettings
from kvc.runtime.generation.start import generate, settings_of

__all__ = [
    "Arguments",
    "Generation",
    "GenerationSettings",
    "Pace",
    "Reason",
    "SettingIgnored",
    "generate",
    "settings_of",
]
