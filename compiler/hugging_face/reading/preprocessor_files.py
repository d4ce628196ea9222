"""Spectrum settings of a speech model, from its preprocessor_config.json.

In: the file's content, or in newer folders a part of processor_config.json. Out: the
settings of the spectrum that the runtime computes, with the defaults of transformers;
None if the file is for other inputs, such as pictures. A caller of a bundle without
spectrum settings must compute the spectrum itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from transformers import WhisperFeatureExtractor

from kvc.compiler.checkpoints.header import parse_object
from kvc.schema.checkpoints.problems import Problems
from kvc.schema.errors import BadModelFolder, reason_of

_COUNTS: Final = {
    "rate": "sampling_rate", "bins": "feature_size", "window": "n_fft",
    "hop": "hop_length", "seconds": "chunk_length",
}  # fmt: skip
# Settings that kvc does not compute, and the values that turn them off.
_UNCHANGED: Final = {"dither": 0.0, "padding_value": 0.0, "do_normalize": False}


def spectrum_in(
    folder: Path, name: str, described: Mapping[str, object]
) -> dict[str, int] | None:
    """Return the spectrum settings in a file, None if the file has no such settings.

    `described` is the content of the file, and `name` is the file's name.

    Raises:
        BadModelFolder: a setting requires a step that kvc does not compute.
    """
    nested = described.get("feature_extractor")
    found = nested if isinstance(nested, Mapping) else described
    if found.get("feature_extractor_type") != WhisperFeatureExtractor.__name__:
        return None
    for setting, value in _UNCHANGED.items():
        if found.get(setting) not in (None, value):
            reason = f"{name}: {setting} is {found[setting]!r}, and kvc has {value!r}"
            raise BadModelFolder(path=str(folder), reason=reason)
    usual = WhisperFeatureExtractor()  # type: ignore[no-untyped-call]
    counts = {
        ours: found.get(key, getattr(usual, key)) for ours, key in _COUNTS.items()
    }
    checked = dict[str, int]()
    for ours, count in counts.items():
        if not isinstance(count, int) or not 0 < count < 1 << 20 or count is True:
            reason = f"{name}: {_COUNTS[ours]} is {count!r}, no whole number above 0"
            raise BadModelFolder(path=str(folder), reason=reason)
        checked[ours] = count
    return checked


# Read the JSON files of a model's folder.


def read_json(folder: Path, name: str) -> dict[str, object]:
    """Return the content of a JSON file in a folder.

    Raises:
        BadModelFolder: the file cannot be read, or is not a JSON object.
    """
    try:
        return parse_object((folder / name).read_bytes())
    except OSError as error:
        reason = f"cannot read {name}: {reason_of(error)}"
    except Problems as error:
        reason = f"{name}: {'; '.join(error.reasons)}"
    raise BadModelFolder(path=str(folder), reason=reason)
