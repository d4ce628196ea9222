"""Settings that convert a picture to pixels, from a folder's preprocessor_config.json.

In: a folder. Out: settings for the runtime, with the defaults of transformers'
processor; None if the folder has no processor of pictures. A processor with steps that
the runtime does not have is refused, since kvc would make other pixels.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from transformers import PreTrainedConfig, PreTrainedModel

from kvc.compiler.hugging_face.reading.model_lines import words_of
from kvc.schema.errors import BadModelFolder, MissingPackage, UnsupportedModel
from kvc.schema.pictures import MOST_LONGEST, MOST_PATCH, MOST_PIXELS

_FILES: Final = ("preprocessor_config.json", "processor_config.json")
# The remedy for a generating model that reads pictures as kvc does not.
OTHERWISE: Final = (
    "; for its text alone, compile it without pictures (--no-pictures, pictures=False)"
)
# Steps of `PilBackend` that the runtime repeats; a class that overrides one differs.
_STEPS: Final = (
    "_preprocess", "resize", "rescale", "normalize", "center_crop", "process_image",
)  # fmt: skip
# Processors with the same steps, apart from an optional cropping into pieces.
_PANNING: Final = frozenset({"Gemma3ImageProcessorPil"})
# Processors that make patches of a picture of any size, as the runtime does.
_OF_PATCHES: Final = frozenset({"Qwen2VLImageProcessorPil"})
# Processors that pad a picture to a square, as the runtime does.
_SQUARING: Final = frozenset({"DeepseekVLImageProcessorPil", "JanusImageProcessorPil"})
# Processors that split a picture into parts, as the runtime does.
_SPLITTING: Final = frozenset({"Idefics3ImageProcessorPil", "SmolVLMImageProcessorPil"})
SQUARE: Final = "square"  # key of settings for pictures padded to a square
PATCHES: Final = "patches"  # key of settings for pictures of variable size
_MOST_SIDE: Final = 1 << 14
_MOST_NUMBER: Final = 1e30


def takes_pictures(model: PreTrainedModel) -> bool:
    """Tell whether a model, or one of its towers, takes pictures."""
    return "image" in (model.input_modalities or ())


def check_pillow() -> None:
    """Check that Pillow is installed, which transformers' picture processors need.

    Raises:
        MissingPackage: Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401  only whether it is installed
    except ImportError as error:
        what, install = "a folder of a model of pictures", "pip install 'pillow>=11'"
        raise MissingPackage(
            what=what, package="Pillow", reason=str(error), install=install
        ) from error


def read_pictures(folder: Path) -> dict[str, object] | None:
    """Return the settings that convert pictures to pixels, None if a folder has none.

    Raises:
        BadModelFolder: a file of the folder is wrong.
        UnsupportedModel: kvc makes pixels in another way.
        MissingPackage: Pillow is not installed.
    """
    if not any((folder / name).exists() for name in _FILES):
        return None
    check_pillow()
    from transformers import AutoImageProcessor
    from transformers.image_processing_backends import PilBackend

    try:
        processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:
        reason = f"{_FILES[0]}: {words_of(error)}"
        raise BadModelFolder(path=str(folder), reason=reason) from error
    kind, found = type(processor), processor.to_dict()
    if kind.__name__ in _SPLITTING:
        return _in_parts(folder, found)
    if kind.__name__ in _OF_PATCHES:
        return _in_patches(folder, found)
    if kind.__name__ in _SQUARING:
        return _in_square(folder, found)
    if kind.__name__ in _PANNING:
        return _without_panning(folder, found)
    own = [s for s in _STEPS if getattr(kind, s, None) is not getattr(PilBackend, s)]
    if own or found.get("do_pad"):
        reason = f"its {kind.__name__} prepares pictures in steps of its own: "
        steps = ", ".join(own) or "do_pad"
        raise UnsupportedModel(model=str(folder), reason=reason + steps)
    settings = _settings(folder, found)
    _check_settings(folder, settings)
    return settings


def _without_panning(folder: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a processor that can crop pictures but does not.

    Raises:
        BadModelFolder: the settings are impossible.
        UnsupportedModel: the processor crops pictures.
    """
    if found.get("do_pan_and_scan"):
        reason = (
            "its processor cuts pieces out of a wide or tall picture "
            "(do_pan_and_scan), of which kvc makes none; without them, set it to false "
            f"in {_FILES[0]}"
        )
        raise UnsupportedModel(model=str(folder), reason=reason)
    settings = _settings(folder, {**found, "do_center_crop": False})
    _check_settings(folder, settings)
    return settings


def _check_settings(folder: Path, settings: Mapping[str, object]) -> None:
    """Check that settings are possible.

    Raises:
        BadModelFolder: a setting is impossible.
    """
    wrong = [name for name, fits in _RULES.items() if not fits(settings[name])]
    if wrong:
        told = ", ".join(f"{name} {settings[name]!r:.40}" for name in wrong)
        reason = f"{_FILES[0]}: no pictures can be made with {told}"
        raise BadModelFolder(path=str(folder), reason=reason)


def _in_square(folder: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return settings of a processor that pads a picture to a square.

    Raises:
        BadModelFolder: the settings are impossible.
        UnsupportedModel: the processor does not resize or does not pad.
    """
    if not found.get("do_resize") or not found.get("do_pad"):
        reason = "its pictures are not resized and padded to a square"
        raise UnsupportedModel(model=str(folder), reason=reason)
    size, least = _sides(found.get("size")), found.get("min_size")
    side = size.get("height")
    fits = _is_side(side) and _is_side(least) and cast(int, least) <= cast(int, side)
    if side != size.get("width") or not fits:
        reason = f"{_FILES[0]}: no square can be made with {size}, {least!r:.40}"
        raise BadModelFolder(path=str(folder), reason=reason)
    settings = _settings(folder, {**found, "do_resize": False, "do_center_crop": False})
    _check_settings(folder, settings)
    colour = _colour(found.get("image_mean"))
    return {**settings, SQUARE: {"side": side, "least": least, "colour": colour}}


def _colour(mean: object) -> list[int]:
    """Return the color of padding: the mean of training pictures, or gray."""
    means = mean if isinstance(mean, list | tuple) else None
    if means is None or len(means) != 3 or not all(0 <= one <= 1 for one in means):
        return [127] * 3
    return [int(one * 255) for one in means]


def _in_parts(folder: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return settings of a processor that splits a picture into parts of one size.

    Raises:
        BadModelFolder: the settings are impossible.
        UnsupportedModel: the number of parts is unlimited.
    """
    size, part = _sides(found.get("size")), _sides(found.get("max_image_size"))
    resizes, splits = (
        bool(found.get("do_resize")),
        bool(found.get("do_image_splitting")),
    )
    if (resizes and size.keys() != {"longest_edge"}) or (splits and not resizes):
        reason = (
            f"its pictures are resized to {size if resizes else 'nothing'}, not to one "
            "longer side, and split into parts"
        )
        raise UnsupportedModel(model=str(folder), reason=reason)
    longest, side = size.get("longest_edge"), part.get("longest_edge")
    settings = _settings(folder, {**found, "do_resize": False, "do_center_crop": False})
    _check_settings(folder, settings)
    fits = not resizes or (_is_side(longest) and cast(int, longest) <= MOST_LONGEST)
    if not fits or not _is_side(side):
        reason = f"{_FILES[0]}: no parts can be made with {longest!r:.40}, {side!r:.40}"
        raise BadModelFolder(path=str(folder), reason=reason)
    parts = {"longest": longest if resizes else None, "side": side, "splits": splits}
    return {**settings, "parts": parts}


def _in_patches(folder: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return settings of a processor that makes patches of a picture of any size.

    Raises:
        BadModelFolder: the settings are impossible.
        UnsupportedModel: the processor does not resize pictures.
    """
    if not found.get("do_resize"):
        reason = "its pictures are not resized to whole groups of patches"
        raise UnsupportedModel(model=str(folder), reason=reason)
    size = _sides(found.get("size"))
    names = {
        "side": "patch_size",
        "merge": "merge_size",
        "frames": "temporal_patch_size",
    }
    patches = {ours: found.get(theirs) for ours, theirs in names.items()}
    least, most = size.get("shortest_edge"), size.get("longest_edge")
    fits = all(_is_side(n) and cast(int, n) <= MOST_PATCH for n in patches.values())
    pixels = type(least) is int and type(most) is int and 0 < least <= most
    if not fits or not pixels or cast(int, most) > MOST_PIXELS:
        reason = f"{_FILES[0]}: no patches can be made with {size}, {patches}"
        raise BadModelFolder(path=str(folder), reason=reason)
    settings = _settings(folder, {**found, "do_resize": False, "do_center_crop": False})
    _check_settings(folder, settings)
    return {**settings, PATCHES: {"least": least, "most": most, **patches}}


def _is_side(side: object) -> bool:
    return type(side) is int and 0 < side < _MOST_SIDE


def _is_pair(sides: object) -> bool:
    return sides is None or (isinstance(sides, list) and all(map(_is_side, sides)))


def _is_number(number: object) -> bool:
    plain = isinstance(number, int | float) and not isinstance(number, bool)
    return plain and abs(cast("float", number)) < _MOST_NUMBER


def _are_numbers(numbers: object) -> bool:
    listed = isinstance(numbers, list) and len(numbers) == 3
    return numbers is None or (
        listed and all(map(_is_number, cast("list[object]", numbers)))
    )


def _are_divisors(numbers: object) -> bool:
    zero = isinstance(numbers, list) and 0 in numbers
    return _are_numbers(numbers) and not zero


# Checks of the runtime's settings; None is a step that is left out.
_RULES: Final[Mapping[str, Callable[[object], bool]]] = {
    "size": _is_pair,
    "shortest": lambda side: side is None or _is_side(side),
    "resampling": lambda number: type(number) is int and 0 <= number < 6,
    "crop": _is_pair,
    "factor": _is_number,
    "mean": _are_numbers,
    "deviation": _are_divisors,
}


def _settings(folder: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a processor that resizes to a size or a shorter side.

    Raises:
        UnsupportedModel: the processor resizes in another way, unknown to kvc.
    """
    size, crop = _sides(found.get("size")), _sides(found.get("crop_size"))
    resizes, normalizes = found.get("do_resize"), found.get("do_normalize")
    square = size.keys() == {"height", "width"}
    if resizes and not square and size.keys() != {"shortest_edge"}:
        reason = f"its pictures are resized to {size}, not to one size or shorter side"
        raise UnsupportedModel(model=str(folder), reason=reason)
    return {
        "size": [size["height"], size["width"]] if resizes and square else None,
        "shortest": size["shortest_edge"] if resizes and not square else None,
        "resampling": _number(found.get("resample")),
        "crop": [crop.get("height"), crop.get("width")]
        if found.get("do_center_crop")
        else None,
        "factor": found.get("rescale_factor") if found.get("do_rescale") else 1.0,
        "mean": _channels(found.get("image_mean")) if normalizes else None,
        "deviation": _channels(found.get("image_std")) if normalizes else None,
    }


def _number(resampling: object) -> object:
    """Return the number that Pillow has for a resampling filter.

    `resampling` is such a number, a member of an enum, or something else, which is
    returned unchanged.
    """
    return int(resampling) if isinstance(resampling, int) else resampling


def _sides(found: object) -> Mapping[str, object]:
    """Return name -> size, for the sizes in a setting that are not None."""
    sides = found if isinstance(found, Mapping) else {}
    return {name: side for name, side in sides.items() if side is not None}


def size_of(settings: Mapping[str, object] | None) -> tuple[int, int] | None:
    """Return the height and width that settings give to all pictures.

    The result is None if pictures have different sizes.
    """
    for name in ("crop", "size", "parts", SQUARE):
        match (settings or {}).get(name):
            case [int(height), int(width)]:
                return height, width
            case {"side": int(side)}:
                return side, side
    return None


def most_groups(settings: Mapping[str, object] | None) -> int | None:
    """Return the maximum number of a picture's groups of patches, None if unknown.

    The maximum is known for pictures of variable size.
    """
    match (settings or {}).get(PATCHES):
        case {"most": int(most), "side": int(side), "merge": int(merge)}:
            return max(1, most // (side * merge) ** 2)
    return None


def patches_of(settings: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return the sizes of a picture's patches, None if they are unknown.

    The sizes are the number of pixels along a patch's side, the number of patches along
    the side of a group, and the number of repetitions of the picture in a patch.
    """
    match (settings or {}).get(PATCHES):
        case {"side": side, "merge": merge, "frames": frames}:
            return {"side": side, "merge": merge, "frames": frames}
    return None


def configured_size(config: PreTrainedConfig) -> tuple[int, int] | None:
    """Return the height and width of pictures that a configuration gives, or None."""
    asked = getattr(getattr(config, "vision_config", config), "image_size", None)
    match [asked, asked] if isinstance(asked, int) else list(asked or ()):
        case [int(height), int(width)]:
            return height, width
    return None


def _channels(found: object) -> list[object]:
    """Return a setting as a list of three numbers, one for each channel."""
    return [*found] if isinstance(found, list | tuple) else [found] * 3
