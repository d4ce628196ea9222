"""Generation: prompts in, tokens or text out, on a session."""

from kvc.runtime.generation.answer import Reason
from kvc.runtime.generation.batch import BatchGeneration
from kvc.runtime.generation.feeding import Pace
from kvc.runtime.generation.generation import Generation
from kvc.runtime.generation.ignored import SettingIgnored
from kvc.runtime.generation.padding import right_padded
from kvc.runtime.generation.settings import Arguments, GenerationSettings
from kvc.runtime.generation.start import generate, settings_of

__all__ = [
    "Arguments",
    "BatchGeneration",
    "Generation",
    "GenerationSettings",
    "Pace",
    "Reason",
    "SettingIgnored",
    "generate",
    "right_padded",
    "settings_of",
]
