"""Name modules by the architectures that they are from, and find their code."""

import sys
from types import ModuleType

from torch import nn


def name_of(module: nn.Module) -> str:
    """Return where a class is from: `gptj.GPTJAttention`, "" for any other package."""
    package, _, family = type(module).__module__.partition(".models.")
    if package != "transformers":
        return ""
    return f"{family.partition('.')[0]}.{type(module).__name__}"


def code_of(model: nn.Module) -> list[ModuleType]:
    """Return the modules of Python that the parts of a model are from.

    A part may be of another architecture (LFM2-VL has the text model of LFM2).
    """
    names = dict.fromkeys(type(part).__module__ for part in model.modules())
    return [sys.modules[name] for name in names]
