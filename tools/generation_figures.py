"""What commands tell of a generation that has run: its speed, and why it ended."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from kvc.schema.text import plural

if TYPE_CHECKING:
    from kvc.runtime import BatchGeneration, Generation
    from kvc.runtime.generation import Arguments, EndReason

# Why an answer ended: the message for a single answer, and for some of several.
_WHY: Final = {
    "stop": ("the model ended the text", "ended by the model"),
    "form": ("the answer has its form", "ended with the form"),
    "stop_string": ("a stop string came", "ended by a stop string"),
    "length": ("the cache is full", "ended by a full cache"),
    "max_tokens": ("--max-tokens was reached", "ended by the limit of tokens"),
    None: ("interrupted", "interrupted"),
}


def figures_of(
    run: "Generation | BatchGeneration",
    ready: float,
    settings: "Arguments",
    prompts: int,
) -> str:
    """Return the speed of a generation and why its answers ended, as one line.

    Args:
        run: the generation.
        ready: the seconds before it began.
        settings: the settings that the user gave.
        prompts: the number of prompts.
    """
    from kvc.runtime import Generation

    prefill, decode, first = run.prefill, run.decode, run.time_to_first_token
    alone = isinstance(run, Generation)
    each = "prompts" if prompts > 1 else "answers"
    figures = [f"ready after {ready:.1f} s"]
    if first is not None:
        figures.append(f"first token{'' if alone else 's'} {first:.2f} s later")
    figures.append(
        f"prefill {prefill.tokens_per_second:.1f} tokens/s "
        f"({plural(prefill.tokens, 'token')}), "
        f"decode {decode.tokens_per_second:.1f} tokens/s "
        f"({plural(decode.tokens, 'token')})"
        f"{'' if alone else f', of all {each} together'}"
    )
    if isinstance(run, Generation) and run.score is not None:
        figures.append(f"score {run.score:.4f}")
    if run.drafted:
        figures.append(
            f"{run.accepted} of {run.drafted} guesses right ({run.acceptance:.0%})"
        )
    return "; ".join([*figures, _why(run, settings)])


def is_complete(run: "Generation | BatchGeneration") -> bool:
    """Tell whether no answer lacks the form that was asked for."""
    found = run.is_complete
    return False not in (found if isinstance(found, tuple) else (found,))


def _key(reason: "EndReason | None", complete: bool | None) -> str | None:
    return "form" if reason == "stop" and complete else reason


def _why(run: "Generation | BatchGeneration", settings: "Arguments") -> str:
    if isinstance(run.reason, tuple):
        found = zip(run.reason, run.is_complete, strict=True)
        ends = Counter(_WHY[_key(*one)][1] for one in found)
        cut = sum(complete is False for complete in run.is_complete)
        told = [f"{count} {end}" for end, count in ends.items()]
        return ", ".join([*told, f"{cut} without the form"] if cut else told)
    if run.reason == "max_tokens" and settings.get("max_tokens") is None:
        return f"the bundle's limit of tokens was reached{_within(run)}"
    return _WHY[_key(run.reason, run.is_complete)][0] + _within(run)


def _within(run: "Generation") -> str:
    return ", before the answer had its form" if run.is_complete is False else ""
