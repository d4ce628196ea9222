"""Check, before anything runs, whether one session can be the draft of another.

In: the target's session, the draft's session. Out: a `Drafting`, or a plain `Decoding`
if the draft's session has no capacity for the tokens of the target.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes
from kvc.runtime.generation.answer import Row
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.drafting import Drafting
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.guessing import DraftModel, PromptLookup
from kvc.runtime.generation.session_rows import of_rows
from kvc.runtime.sessions.methods import require_all_logits
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_count

PROMPT: Final = "prompt"  # guesses come from the text itself

_USUAL_GUESSES: Final = 4
_MOST_OF_PROMPT: Final = 16
_MOST_AHEAD: Final = 64  # accepted tokens that wait, since a caller may want no more


def draft_tokens_of(draft: object, count: object) -> int | None:
    """Return the requested number of guesses, None if the caller gave none.

    Raises:
        BadSetting: `draft` is no draft, `count` is not a number of tokens, or `count`
            is given without a draft.
    """
    if draft not in (None, PROMPT) and not isinstance(draft, Session):
        expected = f"a session, or {PROMPT!r}"
        raise BadSetting(name="draft", expected=expected, found=repr(draft))
    if count is None:
        return None
    number = check_count("draft_tokens", count)
    if number < 1 or draft is None:
        raise BadSetting(
            name="draft_tokens",
            expected="no value: there is no draft" if draft is None else "1 or more",
            found=count,
        )
    return number


def start_drafting(
    target: Feeder,
    draft: Session | str,
    histories: Sequence[Sequence[int]],
    draft_tokens: int | None,
) -> Decoding:
    """Return the `Decoding` of a target session and its draft.

    Args:
        target: the feeder of the session whose model samples the answers.
        draft: the session that guesses, or "prompt".
        histories: the tokens that each row of the target holds; may be empty.
        draft_tokens: the greatest number of guesses per check, None for the default.

    Raises:
        BadSetting: the two sessions do not fit each other.
        UnknownName: one of the two programs lacks a role.
        NoPosition, NotRewindable, CannotRewind: one of the sessions cannot be rewound.
        Poisoned, Busy, Closed, Forked: as `Session.call`.
    """
    rows = len(target.rows)
    if isinstance(draft, str):
        checks = _find_checks(target)
        # Raises the errors that undoing guesses would raise.
        reach = _reach(target.session, {*target.methods, checks.method})
        most = checks.most - 1
        least = _least_guesses(checks)
        usual = min(max(_MOST_OF_PROMPT, least), most)
        wanted = usual if draft_tokens is None else draft_tokens
        count = _check_guesses(wanted, most, checks)
        guesser = PromptLookup(rows, 1 if rows > 1 else least)
        return Drafting(target, checks, guesser, [()] * rows, count, reach)
    if draft is target.session:
        raise BadSetting(
            name="draft",
            expected="another session than the target's",
            found="the same",
        )
    checks = _find_checks(target)
    feeder = Feeder(draft, rows, name="draft")
    if feeder.vocabulary != target.vocabulary:
        raise BadSetting(
            name="draft",
            expected=f"a model of {target.vocabulary} tokens, as the target",
            found=f"one of {feeder.vocabulary}",
        )
    # Both calls raise the errors that undoing guesses would raise.
    reach = _reach(target.session, {*target.methods, checks.method})
    reach = min(reach, _reach(draft, feeder.methods))
    copies = draft.going_back.forgettable_calls(feeder.methods)
    count = _count_guesses(draft_tokens, checks, draft, copies)
    pairs = zip(target.rows, feeder.rows, histories, strict=True)
    leads = [_find_lead(*pair) for pair in pairs]
    found = [lead for lead in leads if lead is not None]
    if len(found) < rows:
        return Decoding(target)
    return Drafting(target, checks, DraftModel(feeder), found, count, reach)


def _reach(session: Session, methods: Iterable[str]) -> int:
    """Return how many tokens a row can run and go back, over several calls of methods.

    Rings go back by as many as one call can add. Rows of states that are restored from
    copies go back to the start of their last call only, so the result is 0.

    Raises:
        NotRewindable, CannotRewind: guesses cannot be undone.
        NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
    """
    if session.going_back.forgettable_calls(methods) is not None:
        return 0
    longest = session.longest_call
    return _MOST_AHEAD if longest is None else min(longest, _MOST_AHEAD)


def _find_checks(target: Feeder) -> ChunkSizes:
    """Return the method that returns the logits of every token.

    Raises:
        UnknownName: the program has no method that returns the logits of every token.
        BadSetting: there are several rows, and the method does not take row lengths.
    """
    session = target.session
    method = require_all_logits(session, "A draft")
    (method,) = of_rows([method], len(target.rows))
    return chunk_sizes(method, session.symbols, session.longest_call)


def _count_guesses(
    wanted: int | None,
    checks: ChunkSizes,
    draft: Session,
    copies: int | None,
) -> int:
    """Return how many tokens the draft guesses before each check.

    The target checks all guesses in one call, and `checks` takes no more tokens than
    its rings can undo. The draft makes each guess in a separate call; its rings can
    undo as many tokens as one call can add.

    Args:
        wanted: the number that the caller requested, None for the default.
        checks: the numbers of tokens that one call of the checking method can take.
        draft: the session of the draft.
        copies: how many of the latest calls of the draft can be undone, None for no
            limit.

    Raises:
        BadSetting: the requested number of guesses cannot be checked in one call, or
            cannot be undone.
    """
    most = checks.most - 1
    if draft.longest_call is not None:
        most = min(most, draft.longest_call)
    if copies is not None:
        most = min(most, copies)
    usual = max(_USUAL_GUESSES, _least_guesses(checks))
    return _check_guesses(min(usual, most) if wanted is None else wanted, most, checks)


def _least_guesses(checks: ChunkSizes) -> int:
    return checks.smallest(2) - 1 if checks.most > 1 else 1


def _check_guesses(count: int, most: int, checks: ChunkSizes) -> int:
    """Return a number of guesses if one call can check as many.

    Raises:
        BadSetting: the number is too small or too large.
    """
    least = _least_guesses(checks)
    if not least <= count <= most:
        raise BadSetting(
            name="draft_tokens",
            expected=f"from {least} to {most}: {checks.method} takes one token more, "
            "rings must be able to undo them, and the draft keeps `snapshots` of "
            "recurrent states",
            found=count,
        )
    return count


def _find_lead(
    ahead: Row, behind: Row, history: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the tokens that a row of the draft must run before the prompt.

    If the draft's row holds at least as many tokens as the target's row, the result is
    empty, and the draft is rewound to the target's count before the prompt. The tokens
    of the two need not be equal: a difference only makes guesses worse. If the draft's
    session has no capacity for the tokens, the result is None.

    Args:
        ahead: the row of the target.
        behind: the row of the draft.
        history: the tokens that the target's row holds; may be empty.

    Raises:
        BadSetting: the draft holds fewer tokens than the target, and `history` does not
            have all tokens of the target.
    """
    assert ahead.start is not None
    assert behind.start is not None
    if behind.start >= ahead.start:
        behind.start = ahead.start
        return ()
    if len(history) == ahead.start:
        return tuple(history[behind.start :])
    if behind.capacity is not None and behind.capacity <= ahead.start:
        return None
    raise BadSetting(
        name="draft",
        expected=f"a session that holds the same {ahead.start} tokens as the one it "
        "guesses for (or history=, all of these tokens)",
        found=f"{behind.start} tokens",
    )
