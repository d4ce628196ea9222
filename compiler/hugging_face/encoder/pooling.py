"""Pool the states of a text's tokens into one embedding.

In: a model's folder, in sentence-transformers' format (modules.json,
1_Pooling/config.json) or in any other format. Out: a `Pooling`, whose method `pool` is
traced with the model and leaves out padding. Without settings in the folder, the
embedding is the mean of the states of all tokens.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.hugging_face.reading.preprocessor_files import read_json
from kvc.schema.errors import BadModelFolder, UnsupportedModel, reason_of

MODULES: Final = "modules.json"
_TEXTS: Final = "config_sentence_transformers.json"
_LENGTH: Final = "sentence_bert_config.json"
_KEY: Final = "pooling_mode_"
_HIDDEN: Final = -3.0e38  # value of padding for a maximum

Pool = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How token states become an embedding.

    Attributes:
        ways: names of pooling functions in `WAYS`; the results of these functions are
            concatenated.
        normalized: whether an embedding is divided by its Euclidean norm.
        stated: whether the folder has pooling settings.
        prompts: texts that can be put before a text, by name.
        prompt: name of the default prompt, "" if there is none.
        lower: whether a text is converted to lower case.
        longest: the maximum number of tokens of a text; None: the model's own limit.
    """

    ways: tuple[str, ...] = ("mean",)
    normalized: bool = False
    stated: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    lower: bool = False
    longest: int | None = None

    def pool(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return embeddings float32 [batch, n] of states [batch, seq, hidden].

        Args:
            states: the states of all tokens.
            lengths: int64 [batch], the number of real tokens of each row.
        """
        made = [WAYS[way](states.float(), lengths) for way in self.ways]
        pooled = made[0] if len(made) == 1 else torch.cat(made, dim=1)
        return normalized(pooled) if self.normalized else pooled


MEAN: Final = Pooling()


def normalized(vectors: Tensor) -> Tensor:
    """Return vectors [batch, n] divided by their Euclidean norms."""
    squares = (vectors * vectors).sum(1, keepdim=True)
    return vectors / torch.sqrt(squares).clamp(min=1e-12)


def _padding(states: Tensor, lengths: Tensor) -> Tensor:
    """Return whether each token is padding, bool [batch, seq, 1]."""
    return (torch.arange(states.shape[1]) >= lengths[:, None])[..., None]


def _sum(states: Tensor, lengths: Tensor) -> Tensor:
    return states.masked_fill(_padding(states, lengths), 0.0).sum(1)


def _count(lengths: Tensor) -> Tensor:
    return lengths.clamp(min=1).float()[:, None]


def _last(states: Tensor, lengths: Tensor) -> Tensor:
    last = (lengths - 1).clamp(min=0)[:, None, None]
    return states.gather(1, last.expand(-1, 1, states.shape[2]))[:, 0]


# In the order in which sentence-transformers concatenates the results.
WAYS: Final[Mapping[str, Pool]] = {
    "cls": lambda states, _: states[:, 0],
    "max": lambda states, n: states.masked_fill(_padding(states, n), _HIDDEN).amax(1),
    "mean": lambda states, n: _sum(states, n) / _count(n),
    "mean_sqrt_len": lambda states, n: _sum(states, n) / torch.sqrt(_count(n)),
    "lasttoken": _last,
}
_KEYS: Final = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len", "lasttoken": "lasttoken",
}  # fmt: skip


def read_pooling(folder: Path) -> Pooling:
    """Return the pooling that a folder describes; without settings, the default one.

    Raises:
        BadModelFolder: a file of the folder is damaged.
        UnsupportedModel: the folder has a step that kvc does not compute.
    """
    if not (folder / MODULES).exists():
        return MEAN
    ways, normal = tuple[str, ...](), False
    for module in _modules(folder):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            ways = _ways(folder, f"{module.get('path', '')}/config.json")
        elif kind == "Normalize":
            normal = True
        elif kind != "Transformer":
            reason = (
                f"{MODULES} has a module {kind} after the model, and kvc computes "
                "Pooling and Normalize alone"
            )
            raise UnsupportedModel(model=str(folder), reason=reason)
    if not ways:
        raise _bad(folder, f"{MODULES} names no Pooling")
    texts, length = _read(folder, _TEXTS), _read(folder, _LENGTH)
    prompts, chosen = _prompts(folder, texts)
    longest = length.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise _bad(folder, f"{_LENGTH}: max_seq_length is {longest!r}")
    lower = length.get("do_lower_case") is True
    return Pooling(ways, normal, True, prompts, chosen, lower, longest)


def _prompts(
    folder: Path, described: Mapping[str, object]
) -> tuple[dict[str, str], str]:
    """Return name -> prompt, and the name of the default prompt.

    The name is "" if there is no default prompt.

    Raises:
        BadModelFolder: the prompts are not texts.
    """
    listed = described.get("prompts") or {}
    prompts = {
        name: text
        for name, text in (listed.items() if isinstance(listed, dict) else ())
        if isinstance(text, str)
    }
    chosen = described.get("default_prompt_name") or ""
    if prompts != listed or (chosen and chosen not in prompts):
        raise _bad(folder, f"{_TEXTS}: prompts are no texts, or the default is none")
    return prompts, str(chosen)


def _modules(folder: Path) -> Sequence[Mapping[str, object]]:
    """Return the modules that modules.json lists, as the file describes them.

    Raises:
        BadModelFolder: the file is not a list of objects.
    """
    try:
        found: object = json.loads((folder / MODULES).read_bytes())
    except OSError as error:
        raise _bad(folder, f"cannot read {MODULES}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise _bad(folder, f"{MODULES} is no JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _bad(folder, f"{MODULES} is no list of objects")
    return found


def _ways(folder: Path, name: str) -> tuple[str, ...]:
    """Return the pooling modes of a Pooling module.

    Raises:
        BadModelFolder: the file names no pooling mode.
        UnsupportedModel: a mode is unknown to kvc.
    """
    if not (folder / name).is_file():
        raise _bad(folder, f"{MODULES} names {name}, which is not there")
    described = _read(folder, name)
    asked = {
        key.removeprefix(_KEY)
        for key, value in described.items()
        if key.startswith(_KEY) and value is True
    }
    if described.get("include_prompt") is False:
        reason = f"{name} leaves the tokens of a prompt out, which kvc does not"
        raise UnsupportedModel(model=str(folder), reason=reason)
    single = described.get("pooling_mode")
    if not asked and isinstance(single, str):
        asked = {key for key, way in _KEYS.items() if way == single} or {single}
    unknown = sorted(asked - _KEYS.keys())
    if unknown:
        reason = f"{name} pools by {', '.join(unknown)}; kvc knows {', '.join(WAYS)}"
        raise UnsupportedModel(model=str(folder), reason=reason)
    if not asked:
        raise _bad(folder, f"{name} names no pooling_mode")
    return tuple(way for key, way in _KEYS.items() if key in asked)


def _read(folder: Path, name: str) -> dict[str, object]:
    """Return the content of a JSON file in a folder, {} if there is no such file.

    Raises:
        BadModelFolder: the file cannot be read, or is not a JSON object.
    """
    if not (folder / name).exists():
        return {}
    return read_json(folder, name)


def _bad(folder: Path, reason: str) -> BadModelFolder:
    return BadModelFolder(path=str(folder), reason=reason)
