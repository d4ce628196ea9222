"""Name a module by the architecture that it is from."""

from torch import nn


def name_of(module: nn.Module) -> str:
    """Return where a class is from: `gptj.GPTJAttention`, "" for any other package."""
    package, _, family = type(module).__module__.partition(".models.")
    if package != "transformers":
        return ""
    return f"{family.partition('.')[0]}.{type(module).__name__}"
