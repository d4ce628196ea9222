"""What a batch does to its session: tokens of each row in, logits of each row out.

In: a session of as many rows as there are prompts, of a program whose methods of the
roles "prefill" and "decode" take how many tokens of each row count. Out: the logits
behind each row's last token, and how many tokens of each row the session has taken.
"""

import time
from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.chunks import chunk_sizes, plan_chunks
from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.feeding import Pace, find_roles, used_meanwhile
from kvc.runtime.sessions import Session
from kvc.runtime.tokens import find_tokens
from kvc.schema.errors import BadSetting, NoPosition, PromptTooLong
from kvc.schema.model import Method

_Ids = npt.NDArray[np.int64]

_PADDING: Final = 0  # a token of every model; what padding holds does not matter


class BatchFeeder:
    """Feeds the tokens of a batch to its session.

    Attributes:
        fed: how many tokens of each row the session has taken.
        starts: the positions of the rows before, None where nothing counts.
        prefill: the pace of the prompts, tokens of all rows together.
    """

    def __init__(self, session: Session, rows: int) -> None:
        """Find the methods.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: the session has another number of rows, or methods that do not
                take how many tokens of each row count.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        session.check_usable()
        prefills = _counting(find_roles(session, "prefill"), rows)
        (decode,) = _counting(find_roles(session, "decode"), rows)
        self.starts = _positions(session)
        _check_rows(rows, self.starts)
        self._methods = {method.name: method for method in (*prefills, decode)}
        symbols, longest = session.symbols, session.longest_call
        self._prefills = [chunk_sizes(m, symbols, longest) for m in prefills]
        self._decode = chunk_sizes(decode, symbols)
        self._vocabulary = find_tokens(prefills[0])
        self._session = session
        self.fed = [0] * rows
        self.prefill = Pace()
        self._changes = session.changes

    def room(self, row: int) -> int | None:
        """Return how many more tokens a row takes, None for no limit."""
        capacity = self._session.capacity
        if self.starts is None or capacity is None:
            return None
        return capacity - self.starts[row] - self.fed[row]

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Check prompts before anything runs.

        Raises:
            InputMismatch: the model does not have a token.
            PromptTooLong: there is no room for a row's prompt.
        """
        for row, prompt in enumerate(prompts):
            if self._vocabulary is not None:
                self._vocabulary.check(np.array(prompt, np.int64))
            room, starts, capacity = self.room(row), self.starts, self._session.capacity
            if (
                room is None
                or starts is None
                or capacity is None
                or len(prompt) <= room
            ):
                continue
            raise PromptTooLong(
                row=row,
                rows=len(prompts),
                start=starts[row],
                count=len(prompt),
                capacity=capacity,
                room=room,
            )

    def feed_prompts(self, prompts: Sequence[Sequence[int]]) -> list[Logits]:
        """Run prompts in chunks; return the logits behind the last token of each.

        All begin in the first chunk. A chunk is as wide as what the longest prompt has
        left needs, and a row that has nothing left is not touched.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        last = [np.zeros(0, np.float32) for _ in prompts]
        longest = max(map(len, prompts))
        for chunk in plan_chunks(longest, self._prefills, self._decode):
            rows = [
                prompt[fed : fed + chunk.count]
                for prompt, fed in zip(prompts, self.fed, strict=True)
            ]
            began = time.perf_counter()
            logits = self._run(chunk.method, rows, chunk.count)
            self.prefill.seconds += time.perf_counter() - began
            self.prefill.tokens += sum(map(len, rows))
            for row, given in enumerate(rows):
                last[row] = logits[row] if given else last[row]
        return last

    def feed(self, tokens: Sequence[int | None]) -> list[Logits]:
        """Run one token of each row, none where it is None; return logits by row.

        Raises:
            StateMismatch: something else has used the session.
            ExecutionError: as `Session.call`.
        """
        rows = [() if token is None else (token,) for token in tokens]
        return self._run(self._decode.method, rows, 1)

    def leave_pending(self, rows: Sequence[Sequence[int]]) -> None:
        """Have the session say what is to be fed next, unless it is used elsewhere."""
        if self._is_alone:
            self._session.leave_pending(rows)

    @property
    def _is_alone(self) -> bool:
        return self._session.changes == self._changes

    def _run(
        self, name: str, rows: Sequence[Sequence[int]], width: int
    ) -> list[Logits]:
        self._check_alone(name)
        tokens = np.full((len(rows), width), _PADDING, np.int64)
        for row, given in zip(tokens, rows, strict=True):
            row[: len(given)] = given
        counts = np.array([len(given) for given in rows], np.int64)
        made = self._session.call(name, tokens, **_counts(self._methods[name], counts))
        self.fed = [a + b for a, b in zip(self.fed, counts.tolist(), strict=True)]
        self._changes = self._session.changes
        return list(cast(Logits, made).reshape(len(rows), -1))

    def _check_alone(self, method: str) -> None:
        """Check that the session holds what this batch has fed, and no more."""
        if self._is_alone:
            return
        left = None
        if self.starts is not None:
            left = [a + b for a, b in zip(self.starts, self.fed, strict=True)]
        raise used_meanwhile(method, "session", left, _positions(self._session))


def _counts(method: Method, counts: _Ids) -> dict[str, npt.NDArray[np.generic]]:
    """Return the argument that says how many tokens of each row count."""
    if method.counts is None:
        return {}
    value = method.graph.values[method.graph.inputs[method.counts]]
    given = counts.astype(value.type.dtype.numpy)
    return {method.input_names[method.counts]: given}


def _counting(methods: Sequence[Method], rows: int) -> Sequence[Method]:
    """Return the methods that take how many tokens of each row count.

    Raises:
        BadSetting: there is none, and there are several rows.
    """
    if rows == 1:
        return methods
    found = [method for method in methods if method.counts is not None]
    if not found:
        role = methods[0].role
        raise BadSetting(
            name="prompt",
            expected=f"one, since no method of the role {role} takes how many tokens "
            "of each row count (lengths, active)",
            found=f"{rows}",
        )
    return found


def _check_rows(prompts: int, positions: Sequence[int] | None) -> None:
    """Check that a session has a row for each prompt, and no more.

    Raises:
        BadSetting: it has another number.
    """
    if positions is not None and len(positions) != prompts:
        expected = (
            f"as many as the session has rows, {len(positions)} "
            f"(session(batch={prompts}) has {prompts})"
        )
        raise BadSetting(name="prompt", expected=expected, found=f"{prompts}")


def _positions(session: Session) -> list[int] | None:
    """Return how many tokens each row holds, None where nothing counts."""
    try:
        found: list[int] = session.position.tolist()
    except NoPosition:
        return None
    return found
