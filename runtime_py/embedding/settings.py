"""Read and check the metadata of models without state.

In: the metadata of a program, which is untrusted. Out: settings for texts or pictures,
or a `BadSetting` that names the missing setting.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.sessions.methods import impossible, parsed
from kvc.runtime.sessions.program import Program
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

Doubles = npt.NDArray[np.float64]

TEXTS: Final = "texts"
PICTURES: Final = "pictures"


@frozen
class TextSettings:
    """The settings of a program for texts.

    Attributes:
        method: the method that takes tokens. It takes row lengths too, unless all rows
            of its calls have the same length.
        padding: the token that fills the end of shorter rows.
        prompts: prefixes to put before a text, by name.
        prompt: the name of the default prefix, or "".
        lower: whether texts are converted to lower case.
    """

    method: str
    padding: int
    prompts: Mapping[str, str]
    prompt: str
    lower: bool

    def prepared(self, text: str, prompt: str | None) -> str:
        """Return a text as it is encoded: with a prefix, in lower case if `lower`.

        `prompt` is the name of the prefix; None stands for the default prefix.

        Raises:
            BadSetting: there is no prefix of this name.
        """
        name = self.prompt if prompt is None else prompt
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            expected = f"a prompt that the bundle has: {known}"
            raise BadSetting(name="prompt", expected=expected, found=repr(name))
        whole = self.prompts[name] + text if name else text
        return whole.lower() if self.lower else whole


def task_of(program: Program) -> str:
    """Return the task of a program's model, "" if the metadata has none."""
    task = parsed(program.metadata, "task")
    return task if isinstance(task, str) else ""


def text_settings(program: Program, task: str) -> TextSettings:
    """Return the settings of a program for texts.

    Raises:
        BadSetting: the program has a different task, or the settings are invalid.
    """
    found = settings_in(program, TEXTS, task)
    prompts, padding = found.get("prompts"), found.get("padding")
    prompt, lower = found.get("prompt"), found.get("lower")
    fits = (
        isinstance(prompts, dict)
        and all(isinstance(text, str) for text in prompts.values())
        and isinstance(prompt, str)
        and isinstance(lower, bool)
        and type(padding) is int
        and 0 <= padding < 1 << 31
    )
    if not fits:
        raise impossible(program.metadata, TEXTS)
    assert isinstance(padding, int), "checked above"
    assert isinstance(prompts, dict), "checked above"
    method = method_of(program, TEXTS, found)
    return TextSettings(method, padding, prompts, str(prompt), lower is True)


def settings_in(program: Program, kind: str, task: str) -> Mapping[str, object]:
    """Return a program's settings for texts or for pictures.

    Raises:
        BadSetting: the program's model has a different task, or does not take inputs of
            this kind.
    """
    found, does = parsed(program.metadata, kind), task_of(program)
    if does == task and isinstance(found, dict):
        return found
    what = {"embed": "embeds", "classify": "classifies"}[task]
    other = f"one for --task {does}" if does != task else f"one that takes no {kind}"
    raise BadSetting(
        name="the bundle",
        expected=f"a model that {what} {kind} (kvc compile --task {task})",
        found=other if does else "one of another kind",
    )


def method_of(program: Program, kind: str, found: Mapping[str, object]) -> str:
    """Return the method that the settings name.

    Raises:
        BadSetting: the program has no method of that name.
    """
    name = found.get("method")
    if not isinstance(name, str) or name not in program.methods:
        raise impossible(program.metadata, kind)
    return name


def labels_of(program: Program) -> tuple[str, ...]:
    """Return the names of a classifier's labels.

    Raises:
        BadSetting: the bundle has no list of labels.
    """
    found = parsed(program.metadata, "labels")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise impossible(program.metadata, "labels")
    return tuple(found)


def scores_of(program: Program) -> Callable[[Doubles], Doubles]:
    """Return the function that computes scores from a row of logits.

    Raises:
        BadSetting: the bundle names no known function.
    """
    found = parsed(program.metadata, "scores")
    if not isinstance(found, str) or found not in _SCORES:
        raise impossible(program.metadata, "scores")
    return _SCORES[found]


def _softmax(logits: Doubles) -> Doubles:
    powers: Doubles = np.exp(logits - logits.max())
    powers /= powers.sum()
    return powers


def _sigmoid(logits: Doubles) -> Doubles:
    scores: Doubles = 0.5 + 0.5 * np.tanh(0.5 * logits)
    return scores


_SCORES: Final[Mapping[str, Callable[[Doubles], Doubles]]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "none": lambda logits: logits,
}
