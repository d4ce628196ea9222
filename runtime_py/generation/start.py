"""`generate`: checks all that is asked for, then leaves the rest to `Generation`.

In: a session, a prompt, settings. Out: a `Generation` of which nothing has run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack
from weakref import WeakKeyDictionary

from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.drafts import draft_tokens_of, start_drafting
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.generation import Generation
from kvc.runtime.generation.ignored import (
    refuse_unknown,
    warn_of_cache_settings,
    warn_of_config,
)
from kvc.runtime.generation.settings import (
    Arguments,
    GenerationSettings,
    settle,
)
from kvc.runtime.generation.sources import Feeding, Source
from kvc.runtime.sessions import Session
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.schema.errors import BadSetting
from kvc.schema.generation_config import read_settings
from kvc.schema.setting_checks import check_tokens

if TYPE_CHECKING:
    import numpy as np

    Prompt = str | Sequence[int] | np.typing.NDArray[np.int64]

_KNOWN: Final = frozenset(Arguments.__annotations__)
_CONFIG: Final = "the bundle's generation_config"
_TOKENIZERS: Final[WeakKeyDictionary[Session, Tokenizer]] = WeakKeyDictionary()


def generate(
    session: Session,
    prompt: "Prompt",
    *,
    tokenizer: Tokenizer | None = None,
    history: Sequence[int] = (),
    draft: Session | None = None,
    draft_tokens: int | None = None,
    **settings: Unpack[Arguments],
) -> Generation:
    """Continue a prompt on what the session already holds.

    Nothing runs before the first token is asked for.

    Args:
        session: of a program with the roles "prefill" and "decode", of one row.
        prompt: a text, or token ids, at least one.
        tokenizer: for text; the bundle's where it is left out.
        history: what the session holds already, for the repetition penalty, and for a
            draft that holds less of it.
        draft: a session of a smaller model with the same tokens, which holds what
            `session` holds, or a beginning of `history`. It guesses tokens, which
            `session` checks several at a time; see `kvc.runtime.generation.drafting`.
        draft_tokens: the most guesses at a time; left out, 4.
        settings: as `GenerationSettings` has them; what is left out, or None, is as the
            bundle's "generation_config" says, and without one the likeliest token is
            taken until the cache is full. `max_new_tokens` is `max_tokens`,
            `eos_token_id` is `stop_tokens`. A temperature above 0, a top_k, top_p or
            min_p asks for sampling; `do_sample` overrides that.

    Raises:
        BadSetting: a setting is impossible or is not one that kvc has, the prompt is
            empty or no prompt, or the session has several rows. The draft is the same
            session, has other tokens, or holds something else.
        TypeError: there is no such argument.
        UnknownName: the program lacks a role: with a draft, "prefill_all" too.
        NoPosition, NotRewindable: with a draft, one of the two cannot go back.
        InputMismatch: the model does not have a token of the prompt.
        PromptTooLong: there is no room for the prompt.
        MissingPackage, BadTokenizer: the bundle's tokenizer cannot be used.
        Poisoned, Busy, Closed, Forked: as `Session.call`.

    Warns:
        SettingIgnored: of settings of the cache, and of what the bundle's settings ask
            for that kvc does not have.
    """
    chosen = settings_of(session.metadata, settings, stacklevel=2)
    past = check_tokens("history", _listed(history))
    guesses = draft_tokens_of(draft, draft_tokens)
    feeder = Feeder(session)

    def find_tokenizer() -> Tokenizer:
        return _tokenizer_of(session) if tokenizer is None else tokenizer

    tokens = _tokens_of(prompt, find_tokenizer, is_start=not feeder.start)
    feeder.check_prompt(tokens)
    chooser = Chooser(chosen, (*past, *tokens))
    source: Source = Feeding(feeder, chooser)
    if draft is not None:
        stops = frozenset(chosen.stop_tokens)
        source = start_drafting(feeder, draft, past, guesses, chooser, stops)
    return Generation(source, tokens, chosen, find_tokenizer)


def settings_of(
    metadata: Mapping[str, str], given: Arguments, stacklevel: int = 1
) -> GenerationSettings:
    """Return the settings of a bundle, with a caller's in their place.

    Args:
        metadata: of the bundle.
        given: by the caller.
        stacklevel: whom warnings are about, 1 for the caller of this function.

    Raises:
        BadSetting: a setting is impossible, or is not one that kvc has.
        TypeError: there is no such argument.
    """
    refuse_unknown(given, _KNOWN)
    config = _config_of(metadata)
    bundle = None if config is None else read_settings(config, f"{_CONFIG}, ")
    chosen = settle(bundle, read_settings(given))
    warn_of_cache_settings(given, stacklevel + 1)
    warn_of_config(config or {}, stacklevel + 1)
    return chosen


def _tokenizer_of(session: Session) -> Tokenizer:
    """Return the bundle's tokenizer, read once for all turns on a session."""
    found = _TOKENIZERS.get(session)
    if found is None:
        found = _TOKENIZERS[session] = tokenizer_of(session)
    return found


def _config_of(metadata: Mapping[str, str]) -> Mapping[str, object] | None:
    text = metadata.get("generation_config")
    if text is None:
        return None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSetting(name=_CONFIG, expected="JSON", found=repr(text)) from error
    if not isinstance(found, dict):
        raise BadSetting(name=_CONFIG, expected="an object", found=repr(found))
    return found


def _tokens_of(
    prompt: object, find_tokenizer: Callable[[], Tokenizer], is_start: bool
) -> tuple[int, ...]:
    """Return the tokens of a prompt; the special ones belong to the first alone."""
    if isinstance(prompt, str):
        tokens = check_tokens("prompt", list(find_tokenizer().encode(prompt, is_start)))
    else:
        listed = _listed(prompt)
        _check_single(listed)
        tokens = check_tokens("prompt", listed)
    if not tokens:
        raise BadSetting(name="prompt", expected="at least one token", found="none")
    return tokens


def _check_single(prompt: object) -> None:
    """Check that a prompt is not several.

    Raises:
        BadSetting: it is.
    """
    if not isinstance(prompt, list | tuple):
        return
    if any(isinstance(part, str | list | tuple) for part in prompt):
        expected = "one text or its tokens; a batch needs a session for each prompt"
        raise BadSetting(name="prompt", expected=expected, found=f"{len(prompt)} parts")


def _listed(tokens: object) -> object:
    """Return an array [n] or [1, n] of any library as a list, all else as it is."""
    to_list = getattr(tokens, "tolist", None)
    if to_list is None:
        return tokens
    listed: object = to_list()
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], list):
        return listed[0]
    return listed
