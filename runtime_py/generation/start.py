"""`generate`: checks all that is asked for, then leaves the rest to `Generation`.

In: a session, a prompt or several, settings. Out: a `Generation` of which nothing has
run, or a `BatchGeneration`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack, overload
from weakref import WeakKeyDictionary

from kvc.runtime.generation.batch import BatchGeneration
from kvc.runtime.generation.batch_start import start_batch
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.drafts import draft_tokens_of, start_drafting
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.generation import Generation
from kvc.runtime.generation.ignored import (
    refuse_unknown,
    warn_of_cache_settings,
    warn_of_config,
)
from kvc.runtime.generation.prompts import is_batch, listed, prompts_of, tokens_of
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
    Prompts = Sequence[Prompt] | np.typing.NDArray[np.int64]

_KNOWN: Final = frozenset(Arguments.__annotations__)
_CONFIG: Final = "the bundle's generation_config"
_TOKENIZERS: Final[WeakKeyDictionary[Session, Tokenizer]] = WeakKeyDictionary()


@overload
def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
    session: Session,
    prompt: "Prompt",
    *,
    tokenizer: Tokenizer | None = None,
    history: Sequence[int] = (),
    draft: Session | None = None,
    draft_tokens: int | None = None,
    **settings: Unpack[Arguments],
) -> Generation: ...


@overload
def generate(
    session: Session,
    prompt: "Prompts",
    *,
    attention_mask: object = None,
    tokenizer: Tokenizer | None = None,
    history: Sequence[Sequence[int]] = (),
    **settings: Unpack[Arguments],
) -> BatchGeneration: ...


def generate(
    session: Session,
    prompt: object,
    *,
    attention_mask: object = None,
    tokenizer: Tokenizer | None = None,
    history: Sequence[object] = (),
    draft: Session | None = None,
    draft_tokens: int | None = None,
    **settings: Unpack[Arguments],
) -> Generation | BatchGeneration:
    """Continue a prompt on what the session already holds, or several at once.

    Nothing runs before the first token is asked for. A list of prompts, or an array of
    several rows, is a batch: prompt r is run in row r of the session, and each row ends
    by itself.

    Args:
        session: of a program with the roles "prefill" and "decode"; of one row, or of
            as many as there are prompts: `program.session(batch=n)`.
        prompt: a text, or token ids, at least one; or a list of such, which may have
            different lengths; or token ids [batch, n].
        attention_mask: of token ids [batch, n], 0 or 1 [batch, n]: which of them count.
            Rows are padded at either end, as tokenizers of transformers do it.
        tokenizer: for text; the bundle's where it is left out.
        history: what the session holds already, for the repetition penalty, and for a
            draft that holds less of it; of a batch what each row holds.
        draft: a session of a smaller model with the same tokens, which holds what
            `session` holds, or a beginning of `history`. It guesses tokens, which
            `session` checks several at a time; see `kvc.runtime.generation.drafting`.
            Not for a batch.
        draft_tokens: the most guesses at a time; left out, 4.
        settings: as `GenerationSettings` has them; what is left out, or None, is as the
            bundle's "generation_config" says, and without one the likeliest token is
            taken until the cache is full. `max_new_tokens` is `max_tokens`,
            `eos_token_id` is `stop_tokens`. A temperature above 0, a top_k, top_p or
            min_p asks for sampling; `do_sample` overrides that. Row r of a batch takes
            `seed` + r: its tokens are those that it would make alone with that seed,
            but for how a model of float sums them up in a batch.

    Returns:
        A `Generation` of one prompt, a `BatchGeneration` of a list or of several rows.

    Raises:
        BadSetting: a setting is impossible or is not one that kvc has, a prompt is
            empty or no prompt, the session has another number of rows than there are
            prompts, or the program's methods cannot run rows of different lengths. The
            draft is the same session, has other tokens, or holds something else, or
            there are several prompts.
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
    guesses = draft_tokens_of(draft, draft_tokens)

    def find_tokenizer() -> Tokenizer:
        return _tokenizer_of(session) if tokenizer is None else tokenizer

    if is_batch(prompt, attention_mask):
        prompts = prompts_of(prompt, attention_mask)
        _check_no_draft(draft)
        return start_batch(session, prompts, history, chosen, find_tokenizer)
    past = check_tokens("history", listed(history))
    if not isinstance(prompt, str):  # before the session is looked at: it may be right
        prompt = tokens_of(prompt, find_tokenizer, is_start=True)
    feeder = Feeder(session)
    tokens = tokens_of(prompt, find_tokenizer, is_start=not feeder.start)
    feeder.check_prompt(tokens)
    chooser = Chooser(chosen, (*past, *tokens))
    source: Source = Feeding(feeder, chooser)
    if draft is not None:
        stops = frozenset(chosen.stop_tokens)
        source = start_drafting(feeder, draft, past, guesses, chooser, stops)
    return Generation(source, tokens, chosen, find_tokenizer)


def _check_no_draft(draft: Session | None) -> None:
    """Check that no draft guesses for several prompts.

    Raises:
        BadSetting: one is to.
    """
    if draft is not None:
        expected = (
            "none for a list of prompts; it guesses for one prompt, given by itself"
        )
        raise BadSetting(name="draft", expected=expected, found="a session")


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
