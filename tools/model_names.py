"""Find the model that a command line names, and compile it.

In: a built-in name; or `package.module:factory`, looked up with the current folder on
the path; or the path of a Hugging Face folder. Out: the model's bundle.
"""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kvc.compiler import Bundle, Calibrator, ModelSpec, compile_program
from kvc.compiler.models import BUILTIN
from kvc.recipes import Wanted
from kvc.schema.container import Progress
from kvc.schema.errors import FactoryFailed, KvcError, ModelNotFound, listing
from kvc.tools.checkpoints import not_a_model
from kvc.tools.compile_options import FolderOptions, adapter_slots

_PYTHON: Final = sysconfig.get_path("stdlib")
_PACKAGES: Final = "site-packages"  # where others' code is installed


def compile_model(
    name: str,
    recipe: Wanted,
    progress: Progress,
    max_copy_bytes: Mapping[str, int],
    calibrate: Calibrator | None,
    fit: int | None,
) -> Bundle:
    """Compile a built-in model, or the model that a factory returns.

    Raises:
        ModelNotFound: as `load_model`.
        CompileError: as `compile_program`.
    """
    spec = load_model(name)
    return compile_program(
        spec.model,
        spec.methods,
        recipe=recipe,
        metadata=spec.metadata,
        progress=progress,
        states=spec.states,
        max_copy_bytes=max_copy_bytes,
        files=spec.files,
        calibrate=calibrate,
        fit=fit,
        adapters=spec.adapters,
    )


def compile_folder(
    name: str,
    recipe: Wanted,
    progress: Progress,
    max_copy_bytes: Mapping[str, int],
    options: FolderOptions,
    calibrate: Calibrator | None,
    fit: int | None,
) -> Bundle:
    """Compile a Hugging Face folder.

    Raises:
        MissingTransformers: the front end's packages are not installed.
        WrongTransformers: the installed releases of the packages are not tested.
        CompileError: as `export_hf`.
    """
    from kvc.compiler.hugging_face import PREFILL_CHUNK, CacheConfig, export_hf

    return export_hf(
        name,
        task=options["task"],
        recipe=recipe,
        cache=CacheConfig(
            max_length=options["max_length"],
            encoder_length=options["encoder_length"],
            batch=options["batch"],
            slack=options["slack"] or 0,
            window=options["window"],
            keep=options["keep"] or 0,
        ),
        prefill_chunk=options["prefill_chunk"] or PREFILL_CHUNK,
        prefill_sizes=options["prefill_sizes"],
        all_logits=options["all_logits"],
        inputs_embeds=options["inputs_embeds"],
        pictures=not options["no_pictures"],
        progress=progress,
        max_copy_bytes=max_copy_bytes,
        calibrate=calibrate,
        fit=fit,
        adapters=adapter_slots(given) if (given := options["adapters"]) else None,
    )


def load_model(name: str) -> ModelSpec:
    """Return the model that `name` names.

    Raises:
        ModelNotFound: no model has this name.
        FactoryFailed: the model's factory fails; the message says where in the user's
            code.
    """
    factory = BUILTIN[name] if name in BUILTIN else _imported(name)
    try:
        spec = factory()
    except (KvcError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise _failed(name, f"its factory ended with {_told(error)}") from error
    except BaseException as error:
        raise _failed(name, f"its factory failed with {_told(error)}") from error
    if not isinstance(spec, ModelSpec):
        kind = type(spec).__name__
        raise _failed(name, f"its factory returned {kind}, not kvc.compiler.ModelSpec")
    return spec


def _imported(name: str) -> Callable[[], object]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise not_a_model(name)
    if module_name.endswith(".py") or "/" in module_name:
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise _failed(name, f"a module is named as imports do: {dotted}:{attribute}")
    if not module_name or not attribute:
        raise _failed(name, "a name is needed before and after the colon")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        lacking = (isinstance(error, ModuleNotFoundError) and error.name) or ""
        is_it = f"{module_name}.".startswith(f"{lacking}.")
        kind = _not_found if lacking and is_it else _failed
        reason = f"importing {module_name} failed with {_told(error)}"
        raise kind(name, reason) from error
    factory: object = module
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise _failed(name, f"module {module_name} has no function {attribute!r}")
    return factory


def _told(error: BaseException) -> str:
    """Describe an exception of the user's code with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames  # not those of kvc here, nor of libraries that it calls
        if frame.filename != __file__
        and not frame.filename.startswith((_PYTHON, "<frozen"))
        and _PACKAGES not in frame.filename
    ]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, SystemExit):
        return f"exit({'' if error.code is None else repr(error.code)}){place}"
    try:
        text = str(error)
    except Exception:  # the user's code, too
        text = ""
    return f"{type(error).__name__}{': ' * bool(text)}{text}{place}"


def _failed(name: str, reason: str) -> FactoryFailed:
    return FactoryFailed(model=name, reason=reason, known=listing(tuple(BUILTIN)))


def _not_found(name: str, reason: str) -> ModelNotFound:
    return ModelNotFound(model=name, reason=reason, known=listing(tuple(BUILTIN)))
