"""Run a model's own code, and report its errors in a sentence.

In: a model, and a description of its input. Out: any error of the code becomes an
`UnsupportedModel` that names the line of the code, the input, and a remedy. All runs of
a model's code go through here: those that find its caches, positions and masks, and the
traces.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvc.compiler.hugging_face.reading.model_lines import (
    NOWHERE,
    line_of,
    shortened,
    words_of,
)
from kvc.compiler.hugging_face.reading.unread import ONLY
from kvc.schema.errors import CaptureError, KvcError, SizesRefused, UnsupportedModel

UNNAMED: Final = "the model"  # for code that does not know the model's name
_MISSING: Final = "required positional argument"
# torch's proposal for code that works up to a size: "heard = Dim('heard', max=512)".
_MOST: Final = re.compile(r"(\w+) = Dim\('\w+', max=(\d+)\)")
_LINKS: Final = 20  # of a chain of errors
_CONSTANT: Final = re.compile(r"specialized it to be a constant \((\d+)\)")
_RAISED: Final = (
    "it raises "  # prefix of a trace's message about other code than torch's
)
_ALONE: Final = (
    "; it does so without anything of kvc's, too: its configuration does not fit "
    "transformers' code, or that asks for more than tokens"
)
_INSTEAD: Final = (
    "; kvc gives it caches, attention and masks of its own and tensors without values, "
    "and this code asks for something else, or does not fit its configuration: see "
    "whether transformers runs it"
)


@contextmanager
def model_code(
    model: PreTrainedModel,
    given: str,
    otherwise: str = "",
    alone: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Run a model's code in this context; convert its errors to one sentence.

    Args:
        model: the model whose code runs.
        given: description of the code's input, as in "it is run on a picture".
        otherwise: a remedy, added to the sentence.
        alone: runs the same code without kvc, to find out whether kvc is the cause.

    Raises:
        UnsupportedModel: the code raised an error.
    """
    try:
        with _named(model, otherwise):
            yield
    except KvcError:
        raise
    except Exception as error:
        reason = _reason(error, given, alone) + otherwise
        raise UnsupportedModel(model=type(model).__name__, reason=reason) from error


@contextmanager
def traced_code(model: PreTrainedModel) -> Iterator[None]:
    """Trace a model's code in this context; convert errors about the model's code.

    Raises:
        UnsupportedModel: the code fails, or does not work for all lengths of a text.
    """
    try:
        with _named(model, ""):
            yield
    except SizesRefused as error:
        name, reason = type(model).__name__, _of_sizes(error)
        raise UnsupportedModel(model=name, reason=reason) from error
    except CaptureError as error:
        ours = (link for link in _chain(error) if isinstance(link, UnsupportedModel))
        own = next(ours, None)
        if own is not None:
            name = type(model).__name__ if own.model == UNNAMED else own.model
            raise UnsupportedModel(model=name, reason=own.reason) from error
        if not error.reason.startswith(_RAISED):
            raise
        name, reason = type(model).__name__, _of_trace(error)
        raise UnsupportedModel(model=name, reason=reason) from error


@contextmanager
def _named(model: PreTrainedModel, otherwise: str) -> Iterator[None]:
    """Add the model's name and a remedy to the error of a refused model."""
    try:
        yield
    except UnsupportedModel as error:
        name = type(model).__name__ if error.model == UNNAMED else error.model
        reason = error.reason.removesuffix(otherwise) + otherwise
        raise UnsupportedModel(model=name, reason=reason) from error


def without_interface(model: PreTrainedModel) -> UnsupportedModel:
    """Return the error for a model that computes attention in code of its own."""
    own = [
        type(one).__name__
        for one in model.modules()
        if "attention" in type(one).__name__.lower()
    ]
    reason = (
        f"{own[0]} attends by code of its own, not by transformers' interface for it"
        if own
        else "it does not attend, and kvc's front end is for models that do: compile "
        "it as a module, by kvc.compiler.compile_program"
    )
    return UnsupportedModel(model=type(model).__name__, reason=reason)


def _reason(error: Exception, given: str, alone: Callable[[], object] | None) -> str:
    """Return why a model's code fails, as a sentence.

    The arguments `given` and `alone` are explained in `model_code`.
    """
    known = asked_for(error) or _not_given(error)
    if known:
        return known
    fault = _INSTEAD
    if alone is not None:
        try:
            alone()
        except Exception as other:
            if (type(other), line_of(other)) == (type(error), line_of(error)):
                fault = _ALONE
    where = line_of(error)
    place = "its code" if where == NOWHERE else where
    return (f"{place} fails when {given} ({words_of(error)})") + fault


def asked_for(error: Exception) -> str:
    """Return a sentence about the line where a model reads tensor values.

    The result is "" if `error` is any other error.
    """
    if not isinstance(
        error, DataDependentOutputException | DynamicOutputShapeException
    ):
        return ""
    return (
        f"{line_of(error)} asks for values of tensors ({error.func}), which decide "
        "what it computes, and there are none before it is run"
    )


def _not_given(error: Exception) -> str:
    """Return a sentence about an argument or attribute that kvc does not provide.

    The result is "" if the error of the model's code has another cause.
    """
    if isinstance(error, TypeError) and _MISSING in str(error):
        names = (
            str(error).partition(f"{_MISSING}s: ")[2]
            or str(error).rpartition(f"{_MISSING}: ")[2]
        )
        return (
            f"its code needs {names.replace(chr(39), '')}, which kvc does not give it"
        )
    if isinstance(error, AttributeError) and isinstance(
        error.obj, Cache | CacheLayerMixin
    ):
        return f"{line_of(error)} asks its cache for {error.name}, and {ONLY}"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then the error that caused it, and so on."""
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _of_trace(error: CaptureError) -> str:
    """Return why a model whose code raised an error cannot be traced."""
    place = error.place.removeprefix(" at ") or NOWHERE
    said = error.reason.removeprefix(_RAISED)
    kind = said.partition(":")[0]
    words = shortened(said)
    for link in _chain(error):
        if isinstance(link, Exception) and type(link).__name__ == kind:
            known = _not_given(link)
            if known:
                return known
            words = words_of(link)
            break
    return (
        f"{place} fails when {error.method} is traced for texts of any length "
        f"({words}){_INSTEAD}"
    )


def _of_sizes(error: SizesRefused) -> str:
    """Return why a model cannot be traced for all lengths of a text."""
    place = error.place.removeprefix(" at ") or NOWHERE
    constant = _CONSTANT.search(error.advice)
    if constant is not None:
        return (
            f"{place} takes the number of tokens for a constant ({constant[1]}, in the "
            f"run that kvc traces), and {error.method} is one program for all lengths "
            "of a text"
        )
    found = _MOST.findall(error.advice)
    most = [_shorter(name, number) for name, number in found]
    advice = f"; compile it for fewer, with {' and '.join(most)}" if most else ""
    return (
        f"{place} computes one thing for some lengths of a text and "
        f"another for others, and {error.method} is one program for all "
        f"({error.reason}){advice}"
    )


def _shorter(name: str, number: str) -> str:
    """Return the setting that limits a number of positions, as text for an error.

    Shorter calls would not avoid the error: the code would treat each part of a long
    text as it treats the whole text.
    """
    if name == "heard":
        return f"CacheConfig(encoder_length={number}) or --max-encoder-length {number}"
    return f"CacheConfig(max_length={number}) or --max-length {number}"
