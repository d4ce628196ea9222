"""Read adapter_config.json of an adapter in PEFT's format.

In: the folder of an adapter. Out: the settings that its results depend on; settings
that kvc does not compute are refused by name.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from kvc.schema.errors import BadAdapter, listing, reason_of

Number = TypeVar("Number", int, float)
CONFIG: Final = "adapter_config.json"
# Settings that change what an adapter computes and that kvc does not have.
_OTHERS: Final = (
    "alora_invocation_tokens", "layer_replication", "target_parameters", "use_qalora",
    "use_bdlora", "arrow_config", "trainable_token_indices", "megatron_config",
    "kasa_config", "monteclora_config",
)  # fmt: skip
# Beginnings of `init_lora_weights` with which PEFT changes the weights of the model
# too, so that the adapter is none of the model's own weights.
_CHANGING: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a LoRA adapter.

    Attributes:
        folder: the folder of the adapter.
        stabilised: whether scales are alpha / sqrt(r) rather than alpha / r.
        transposed: whether the matrices of the model are [in, out].
    """

    folder: str
    stabilised: bool
    transposed: bool
    _rank: int
    _alpha: float
    _ranks: Mapping[str, int]
    _alphas: Mapping[str, float]

    def rank(self, path: str) -> int:
        """Return the rank of a layer's matrices."""
        return _matching(self._ranks, path, self._rank)

    def scale(self, path: str) -> float:
        """Return what multiplies the products of a layer's matrices."""
        rank, alpha = self.rank(path), _matching(self._alphas, path, self._alpha)
        return float(alpha) / (rank**0.5 if self.stabilised else rank)


def read_config(folder: str) -> Config:
    """Return the settings of an adapter.

    Raises:
        BadAdapter: there are none, or they are of an adapter that kvc does not compute.
    """
    found = _read_object(folder)
    _check_kind(folder, found)
    ranks, alphas = found.get("rank_pattern") or {}, found.get("alpha_pattern") or {}
    rank, alpha = found.get("r"), found.get("lora_alpha")
    right = all(map(_is_rank, (rank, *_values(ranks))))
    if not (right and all(map(_is_alpha, (alpha, *_values(alphas))))):
        raise bad(folder, f"{CONFIG} has wrong ranks or alphas")
    assert isinstance(rank, int)
    assert isinstance(alpha, int | float)
    assert isinstance(ranks, dict)
    assert isinstance(alphas, dict)
    return Config(
        folder=folder,
        stabilised=bool(found.get("use_rslora")),
        transposed=bool(found.get("fan_in_fan_out")),
        _rank=rank,
        _alpha=float(alpha),
        _ranks=ranks,
        _alphas=alphas,
    )


def bad(folder: str, reason: str) -> BadAdapter:
    """Return the error that says why an adapter is refused."""
    return BadAdapter(path=folder, reason=reason)


def _read_object(folder: str) -> dict[str, object]:
    try:
        found = json.loads((Path(folder) / CONFIG).read_text("utf-8"))
    except OSError as error:
        raise bad(folder, f"{CONFIG}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise bad(folder, f"{CONFIG} is not JSON, or nested too deep") from error
    if not isinstance(found, dict):
        raise bad(folder, f"{CONFIG} is not a JSON object")
    return found


def _check_kind(folder: str, found: Mapping[str, object]) -> None:
    """Check that an adapter is one that kvc computes."""
    kind = found.get("peft_type")
    if kind != "LORA":
        raise bad(folder, f"it is an adapter of type {kind!r}, kvc has LORA and DoRA")
    others = [name for name in _OTHERS if found.get(name)]
    if others:
        raise bad(folder, f"kvc does not compute its {listing(others)}")
    init = found.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGING):
        reason = (
            f"it is for changed weights of the model (init_lora_weights {init!r}); "
            "convert it with PEFT's save_pretrained(..., "
            "path_initial_model_for_weight_conversion=...)"
        )
        raise bad(folder, reason)


def _is_rank(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_alpha(value: object) -> bool:
    """Tell whether JSON is a finite positive number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return value > 0 and math.isfinite(value)
    except OverflowError:  # of an integer beyond float64
        return False


def _values(pattern: object) -> tuple[object, ...]:
    return tuple(pattern.values()) if isinstance(pattern, dict) else (None,)


def _matching(patterns: Mapping[str, Number], path: str, usual: Number) -> Number:
    """Return the value of the first pattern that matches the end of a path, as PEFT."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except (re.error, RecursionError, OverflowError):
            continue
    return usual
