"""Find what a path stands for: a bundle, an export, a model to compile.

In: a path, or a name on the Hub. Out: an `ExportedModel` of one bundle with a cache.
"""

import json
from collections.abc import Mapping
from inspect import signature
from pathlib import Path as File
from typing import Any, Final

from huggingface_hub import snapshot_download
from transformers import AutoConfig, GenerationConfig
from transformers.exporters.auto import get_runner_class
from transformers.exporters.base import ExportedComponent, ExportedModel
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from kvc.runtime import Program, load
from kvc.schema.errors import BadModelFolder, BadModelSetting, listing, meant
from kvc.transformers.config import FORMAT, KvcConfig
from kvc.transformers.description import (
    KvcModelConfig,
    Path,
    as_it_is,
    config_of,
    generation_of,
    metadata_of,
)
from kvc.transformers.exporter import COMPONENT, KvcExporter, component_of, with_cache
from kvc.transformers.interface import interface_of

__all__ = ["KvcModelConfig", "Path", "exported_of", "opened"]

_MANIFEST: Final = "export.json"
_HUB: Final = (
    "cache_dir", "force_download", "local_files_only", "token", "revision",
    "subfolder", "trust_remote_code",
)  # fmt: skip
_OF_A_MODEL: Final = ("*.json", "*.safetensors", "*.jinja", "*.kvc", "*.model", "*.txt")


def opened(source: Path, recipe: object, options: Mapping[str, Any]) -> ExportedModel:
    """Open what a path stands for.

    Args:
        source: a bundle, a folder, or a name on the Hub.
        recipe: the recipe to compile a model by, or a `KvcConfig`; None for the usual.
        options: options of the runner and of a download.

    Raises:
        BadModelFolder: there is no model, or a damaged export.
        BadModelSetting: a recipe is given for what is compiled already.
        CompileError: as `export_hf`.
        LoadError, FormatError: as `kvc.runtime.load`.
    """
    runner = {name: one for name, one in options.items() if name not in _HUB}
    _check_options(runner)
    path = File(source)
    if not path.exists():
        path = _downloaded(source, options)
    if path.is_file():
        _check_compiled(path, recipe)
        return _with_runner(exported_of(load(path)), runner)
    bundles = sorted(path.glob(f"*{KvcExporter.program_suffix}"))
    if (path / _MANIFEST).exists():
        _check_compiled(path, recipe)
        _check_manifest(path)
        hub = {name: one for name, one in options.items() if name in _HUB}
        made = ExportedModel.from_pretrained(path, **hub, **runner)
        if made.generation_config is not None:
            made.generation_config = as_it_is(made.generation_config)
        return made
    if len(bundles) == 1:
        _check_compiled(path, recipe)
        return _with_runner(exported_of(load(bundles[0]), path), runner)
    if bundles or not (path / CONFIG_NAME).exists():
        found = f"{len(bundles)} bundles" if bundles else "neither of these"
        reason = f"expected one bundle, {_MANIFEST} or {CONFIG_NAME}, found {found}"
        raise BadModelFolder(path=str(path), reason=reason)
    return _with_runner(_compiled(path, recipe), runner)


def exported_of(program: Program, folder: File | None = None) -> ExportedModel:
    """Return a loaded bundle as an export.

    Args:
        program: the bundle.
        folder: a folder that may have a configuration beside the bundle.

    Raises:
        UnknownName: the bundle does not generate text.
    """
    methods, metadata = program.methods.values(), program.metadata
    component = ExportedComponent(program, metadata_of(interface_of(methods, metadata)))
    config, generation = config_of(methods, metadata), generation_of(metadata)
    if folder is not None and (folder / CONFIG_NAME).exists():
        config = AutoConfig.from_pretrained(folder)
    if folder is not None and (folder / GENERATION_CONFIG_NAME).exists():
        generation = as_it_is(GenerationConfig.from_pretrained(folder))
    return ExportedModel({COMPONENT: component}, FORMAT, config, generation)


def _compiled(folder: File, recipe: object) -> ExportedModel:
    """Compile the model in a folder.

    Raises:
        CompileError: as `export_hf`.
    """
    if isinstance(recipe, KvcConfig):
        config = recipe
    else:
        config = KvcConfig() if recipe is None else KvcConfig(recipe=recipe)  # type: ignore[arg-type]  # checked by the class
    bundle = with_cache(folder, config)
    return ExportedModel(
        {COMPONENT: component_of(bundle, config)},
        FORMAT,
        config=AutoConfig.from_pretrained(folder),
        generation_config=generation_of(bundle.program.metadata),
    )


def _with_runner(exported: ExportedModel, options: Mapping[str, Any]) -> ExportedModel:
    made: ExportedModel = exported.to(**options)
    return made


def _check_options(options: Mapping[str, object]) -> None:
    """Check that the runner takes options.

    Raises:
        TypeError: it does not take one.
    """
    known = signature(get_runner_class(FORMAT).from_program).parameters
    taken = [name for name in known if name not in ("program", "metadata")]
    for name in options:
        if name not in taken:
            raise TypeError(
                f"from_pretrained() got an unexpected keyword argument {name!r}"
                f"{meant(name, taken)}; the runner takes {listing(taken)}"
            )


def _downloaded(source: Path, options: Mapping[str, Any]) -> File:
    """Return the folder of a name on the Hub.

    Raises:
        BadModelFolder: there is no such name, or no connection.
    """
    known = {"cache_dir", "force_download", "local_files_only", "token", "revision"}
    asked = {name: one for name, one in options.items() if name in known}
    try:
        found = snapshot_download(str(source), allow_patterns=[*_OF_A_MODEL], **asked)
    except (OSError, ValueError) as error:
        reason = f"there is no such file or folder, nor a name on the Hub: {error}"
        raise BadModelFolder(path=str(source), reason=reason) from error
    return File(found) / str(options.get("subfolder", ""))


def _check_compiled(path: File, recipe: object) -> None:
    if recipe is not None:
        raise BadModelSetting(
            place=str(path),
            setting="recipe",
            expected="none, as it is compiled already (kvc dump says by which)",
            found=repr(recipe),
        )


def _check_manifest(folder: File) -> None:
    """Check that a folder is a whole export to kvc.

    Raises:
        BadModelFolder: it is not.
    """
    try:
        said = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        found, parts = said["export_format"], said["components"].values()
        files = [str(part["file"]) for part in parts]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        reason = f"{_MANIFEST} is damaged: {error!r}"
        raise BadModelFolder(path=str(folder), reason=reason) from error
    if found != FORMAT:
        reason = f"it is an export to {found!r}, and not to {FORMAT!r}"
        raise BadModelFolder(path=str(folder), reason=reason)
    for name in files:
        if not (folder / name).is_file():
            reason = f"{_MANIFEST} names {name}, which is not there"
            raise BadModelFolder(path=str(folder), reason=reason)
