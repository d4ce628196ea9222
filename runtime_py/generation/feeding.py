"""What a generation does to its session: tokens in, logits out, nothing else.

In: a session of a program that has methods of the roles "prefill" and "decode". Out:
the logits that follow the last token, and what the session holds by then.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.chunks import Chunk, chunk_sizes, plan_chunks
from kvc.runtime.sessions import Session
from kvc.runtime.tokens import find_tokens
from kvc.schema.errors import (
    BadSetting,
    NoPosition,
    PromptTooLong,
    StateMismatch,
    UnknownName,
    listing,
)
from kvc.schema.model import Method


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
        fed: how many of them the session has taken.
        start: the position before the first of them, None where nothing counts.
        prefill: the pace of the prompt.
    """

    def __init__(self, session: Session) -> None:
        """Find the methods.

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
        self._session = session
        self.start = _position(session)
        self.fed = 0
        self.prefill = Pace()

    @property
    def room(self) -> int | None:
        """Return how many more tokens the session takes, None for no limit."""
        if self.start is None or self._session.capacity is None:
            return None
        return self._session.capacity - self.start - self.fed

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Check a prompt before anything runs.

        Raises:
            InputMismatch: the model does not have a token.
            PromptTooLong: there is no room for it.
        """
        if self._tokens is not None:
            self._tokens.check(np.array(prompt, np.int64))
        room = self.room
        if room is not None and len(prompt) > room:
            raise PromptTooLong(
                row=0,
                start=self.start,
                count=len(prompt),
                capacity=self._session.capacity,
                room=room,
            )

    def feed_prompt(self, prompt: Sequence[int]) -> Logits:
        """Run a prompt in chunks; return the logits after its last token.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        logits = np.zeros(0, np.float32)
        for chunk in plan_chunks(len(prompt), self._prefills, self._decode):
            tokens = prompt[self.fed : self.fed + chunk.count]
            began = time.perf_counter()
            logits = self._run(chunk, tokens)
            self.prefill.seconds += time.perf_counter() - began
            self.prefill.tokens += chunk.count
        return logits

    def feed(self, token: int) -> Logits:
        """Run one token; return the logits after it.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        return self._run(Chunk(self._decode.method, 1), (token,))

    def _run(self, chunk: Chunk, tokens: Sequence[int]) -> Logits:
        self._check_place(chunk.method)
        made = self._session.call(chunk.method, np.array([tokens], np.int64))
        self.fed += chunk.count
        return cast(Logits, made).reshape(-1)

    def _check_place(self, method: str) -> None:
        """Check that the session holds what this generation has fed, and no more."""
        if self.start is None:
            return
        expected, found = self.start + self.fed, _position(self._session)
        if found != expected:
            raise StateMismatch(
                method=method,
                state="position",
                expected=f"{expected}, where this generation has left it",
                found=f"{found}; something else has used the session meanwhile",
            )


def find_roles(session: Session, role: str) -> list[Method]:
    """Return the methods that have a role, one or more.

    Raises:
        UnknownName: none has.
    """
    found = [method for method in session.methods.values() if method.role == role]
    if not found:
        roles = dict.fromkeys(m.role for m in session.methods.values() if m.role)
        known = listing(list(roles))
        raise UnknownName(kind="method of the role", name=role, known=known)
    return found


def _position(session: Session) -> int | None:
    """Return how many tokens a session of one row holds, None where nothing counts.

    Raises:
        BadSetting: it has several rows.
    """
    try:
        position = session.position
    except NoPosition:
        return None
    if position.size != 1:
        expected = "a session of one row, or a list with a prompt for each"
        found = f"{position.size} rows"
        raise BadSetting(name="session", expected=expected, found=found)
    return int(position.item())
