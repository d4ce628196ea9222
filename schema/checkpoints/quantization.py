"""Methods of quantization that config.json names, and those that kvc reads."""

from collections.abc import Mapping
from typing import Final

from kvc.schema.errors import UnsupportedModel

# `quant_method` of quantization_config; "mlx" for MLX, which has `quantization`.
METHODS: Final = (
    "awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "mlx", "mxfp4",
)  # fmt: skip


def method_of(config: Mapping[str, object]) -> str | None:
    """Return the method of quantization that config.json names; None without one."""
    found = _settings(config, "quantization_config")
    if found.get("quant_method"):
        return str(found["quant_method"])
    if _settings(config, "quantization"):
        return "mlx"
    return "unnamed" if found else None


def settings_of(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings of the method that config.json names; {} without one."""
    key = "quantization" if method_of(config) == "mlx" else "quantization_config"
    return _settings(config, key)


def _settings(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return settings of the model, or of the part of it that reads texts."""
    for place in (config, config.get("text_config")):
        found = place.get(key) if isinstance(place, Mapping) else None
        if isinstance(found, Mapping) and found:
            return found
    return {}


def check_method(config: Mapping[str, object], model: str) -> None:
    """Check that the weights of a model are plain, or quantized in a known way.

    Args:
        config: the content of config.json.
        model: the model's name, for the error.

    Raises:
        UnsupportedModel: the method of quantization is unknown.
    """
    method = method_of(config)
    if method is not None and method not in METHODS:
        reason = (
            f"its weights are quantized by {method!r}, and kvc reads "
            f"{', '.join(METHODS)} and GGUF; use one of these, or the model with plain "
            "weights"
        )
        raise UnsupportedModel(model=model, reason=reason)
