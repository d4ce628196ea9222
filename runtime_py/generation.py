"""Token generation: chunked prefill, then one token at a time.

In: a session of a program that has methods of the roles "prefill" and "decode", and a
prompt. Out: tokens as they are made, why it stopped, and how fast it went. Needs numpy
alone. A token that has been handed out enters the cache only when the next one is
asked for, so the last one never does.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from kvc.runtime.sampling import Logits, choose_token
from kvc.runtime.sessions import Session
from kvc.schema.errors import (
    BadSetting,
    CacheOverflow,
    NoPosition,
    UnknownName,
    listing,
)
from kvc.schema.model import Method
from kvc.schema.types import bounds

Reason = Literal["stop", "length", "max_tokens"]
_MOST = 2**63 - 1  # what int64 holds


@dataclass(slots=True)
class Pace:
    """Tokens of one kind and the seconds that they took."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the rate, 0 when nothing ran."""
        return self.tokens / self.seconds if self.seconds else 0.0


def generate(
    session: Session,
    prompt_tokens: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
    stop_tokens: Sequence[int] = (),
) -> "Generation":
    """Continue a prompt on what the session already holds.

    Args:
        session: of a program with the roles "prefill" and "decode".
        prompt_tokens: at least one.
        max_tokens: the most tokens to make.
        temperature: 0 always takes the likeliest token.
        top_k: choose among the k likeliest only.
        seed: makes a choice with temperature repeatable.
        stop_tokens: end the generation; they are not handed out.

    Raises:
        UnknownName: the program lacks a role.
        BadSetting: a setting is impossible.
        CacheOverflow: the prompt is longer than the room that is left. Nothing has run.
    """
    _check_settings(prompt_tokens, max_tokens, temperature, top_k)
    _check_room(session, len(prompt_tokens))
    sampler = _Sampler(temperature, top_k, np.random.default_rng(seed))
    stops = frozenset(stop_tokens)
    return Generation(session, tuple(prompt_tokens), max_tokens, stops, sampler)


@dataclass(frozen=True, slots=True)
class _Sampler:
    temperature: float
    top_k: int | None
    random: np.random.Generator

    def choose(self, logits: Logits) -> int:
        return choose_token(logits, self.temperature, self.top_k, self.random)


class Generation(Iterator[int]):
    """Tokens as they are made.

    Attributes:
        reason: why it ended: "stop", "length" (the cache is full) or "max_tokens"; None
            while it goes on.
        prefill, decode: tokens run by each, and their pace.
    """

    def __init__(
        self,
        session: Session,
        prompt: tuple[int, ...],
        max_tokens: int,
        stop_tokens: frozenset[int],
        sampler: _Sampler,
    ) -> None:
        self._prefill = find_role(session, "prefill")
        self._decode = find_role(session, "decode")
        self._session, self._prompt = session, prompt
        self._left, self._stops, self._sampler = max_tokens, stop_tokens, sampler
        self.reason: Reason | None = None
        self.prefill, self.decode = Pace(), Pace()
        self._tokens = self._make()

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> int:
        return next(self._tokens)

    def _make(self) -> Iterator[int]:
        if self._left == 0:
            self.reason = "max_tokens"
            return
        logits = self._run_prompt()
        while True:
            token = self._sampler.choose(logits)
            if token in self._stops:
                self.reason = "stop"
                return
            self._left -= 1
            # Known before the token goes out: the caller may not come back for another.
            self.reason = self._limit()
            yield token
            if self.reason is not None:
                return
            try:
                logits = self._run(self._decode, (token,), self.decode)
            except CacheOverflow:
                self.reason = "length"
                return

    def _limit(self) -> Reason | None:
        if self._left == 0:
            return "max_tokens"
        room = room_left(self._session)
        return "length" if room is not None and room < 1 else None

    def _run_prompt(self) -> Logits:
        """Run the prompt in chunks of the prefill method, the rest token by token."""
        dim = self._prefill.graph.values[self._prefill.graph.inputs[0]].type.dims[1]
        lower, upper = bounds(dim, self._session.symbols)
        logits = np.zeros(0, np.float32)
        start = 0
        while start < len(self._prompt):
            count = min(upper, len(self._prompt) - start)
            method = self._prefill if count >= lower else self._decode
            count = count if count >= lower else 1
            logits = self._run(
                method, self._prompt[start : start + count], self.prefill
            )
            start += count
        return logits

    def _run(self, method: Method, tokens: tuple[int, ...], pace: Pace) -> Logits:
        began = time.perf_counter()
        made = self._session.call(method.name, np.array([tokens], np.int64))
        pace.seconds += time.perf_counter() - began
        pace.tokens += len(tokens)
        return cast(Logits, made).reshape(-1)


def find_role(session: Session, role: str) -> Method:
    """Return the method that has a role.

    Raises:
        UnknownName: none has.
    """
    for method in session.methods.values():
        if method.role == role:
            return method
    known = listing([m.role for m in session.methods.values() if m.role])
    raise UnknownName(kind="method of the role", name=role, known=known)


def room_left(session: Session) -> int | None:
    """Return how many more tokens the session takes, None where nothing says it."""
    if session.capacity is None:
        return None
    try:
        return session.capacity - int(session.position.max())
    except NoPosition:
        return None


def _check_room(session: Session, count: int) -> None:
    room = room_left(session)
    if room is not None and count > room:
        assert session.capacity is not None
        start = session.capacity - room
        raise CacheOverflow(row=0, start=start, count=count, capacity=session.capacity)


def _check_settings(
    prompt: Sequence[int], max_tokens: int, temperature: float, top_k: int | None
) -> None:
    if not prompt:
        raise BadSetting(
            name="prompt_tokens", expected="at least one token", found="none"
        )
    for token in prompt:
        if not 0 <= token <= _MOST:
            raise BadSetting(
                name="prompt_tokens", expected=f"tokens of 0 to {_MOST}", found=token
            )
    if max_tokens < 0:
        raise BadSetting(name="max_tokens", expected="0 or more", found=max_tokens)
    if not 0 <= temperature < float("inf"):
        raise BadSetting(name="temperature", expected="0 or more", found=temperature)
    if top_k is not None and top_k < 1:
        raise BadSetting(name="top_k", expected="1 or more, or None", found=top_k)
