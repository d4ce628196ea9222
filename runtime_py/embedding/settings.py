"""What a bundle says of its methods without state: metadata, checked.

In: the metadata of a program, which may be anybody's. Out: settings of a kind, or a
`BadSetting` that says what is missing.
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
    """How a program takes texts.

    Attributes:
        method: that takes tokens, and lengths of rows unless they all have one.
        padding: the token that rows are padded with.
        prompts: texts to put before a text, by name.
        prompt: the name of the usual one, or "".
        lower: whether the letters of a text are made small ones.
    """

    method: str
    padding: int
    prompts: Mapping[str, str]
    prompt: str
    lower: bool

    def prepared(self, text: str, prompt: str | None) -> str:
        """Return a text as it is encoded.

        Raises:
            BadSetting: there is no such prompt.
        """
        name = self.prompt if prompt is None else prompt
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            expected = f"a prompt that the bundle has: {known}"
            raise BadSetting(name="prompt", expected=expected, found=repr(name))
        whole = self.prompts[name] + text if name else text
        return whole.lower() if self.lower else whole


def task_of(program: Program) -> str:
    """Return what a program's model does, "" where it does not say it."""
    task = parsed(program.metadata, "task")
    return task if isinstance(task, str) else ""


def text_settings(program: Program, task: str) -> TextSettings:
    """Return how a program takes texts.

    Raises:
        BadSetting: it does something else, or says something impossible.
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
    assert isinstance(padding, int), "as it was found"
    assert isinstance(prompts, dict), "as it was found"
    method = method_of(program, TEXTS, found)
    return TextSettings(method, padding, prompts, str(prompt), lower is True)


def settings_in(program: Program, kind: str, task: str) -> Mapping[str, object]:
    """Return what a program says of texts or of pictures.

    Raises:
        BadSetting: its model does not do this with them.
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
    """Return the method that settings name.

    Raises:
        BadSetting: the program does not have it.
    """
    name = found.get("method")
    if not isinstance(name, str) or name not in program.methods:
        raise impossible(program.metadata, kind)
    return name


def labels_of(program: Program) -> tuple[str, ...]:
    """Return the names of what a model tells apart.

    Raises:
        BadSetting: the bundle has no list of them.
    """
    found = parsed(program.metadata, "labels")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise impossible(program.metadata, "labels")
    return tuple(found)


def scores_of(program: Program) -> Callable[[Doubles], Doubles]:
    """Return what makes scores of a row of logits.

    Raises:
        BadSetting: the bundle names nothing that does.
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
