"""`start_batch`: checks all that is asked of a batch, before anything runs.

In: a session, prompts, settings. Out: a `BatchGeneration`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.batch import BatchGeneration
from kvc.runtime.generation.batch_feeding import BatchFeeder
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.prompts import is_prompt, listed, tokens_of
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.sessions import Session
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_tokens


def start_batch(
    session: Session,
    prompts: Sequence[object],
    history: Sequence[object],
    settings: GenerationSettings,
    tokenizer: Callable[[], Tokenizer],
) -> BatchGeneration:
    """Return a generation of which nothing has run; arguments as `generate`'s.

    Raises:
        BadSetting: there is no prompt, one is empty, or there are not as many as rows.
        KvcError: as `generate`.
    """
    if not prompts:
        raise BadSetting(name="prompt", expected="at least one", found="none")
    feeder = BatchFeeder(session, len(prompts))
    starts = feeder.starts or [0] * len(prompts)
    tokens = [
        tokens_of(prompt, tokenizer, not start, f" in prompt {number}")
        for number, (prompt, start) in enumerate(zip(prompts, starts, strict=True))
    ]
    feeder.check_prompts(tokens)
    pasts = _pasts(history, len(prompts))
    rows = [
        Answer(prompt, start, settings, tokenizer)
        for prompt, start in zip(tokens, starts, strict=True)
    ]
    choosers = [
        Chooser(_settings_of(settings, row), (*past, *prompt))
        for row, (past, prompt) in enumerate(zip(pasts, tokens, strict=True))
    ]
    return BatchGeneration(feeder, rows, choosers, settings)


def _settings_of(settings: GenerationSettings, row: int) -> GenerationSettings:
    """Return the settings of a row: a seed of its own, or rows would choose alike."""
    if settings.seed is None:
        return settings
    return replace(settings, seed=settings.seed + row)


def _pasts(history: Sequence[object], rows: int) -> list[tuple[int, ...]]:
    """Return what each row's session row holds already.

    Raises:
        BadSetting: there are not as many as rows, or one holds no tokens.
    """
    if not len(history):
        return [()] * rows
    if len(history) != rows:
        expected = f"tokens for each prompt, {rows} times"
        raise BadSetting(name="history", expected=expected, found=f"{len(history)}")
    for past in history:
        if not is_prompt(past):
            # A number would pass for the tokens of a row, as one stop token does.
            expected = "a list of tokens for each prompt"
            raise BadSetting(name="history", expected=expected, found=repr(past))
    return [check_tokens("history", listed(past)) for past in history]
