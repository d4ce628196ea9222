"""Run the calls of a generation: tokens of each row in, logits of each row out.

In: a session of a program that has methods of the roles "prefill" and "decode", with as
many rows as there are prompts. Out: the logits after the last token of each row, and
how many tokens of each row the session holds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from kvc.runtime.calls.chunks import Chunk, chunk_sizes, plan_chunks
from kvc.runtime.generation.answer import Row
from kvc.runtime.generation.encoding import Encoding
from kvc.runtime.generation.image_prefill import Picturing, TokenFeed
from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.session_rows import (
    check_rows,
    of_rows,
    positions,
    positions_as_text,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import PromptTooLong, StateMismatch
from kvc.schema.types import Dim

_Tokens = npt.NDArray[np.int64]
_Lengths = dict[str, npt.NDArray[np.generic]]

_PADDING: Final = 0  # a token of every vocabulary; padding never affects results


@dataclass(slots=True)
class Pace:
    """A number of tokens, and how many seconds it took to run these tokens."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens per second, 0 if nothing has run."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Feeder:
    """Feeds the tokens of one generation to its session.

    Attributes:
        session: the session that runs the tokens.
        rows: the number of tokens that each row has run.
        prefill: how many tokens the prompts of all rows have together, and the time
            that the prompts took.
        vocabulary: the number of logits that the model returns for a token.
        logprobs: for each row the log probabilities of its prompt, empty if they are
            not asked for.
    """

    logprobs: Sequence[Sequence[TokenLogprob]] = ()

    def __init__(
        self,
        session: Session,
        rows: int = 1,
        name: str = "session",
        encoding: Encoding | None = None,
        picturing: Picturing | None = None,
    ) -> None:
        """Find the methods of a session.

        Args:
            session: a session of `rows` rows.
            rows: the number of prompts.
            name: the name of the session in messages.
            encoding: the call of the encoder, which runs before the prompts and resets
                the session; None without an encoder.
            picturing: computes the embeddings of prompts with pictures.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: the session does not have `rows` rows, or has several rows but
                no methods that take row lengths.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        session.check_usable()
        prefills = of_rows(find_roles(session, "prefill"), rows, name)
        (decode,) = of_rows(find_roles(session, "decode"), rows, name)
        starts: Sequence[int | None] = positions(session) or [None] * rows
        check_rows(name, rows, len(starts))
        if encoding is not None:
            starts = [None if start is None else 0 for start in starts]
        self._encoding, self._picturing = encoding, picturing
        symbols, longest = session.symbols, session.longest_call
        self._prefills = [chunk_sizes(m, symbols, longest) for m in prefills]
        self._decode = chunk_sizes(decode, symbols)
        self._token_input = session.token_input(prefills[0])
        logits = decode.graph.values[decode.graph.outputs[0]].type
        self.vocabulary: Dim = logits.dims[-1]
        self.session, self._name = session, name
        self.rows = [Row(start, session.capacity) for start in starts]
        self.prefill = Pace()
        self._changes = session.changes
        self._calling = False  # also True after a call that failed

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Check prompts, one for each row, before anything runs.

        Raises:
            InputMismatch: a token is not in the vocabulary.
            PromptTooLong: a row has no room for its prompt.
            BadSetting: the image tokens of a prompt are not adjacent, or two pictures
                are not separated by another token, and the model requires that.
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
        """Run prompts in chunks; return the logits after the last token of each prompt.

        All prompts begin in the first chunk. The prompt with the most tokens left
        determines the width of a chunk. A row whose prompt has ended does not change.
        Returns float32 [rows, vocab].

        Args:
            prompts: the tokens of each row's prompt, at least one.

        Raises:
            StateMismatch: other code has used the session since the last call of the
                feeder.
            ExecutionError: as `Session.call`.
        """
        self._encode()
        began, counted = time.perf_counter(), sum(map(len, prompts))
        keeps = self.session.going_back.keeps_at is not None
        planned = self._plan(prompts)
        logits = self._feed_planned(prompts, planned, self._picturing, keeps)
        self.prefill.seconds += time.perf_counter() - began
        self.prefill.tokens += counted
        return logits

    def feed_parts(self, parts: Sequence[Sequence[int]]) -> Logits:
        """Run further tokens of each row, in as few calls as the methods allow.

        Args:
            parts: the tokens of each row, at least one in all; rows without tokens do
                not change.

        Returns:
            The logits after the last token of each row that has tokens, float32 [rows,
            vocab]. Other rows of the result have no meaning.

        Raises:
            StateMismatch, ExecutionError: as `feed_prompts`.
        """
        longest = max(map(len, parts))
        if longest == 1:
            return self.run(self._decode.method, parts)
        return self._feed_planned(parts, self._plan_tokens(parts, longest))

    def _feed_planned(
        self,
        parts: Sequence[Sequence[int]],
        planned: Sequence[TokenFeed],
        picturing: Picturing | None = None,
        keeps: bool = False,
    ) -> Logits:
        """Run the planned calls for the tokens of each row.

        Args:
            parts: the tokens of each row.
            planned: the calls.
            picturing: computes embeddings, if the rows have pictures.
            keeps: whether the session keeps copies of its states after each call.

        Returns:
            The logits after the last token of each row that has tokens, float32 [rows,
            vocab].
        """
        last, at = np.zeros((0, 0), np.float32), [0] * len(parts)
        for feed in planned:
            pieces = zip(parts, at, feed.counts, strict=True)
            run = [tokens[begin : begin + n] for tokens, begin, n in pieces]
            given, beside = None, _Lengths()
            if picturing is not None:
                given = picturing.embeddings(parts, at, feed.counts)
                beside |= picturing.positions(parts, at, feed.counts)
            logits = self.run(feed.method, run, given, beside)
            if keeps:
                self.session.going_back.keep()
            for row, part in enumerate(run):
                logits[row] = logits[row] if part or not last.size else last[row]
            last = logits
            at = [begin + n for begin, n in zip(at, feed.counts, strict=True)]
        return last

    def _plan(self, prompts: Sequence[Sequence[int]]) -> list[TokenFeed]:
        if self._picturing is not None:
            return self._picturing.plan(prompts)
        sizes = self._parts_of(max(map(len, prompts)))
        return self._plan_tokens(prompts, *sizes)

    def _plan_tokens(
        self, parts: Sequence[Sequence[int]], *sizes: int
    ) -> list[TokenFeed]:
        at, planned, chunks = 0, list[TokenFeed](), list[Chunk]()
        for count in sizes:
            chunks += plan_chunks(count, self._prefills, self._decode)
        for chunk in chunks:
            left = (max(0, len(tokens) - at) for tokens in parts)
            counts = tuple(min(chunk.count, count) for count in left)
            planned.append(TokenFeed(chunk.method, counts))
            at += chunk.count
        return planned

    def _parts_of(self, count: int) -> Sequence[int]:
        """Return the sizes of a prompt's parts: it ends where copies are to be kept."""
        wanted = self.session.going_back.keeps_at
        first = 0 if wanted is None else wanted - (self.rows[0].start or 0)
        return [first, count - first] if 0 < first < count else [count]

    def _encode(self) -> None:
        """Run the encoder, if the program has one; add the time to `prefill`."""
        if self._encoding is None:
            return
        began = time.perf_counter()
        self._check_alone(self._encoding.method)
        encoding = self._encoding
        self.session.call(encoding.method, encoding.given, **encoding.row_lengths)
        self._changes = self.session.changes
        self.prefill.seconds += time.perf_counter() - began

    def feed(self, tokens: Sequence[int | None]) -> Logits:
        """Run one token of each row; skip rows whose token is None.

        Returns the logits after each row's token, float32 [rows, vocab].

        Raises:
            StateMismatch, ExecutionError: as `feed_prompts`.
        """
        parts = [() if token is None else (token,) for token in tokens]
        return self.run(self._decode.method, parts)

    def run(
        self,
        method: str,
        parts: Sequence[Sequence[int]],
        embeddings: Array | None = None,
        beside: _Lengths | None = None,
        width: int = 0,
    ) -> Logits:
        """Run tokens of each row in one call.

        Args:
            method: a method of the role "prefill", "decode" or "prefill_all".
            parts: the tokens of each row; the method must take as many tokens as the
                longest row has.
            embeddings: float32 [rows, longest, hidden], in place of the tokens.
            beside: further arguments for the method, by name.
            width: the number of tokens that several rows are padded to, if longer than
                the longest row.

        Returns:
            The logits: float32 [rows, vocab] after the last token of each row; from a
                method of the role "prefill_all" [rows * tokens, vocab] after each
                token, also after padding.

        Raises:
            StateMismatch, ExecutionError: as `feed_prompts`.
        """
        self._check_alone(method)
        given = _padded(parts, width) if embeddings is None else embeddings
        named = self._row_lengths(method, parts) | (beside or {})
        self._calling = True
        logits = cast(Logits, self.session.call(method, given, **named))
        for number, part in enumerate(parts):  # faster than a strict zip of few items
            self.rows[number].fed += len(part)
        self._changes, self._calling = self.session.changes, False
        return logits.reshape(-1, logits.shape[-1])

    def go_back(self, wanted: Sequence[Sequence[int]]) -> bool:
        """Rewind each row to the first of its wanted token counts that it can reach.

        A row that holds no more than the first count stays as it is. Tokens of a failed
        call are dropped. `rows` has the new counts afterwards.

        Returns whether the session has been rewound: not if other code has used it
        since the last call of the feeder.

        Args:
            wanted: for each row the counts, in order of preference.

        Raises:
            NotRewindable: a row can reach none of its counts.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        if not self._is_alone and not self._calling:
            return False
        self._calling = True  # stays set if this fails
        found: Sequence[int] = list(map(int, self.session.position))
        ends: list[Sequence[int]] = []
        for row, at, counts in zip(self.rows, found, wanted, strict=True):
            start = row.start or 0
            stays = at <= start + counts[0]
            ends.append([at] if stays else [start + count for count in counts])
        if ends != [[at] for at in found]:
            found = self.session.going_back.to_one_of(ends)
        for row, at in zip(self.rows, found, strict=True):
            row.fed = at - (row.start or 0)
        self._changes, self._calling = self.session.changes, False
        return True

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store the tokens to run next, unless other code has used the session."""
        if self._is_alone:
            self.session.leave_pending(tokens)

    @property
    def methods(self) -> frozenset[str]:
        """Return the names of the methods that the feeder calls."""
        return frozenset(one.method for one in (*self._prefills, self._decode))

    @property
    def _is_alone(self) -> bool:
        """Tell whether the session has been unchanged since the feeder's last call."""
        return self.session.changes == self._changes

    def _row_lengths(self, name: str, parts: Sequence[Sequence[int]]) -> _Lengths:
        """Return the row lengths of a call, integers [rows], by the argument's name.

        Args:
            name: the method to call.
            parts: the tokens of each row; the result is empty for a single row.
        """
        if len(parts) == 1:
            return {}
        method = self.session.methods[name]
        assert method.row_lengths is not None
        value = method.graph.values[method.graph.inputs[method.row_lengths]]
        lengths = np.array([len(part) for part in parts], value.type.dtype.numpy)
        return {method.input_names[method.row_lengths]: lengths}

    def _check_alone(self, method: str) -> None:
        """Check that the session holds exactly the tokens that the feeder has run.

        Raises:
            StateMismatch: other code has used the session.
        """
        if self._is_alone:
            return
        left = [row.start + row.fed for row in self.rows if row.start is not None]
        found = positions(self.session)
        raise StateMismatch(
            method=method,
            state="position" if left else "session",
            expected=f"{positions_as_text(left)}, where this generation has left it"
            if left
            else "the content that this generation has left",
            found=f"{positions_as_text(found) if found else 'other content'}; "
            f"something else has used the {self._name} meanwhile",
        )


def _padded(parts: Sequence[Sequence[int]], width: int) -> _Tokens:
    """Return tokens as an array int64 [rows, longest], padded at the end.

    Several rows are padded to `width` if that is more.
    """
    if len(parts) == 1:
        return np.array(parts, np.int64)
    longest = max(width, *map(len, parts))
    tokens = np.full((len(parts), longest), _PADDING, np.int64)
    for row, part in zip(tokens, parts, strict=True):
        row[: len(part)] = part
    return tokens
