"""Run the calls of a generation: tokens of each row in, logits of each row out.

In: a session of a program that has methods of the roles "prefill" and "decode", with as
many rows as there are prompts. Out: the logits after the last token of each row, and
how many tokens of each row the session has taken.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.calls.chunks import chunk_sizes, plan_chunks
from kvc.runtime.calls.entries import find_tokens
from kvc.runtime.generation.encoding import Encoding
from kvc.runtime.generation.image_prefill import Picturing, TokenFeed
from kvc.runtime.generation.row import Row
from kvc.runtime.generation.sampling import Logits
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import (
    BadSetting,
    NoPosition,
    PromptTooLong,
    StateMismatch,
)
from kvc.schema.model import Method
from kvc.schema.types import Dim

_Tokens = npt.NDArray[np.int64]
_Lengths = dict[str, npt.NDArray[np.generic]]

_PADDING: Final = 0  # a token of every model; what padding holds does not matter


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
        session: that runs the tokens.
        rows: how far each of its rows is.
        prefill: the pace of the prompts, tokens of all rows together.
        vocabulary: how many logits a token has.
    """

    def __init__(
        self,
        session: Session,
        rows: int = 1,
        name: str = "session",
        encoding: Encoding | None = None,
        picturing: Picturing | None = None,
    ) -> None:
        """Find the methods.

        Args:
            session: of so many rows.
            rows: as many as there are prompts.
            name: what messages call the session.
            encoding: what an encoder is given before the prompts; the session begins
                anew with it.
            picturing: gives embeddings of the prompts, of which one has pictures.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: the session has another number of rows, or there are several and
                no methods that take row lengths.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        session.check_usable()
        prefills = _of_rows(find_roles(session, "prefill"), rows)
        (decode,) = _of_rows(find_roles(session, "decode"), rows)
        starts: Sequence[int | None] = _positions(session) or [None] * rows
        _check_rows(name, rows, len(starts))
        if encoding is not None:
            starts = [None if start is None else 0 for start in starts]
        self._encoding, self._picturing = encoding, picturing
        symbols, longest = session.symbols, session.longest_call
        self._prefills = [chunk_sizes(m, symbols, longest) for m in prefills]
        self._decode = chunk_sizes(decode, symbols)
        self._token_input = find_tokens(prefills[0])
        logits = decode.graph.values[decode.graph.outputs[0]].type
        self.vocabulary: Dim = logits.dims[-1]
        self.session, self._name = session, name
        self.rows = [Row(start, session.capacity) for start in starts]
        self.prefill = Pace()
        self._changes = session.changes
        self._calling = False  # while a call runs, and after one that broke off

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Check prompts, one for each row, before anything runs.

        Raises:
            InputMismatch: the model does not have a token.
            PromptTooLong: there is no room for a prompt.
            BadSetting: pictures do not lie in a prompt as the model reads them.
        """
        if self._picturing is not None:
            self._picturing.plan(prompts)
        for number, (row, prompt) in enumerate(zip(self.rows, prompts, strict=True)):
            if self._token_input is not None:
                self._token_input.check(np.array(prompt, np.int64))
            room, start, capacity = row.room, row.start, row.capacity
            if room is None or start is None or capacity is None:
                continue
            if len(prompt) > room:
                raise PromptTooLong(
                    row=number,
                    rows=len(prompts),
                    start=start,
                    count=len(prompt),
                    capacity=capacity,
                    room=room,
                )

    def feed_prompts(self, prompts: Sequence[Sequence[int]]) -> Logits:
        """Run prompts in chunks; return the logits after the last token of each.

        All begin in the first chunk. A chunk is as wide as what the longest prompt has
        left needs, and a row that has nothing left is not touched.

        Args:
            prompts: of each row one token or more.

        Returns:
            float32 [rows, vocab].

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        self._encode()
        last, at = np.zeros((0, 0), np.float32), [0] * len(prompts)
        for feed in self._plan(prompts):
            pieces = zip(prompts, at, feed.counts, strict=True)
            parts = [prompt[begin : begin + n] for prompt, begin, n in pieces]
            began = time.perf_counter()
            given, beside = None, _Lengths()
            if self._picturing is not None:
                given = self._picturing.embeddings(prompts, at, feed.counts)
                beside |= self._picturing.positions(prompts, at, feed.counts)
            logits = self.run(feed.method, parts, given, beside)
            self.prefill.seconds += time.perf_counter() - began
            self.prefill.tokens += sum(feed.counts)
            for row, part in enumerate(parts):
                logits[row] = logits[row] if part or not last.size else last[row]
            last = logits
            at = [begin + n for begin, n in zip(at, feed.counts, strict=True)]
        return last

    def _plan(self, prompts: Sequence[Sequence[int]]) -> list[TokenFeed]:
        """Return the calls for prompts."""
        if self._picturing is not None:
            return self._picturing.plan(prompts)
        longest, at, planned = max(map(len, prompts)), 0, list[TokenFeed]()
        for chunk in plan_chunks(longest, self._prefills, self._decode):
            left = (max(0, len(prompt) - at) for prompt in prompts)
            counts = tuple(min(chunk.count, count) for count in left)
            planned.append(TokenFeed(chunk.method, counts))
            at += chunk.count
        return planned

    def _encode(self) -> None:
        """Run the encoder, where there is one; what it takes is part of the prompts."""
        if self._encoding is None:
            return
        began = time.perf_counter()
        self._check_alone(self._encoding.method)
        encoding = self._encoding
        self.session.call(encoding.method, encoding.given, **encoding.row_lengths)
        self._changes = self.session.changes
        self.prefill.seconds += time.perf_counter() - began

    def feed(self, tokens: Sequence[int | None]) -> Logits:
        """Run one token of each row, none where it is None.

        Returns:
            The logits after each, float32 [rows, vocab].

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        parts = [() if token is None else (token,) for token in tokens]
        return self.run(self._decode.method, parts)

    def run(
        self,
        method: str,
        parts: Sequence[Sequence[int]],
        embeddings: Array | None = None,
        beside: _Lengths | None = None,
    ) -> Logits:
        """Run tokens of each row in one call.

        Args:
            method: of the role "prefill" or "decode"; of one row, "prefill_all" too.
            parts: tokens of each row, as many as the method takes in the longest.
            embeddings: [rows, longest, hidden], which the method takes in place of the
                tokens.
            beside: what else the method takes, by name.

        Returns:
            What the call gives: float32 [rows, vocab], or of each token of one row
            [tokens, vocab].

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        self._check_alone(method)
        given = _padded(parts) if embeddings is None else embeddings
        named = self._row_lengths(method, parts) | (beside or {})
        self._calling = True
        logits = cast(Logits, self.session.call(method, given, **named))
        for number, part in enumerate(parts):  # quicker than a strict zip of few
            self.rows[number].fed += len(part)
        self._changes, self._calling = self.session.changes, False
        return logits.reshape(-1, logits.shape[-1])

    def go_back(self, fed: int, least: int, most: int) -> bool:
        """Have the one row hold no more than the first `fed` tokens, if it can.

        What a call that broke off has left is forgotten too. States that go back by
        copies may have none there: then it holds somewhat fewer, or more, as `rows` say
        afterwards.

        Args:
            fed: how many it may hold.
            least: how many it holds at least, where it has as many.
            most: how many it may hold where it cannot go back as far.

        Returns:
            False when something else has used the session since: nothing happens.

        Raises:
            NotRewindable: a state can go back to nothing of this.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        if not self._is_alone and not self._calling:
            return False
        (row,) = self.rows
        start, self._calling = row.start or 0, True  # broken off until it is noted
        held = int(self.session.position.item()) - start
        if held > fed:
            ends = (*range(fed, least - 1, -1), *range(fed + 1, most + 1))
            way = self.session.going_back
            held = way.to_one_of([start + end for end in ends]) - start
        row.fed = held
        self._changes, self._calling = self.session.changes, False
        return True

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Record in the session what is to be run next, unless others use it."""
        if self._is_alone:
            self.session.leave_pending(tokens)

    @property
    def methods(self) -> frozenset[str]:
        """Return the names of the methods that it calls."""
        return frozenset(one.method for one in (*self._prefills, self._decode))

    @property
    def _is_alone(self) -> bool:
        """Tell whether nothing else has changed what the session holds."""
        return self.session.changes == self._changes

    def _row_lengths(self, name: str, parts: Sequence[Sequence[int]]) -> _Lengths:
        """Return how many tokens each row has; a single row has no row lengths."""
        if len(parts) == 1:
            return {}
        method = self.session.methods[name]
        assert method.row_lengths is not None
        value = method.graph.values[method.graph.inputs[method.row_lengths]]
        lengths = np.array([len(part) for part in parts], value.type.dtype.numpy)
        return {method.input_names[method.row_lengths]: lengths}

    def _check_alone(self, method: str) -> None:
        """Check that the session holds what this generation has fed, and no more.

        Raises:
            StateMismatch: something else has used it.
        """
        if self._is_alone:
            return
        left = [row.start + row.fed for row in self.rows if row.start is not None]
        found = _positions(self.session)
        raise StateMismatch(
            method=method,
            state="position" if left else "session",
            expected=f"{_one(left)}, where this generation has left it"
            if left
            else "what this generation has left there",
            found=f"{_one(found) if found else 'something else'}; "
            f"something else has used the {self._name} meanwhile",
        )


def _padded(parts: Sequence[Sequence[int]]) -> _Tokens:
    """Return tokens int64 [rows, longest]."""
    if len(parts) == 1:
        return np.array(parts, np.int64)
    tokens = np.full((len(parts), max(map(len, parts))), _PADDING, np.int64)
    for row, part in zip(tokens, parts, strict=True):
        row[: len(part)] = part
    return tokens


def check_session(session: object) -> None:
    """Check that something is a session of a program that can generate.

    Raises:
        BadSetting: it is no session.
        UnknownName: no method has the role `prefill`, or none `decode`.
    """
    if not isinstance(session, Session):
        expected, found = "a Session, as program.session() opens it", repr(session)
        raise BadSetting(name="session", expected=expected, found=found)
    for role in ("prefill", "decode"):
        find_roles(session, role)


def _of_rows(methods: Sequence[Method], rows: int) -> Sequence[Method]:
    """Return the methods that take so many rows of different lengths.

    Raises:
        BadSetting: there is none.
    """
    if rows == 1:
        return methods
    found = [method for method in methods if method.row_lengths is not None]
    if not found:
        raise BadSetting(
            name="prompt",
            expected=f"one, since no method of the role {methods[0].role} takes how "
            "many tokens of each row count (lengths, active)",
            found=f"{rows}",
        )
    return found


def _check_rows(name: str, prompts: int, rows: int) -> None:
    """Check that a session has a row for each prompt, and no more.

    Raises:
        BadSetting: it has another number.
    """
    if rows == prompts:
        return
    if prompts > 1:
        raise BadSetting(
            name="prompt",
            expected=f"as many as the session has rows, {rows} "
            f"(session(batch={prompts}) has {prompts})",
            found=f"{prompts}",
        )
    more = ", or a list with a prompt for each" if name == "session" else ""
    raise BadSetting(
        name=name, expected=f"a session of one row{more}", found=f"{rows} rows"
    )


def _positions(session: Session) -> list[int] | None:
    """Return how many tokens each row holds, None where nothing counts."""
    try:
        return list(map(int, session.position))
    except NoPosition:
        return None


def _one(positions: Sequence[int]) -> str:
    """Return the positions of rows for a message, of one row its number alone."""
    return f"{positions[0] if len(positions) == 1 else positions}"
