"""Find the model that a command line names.

In: a built-in name, or `package.module:factory`, looked up with the current folder on
the path. Out: the `ModelSpec` that its factory returns.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from kvc.compiler import ModelSpec
from kvc.compiler.models import BUILTIN
from kvc.schema.errors import KvcError, ModelNotFound, listing


def load_model(name: str) -> ModelSpec:
    """Return the model that `name` names.

    Raises:
        ModelNotFound: nothing has this name, or its factory fails; the message says
            where in the user's code.
    """
    factory = BUILTIN[name] if name in BUILTIN else _imported(name)
    try:
        spec = factory()
    except KvcError:
        raise
    except SystemExit as error:
        raise _not_found(name, f"its factory ended with {_told(error)}") from error
    except Exception as error:
        raise _not_found(name, f"its factory failed with {_told(error)}") from error
    if not isinstance(spec, ModelSpec):
        kind = type(spec).__name__
        raise _not_found(
            name, f"its factory returned {kind}, not kvc.compiler.ModelSpec"
        )
    return spec


def _imported(name: str) -> Callable[[], object]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise _not_found(name, "it is not built in")
    if not module_name or not attribute:
        raise _not_found(name, "a name is needed before and after the colon")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _not_found(
            name, f"importing {module_name} failed with {_told(error)}"
        ) from error
    factory: object = module
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise _not_found(name, f"module {module_name} has no function {attribute!r}")
    return factory


def _told(error: BaseException) -> str:
    """Describe an exception of the user's code with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_users(f.filename)]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, SystemExit):
        return f"exit({'' if error.code is None else repr(error.code)}){place}"
    return f"{type(error).__name__}: {error}{place}"


def _is_users(filename: str) -> bool:
    """Tell whether a frame is of the user's code; `exit` has one of its own."""
    machinery = ("importlib", "_sitebuiltins")
    return filename != __file__ and not any(name in filename for name in machinery)


def _not_found(name: str, reason: str) -> ModelNotFound:
    return ModelNotFound(model=name, reason=reason, known=listing(tuple(BUILTIN)))
