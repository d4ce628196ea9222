"""What a generation does to its session: tokens in, logits out, nothing else.

In: a session of a program that has methods of the roles "prefill" and "decode". Out:
the logits that follow the last token, and what the session holds by then.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kvc.runtime.chunks import Chunk, ChunkSizes, chunk_sizes, plan_chunks
from kvc.runtime.generation.chances import Logits
from kvc.runtime.sessions import Session
from kvc.runtime.tokens import find_tokens
from kvc.schema.errors import (
    BadSetting,
    NoPosition,
    PromptTooLong,
    StateMismatch,
    UnknownName,
)
from kvc.schema.model import Method
from kvc.schema.types import Dim


@dataclass(slots=True)
class Pace:
    """Tokens of one kind and the seconds that they took."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the rate, 0 when nothing ran."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Feeder:
    """Feeds the tokens of one generation to its session.

    Attributes:
        session: that is fed.
        fed: how many tokens the session has taken.
        start: the position before the first of them, None where nothing counts.
        prefill: the pace of the prompt.
        vocabulary: how many logits there are.
    """

    def __init__(self, session: Session, name: str = "session") -> None:
        """Find the methods.

        Args:
            session: of one row.
            name: what messages call it.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: the session has several rows.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        session.check_usable()
        prefills = find_roles(session, "prefill")
        (decode,) = find_roles(session, "decode")
        symbols, longest = session.symbols, session.longest_call
        self._prefills = [chunk_sizes(m, symbols, longest) for m in prefills]
        self._decode = chunk_sizes(decode, symbols)
        self._tokens = find_tokens(prefills[0])
        self.vocabulary: Dim = _logits_of(decode)
        self.session, self._name = session, name
        self.start = _position(session, name)
        self.fed = 0
        self.prefill = Pace()
        self._changes = session.changes
        self._calling = False  # while a call runs, and behind one that broke off

    @property
    def room(self) -> int | None:
        """Return how many more tokens the session takes, None for no limit."""
        if self.start is None or self.session.capacity is None:
            return None
        return self.session.capacity - self.start - self.fed

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Check a prompt before anything runs.

        Raises:
            InputMismatch: the model does not have a token.
            PromptTooLong: there is no room for it.
        """
        if self._tokens is not None:
            self._tokens.check(np.array(prompt, np.int64))
        room, start, capacity = self.room, self.start, self.session.capacity
        if room is None or start is None or capacity is None or len(prompt) <= room:
            return
        raise PromptTooLong(
            row=0, start=start, count=len(prompt), capacity=capacity, room=room
        )

    def feed_prompt(self, prompt: Sequence[int]) -> Logits:
        """Run one or more tokens in chunks; return the logits after the last one.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        logits, at = np.zeros(0, np.float32), 0
        for chunk in plan_chunks(len(prompt), self._prefills, self._decode):
            began = time.perf_counter()
            logits = self._run(chunk, prompt[at : at + chunk.count])
            self.prefill.seconds += time.perf_counter() - began
            self.prefill.tokens += chunk.count
            at += chunk.count
        return logits

    def feed(self, token: int) -> Logits:
        """Run one token; return the logits after it.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        return self._run(Chunk(self._decode.method, 1), (token,))

    def feed_all(self, method: ChunkSizes, tokens: Sequence[int]) -> Logits:
        """Run tokens in one call; return the logits after each, float32 [n, vocab].

        Args:
            method: of the role "prefill_all".
            tokens: as many as it takes.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        made = self._run(Chunk(method.method, len(tokens)), tokens)
        return made.reshape(len(tokens), -1)

    def go_back(self, fed: int) -> bool:
        """Have the session hold no more than the first `fed` tokens.

        What a call that broke off has left is forgotten too.

        Returns:
            False when something else has used it since: nothing happens.

        Raises:
            NotRewindable: a state cannot go back.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        if not self.is_alone and not self._calling:
            return False
        position = _position(self.session, self._name)
        assert position is not None
        assert self.start is not None
        if position > self.start + fed:
            self.session.rewind(position - self.start - fed)
        self.fed = min(fed, position - self.start)
        self._note()
        return True

    def leave_pending(self, tokens: Sequence[int]) -> None:
        """Have the session say what is to be fed next, unless it is used elsewhere."""
        if self.is_alone:
            self.session.leave_pending((tokens,))

    @property
    def is_alone(self) -> bool:
        """Tell whether nothing else has changed what the session holds."""
        return self.session.changes == self._changes

    def _run(self, chunk: Chunk, tokens: Sequence[int]) -> Logits:
        self._check_alone(chunk.method)
        self._calling = True
        made = self.session.call(chunk.method, np.array([tokens], np.int64))
        self.fed += chunk.count
        self._note()
        return cast(Logits, made).reshape(-1)

    def _note(self) -> None:
        self._changes = self.session.changes
        self._calling = False

    def _check_alone(self, method: str) -> None:
        """Check that the session holds what this generation has fed, and no more."""
        if self.is_alone:
            return
        left = None if self.start is None else self.start + self.fed
        found = _position(self.session, self._name)
        raise used_meanwhile(method, self._name, left, found)


def used_meanwhile(
    method: str, name: str, left: object, found: object
) -> StateMismatch:
    """Return the error for a session that something else has used.

    `left` is the position where a generation has left it, `found` where it is; None
    where nothing counts.
    """
    counts = left is not None
    expected = f"{left}, where this generation has left it"
    return StateMismatch(
        method=method,
        state="position" if counts else "session",
        expected=expected if counts else "what this generation has left there",
        found=f"{found if counts else 'something else'}; something else has used the "
        f"{name} meanwhile",
    )


def find_roles(session: Session, role: str) -> list[Method]:
    """Return the methods that have a role, one or more.

    Raises:
        UnknownName: none has.
    """
    found = [method for method in session.methods.values() if method.role == role]
    if not found:
        raise missing_role(session, role, "; a method is given one by Method(role=...)")
    return found


def missing_role(session: Session, role: str, hint: str = "") -> UnknownName:
    """Return the error for a program without a method of a role."""
    roles = dict.fromkeys(m.role for m in session.methods.values() if m.role)
    known = tuple(roles)
    return UnknownName(kind="method of the role", name=role, known=known, hint=hint)


def find_all_logits(session: Session) -> Method | None:
    """Return the method that appends tokens and gives the logits of each, or None."""
    for method in session.methods.values():
        appends = method.writes and method.advance is not None
        if method.role == "prefill_all" and appends:
            return method
    return None


def _logits_of(method: Method) -> Dim:
    return method.graph.values[method.graph.outputs[0]].type.dims[-1]


def _position(session: Session, name: str) -> int | None:
    """Return how many tokens a session of one row holds, None where nothing counts.

    Raises:
        BadSetting: it has several rows.
    """
    try:
        position = session.position
    except NoPosition:
        return None
    if position.size != 1:
        expected = "a session of one row"
        if name == "session":
            expected += ", or a list with a prompt for each"
        raise BadSetting(name=name, expected=expected, found=f"{position.size} rows")
    return int(position.item())
