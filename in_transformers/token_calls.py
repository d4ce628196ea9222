"""Run tokens on sessions: the tokens of each row in, logits of each row out.

In: a session, the tokens of its rows. Out: the logits after the last tokens of each
row. `Feeder` of `kvc.runtime.generation` does this for one generation; here a session
is also forked, rewound and reordered between calls.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from kvc.runtime import BadSetting, Session
from kvc.runtime.calls.chunks import Chunk, chunk_sizes, plan_chunks
from kvc.runtime.generation.image_prefill import Picturing
from kvc.runtime.generation.picture_places import PREFILL
from kvc.runtime.generation.session_rows import of_rows
from kvc.runtime.sessions.methods import find_all_logits, find_roles

Floats = npt.NDArray[np.float32]
Tokens = Sequence[int]


class TokenCalls:
    """The calls that run tokens on sessions of one program with as many rows.

    Attributes:
        vocabulary: the number of logits of a token.
    """

    def __init__(self, session: Session, rows: int) -> None:
        """Find the methods of a session of `rows` rows.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: there are several rows, but no methods that take row lengths.
        """
        prefills = of_rows(find_roles(session, "prefill"), rows)
        (decode,) = of_rows(find_roles(session, "decode"), rows)
        symbols, longest = session.symbols, session.longest_call
        self._prefills = [chunk_sizes(m, symbols, longest) for m in prefills]
        self._decode = chunk_sizes(decode, symbols)
        every = find_all_logits(session)
        self._every = [] if every is None else [chunk_sizes(every, symbols, longest)]
        logits = decode.graph.values[decode.graph.outputs[0]].type
        self.vocabulary = int(cast(int, logits.dims[-1]))

    def run(self, session: Session, parts: Sequence[Tokens], keep: int) -> list[Floats]:
        """Run the tokens of each row; rows without tokens do not change.

        Args:
            session: the session.
            parts: the tokens of each row.
            keep: how many last logits of each row are needed, 1 or more.

        Returns:
            For each row the logits after its last tokens, float32 [n, vocab]; n is
            `keep`, or the number of the row's tokens if that is lower.

        Raises:
            ExecutionError: as `Session.call`.
        """
        longest = max(map(len, parts))
        if keep == 1 or longest <= 1:
            return self._last(session, parts, self._planned(longest))
        if len(parts) == 1 and longest > keep:
            (tokens,) = parts
            head = self._planned(longest - keep)
            self._last(session, [tokens[:-keep]], head)
            parts = [tokens[-keep:]]
        return self._each(session, parts, keep)

    def run_pictures(
        self, session: Session, tokens: Tokens, picturing: Picturing, keep: int
    ) -> Floats:
        """Run a prompt with pictures in a session of one row.

        Returns:
            The logits after the last `keep` tokens, float32 [keep, vocab].

        Raises:
            BadSetting: the image tokens do not fit the pictures, or logits are needed
                of places that run together.
            ExecutionError: as `Session.call`.
        """
        at, found, single = 0, list[Floats](), len(tokens) - keep
        for feed in picturing.plan([tokens]):
            (count,) = feed.counts
            whole = min(count, max(0, single - at)) if keep > 1 else count
            counts = [whole, *[1] * (count - whole)]
            if whole not in (0, count) or (not whole and count > 1):
                _check_divisible(session, feed.method)
            for one in counts:
                if one:
                    found.append(
                        self._pictures(session, feed.method, tokens, picturing, at, one)
                    )
                at += one
        return np.concatenate(found[-keep:])

    def _pictures(
        self,
        session: Session,
        method: str,
        tokens: Tokens,
        picturing: Picturing,
        at: int,
        count: int,
    ) -> Floats:
        """Run a part of a prompt; return the last logits, float32 [1, vocab]."""
        given = picturing.embeddings([tokens], [at], [count])
        beside = picturing.positions([tokens], [at], [count])
        found = cast(Floats, session.call(method, given, **beside))
        return found.reshape(-1, self.vocabulary)[-1:]

    def run_embeds(self, session: Session, embeds: Floats, keep: int) -> Floats:
        """Run embeddings in a session of one row, float32 [n, hidden].

        Returns:
            The logits after the last `keep` of them, float32 [keep, vocab].

        Raises:
            BadSetting: the bundle takes no embeddings.
            ExecutionError: as `Session.call`.
        """
        if PREFILL not in session.methods:
            expected = "none: the bundle was compiled without KvcConfig(inputs_embeds=)"
            raise BadSetting(name="inputs_embeds", expected=expected, found="a tensor")
        sizes = chunk_sizes(
            session.methods[PREFILL], session.symbols, session.longest_call
        )
        at, found = 0, list[Floats]()
        head = plan_chunks(len(embeds) - keep + 1, (), sizes)
        for count in [*(chunk.count for chunk in head), *[1] * (keep - 1)]:
            given = embeds[None, at : at + count]
            found.append(cast(Floats, session.call(PREFILL, given)))
            at += count
        return np.concatenate([one.reshape(1, -1) for one in found[-keep:]])

    def _planned(self, count: int) -> list[Chunk]:
        return plan_chunks(count, self._prefills, self._decode) if count else []

    def _last(
        self, session: Session, parts: Sequence[Tokens], plan: Sequence[Chunk]
    ) -> list[Floats]:
        """Run calls; return the logits after the last token of each row."""
        at, found = 0, [np.zeros((0, self.vocabulary), np.float32) for _ in parts]
        for chunk in plan:
            run = [tokens[at : at + chunk.count] for tokens in parts]
            logits = self._call(session, chunk.method, run)
            for row, part in enumerate(run):
                if part:
                    found[row] = logits[row, -1:]
            at += chunk.count
        return found

    def _each(
        self, session: Session, parts: Sequence[Tokens], keep: int
    ) -> list[Floats]:
        """Run calls; return the logits after the last `keep` tokens of each row."""
        at, found = 0, [list[Floats]() for _ in parts]
        for chunk in self._in_full(max(map(len, parts))):
            run = [tokens[at : at + chunk.count] for tokens in parts]
            logits = self._call(session, chunk.method, run)
            for row, part in enumerate(run):
                found[row] += [*logits[row, : len(part)]]
            at += chunk.count
        empty = np.zeros((0, self.vocabulary), np.float32)
        return [np.stack(each[-keep:]) if each else empty for each in found]

    def _in_full(self, count: int) -> list[Chunk]:
        """Return calls that give the logits of every token."""
        if not self._every:
            return [Chunk(self._decode.method, 1)] * count
        return plan_chunks(count, self._every, self._decode)

    def _call(self, session: Session, name: str, parts: Sequence[Tokens]) -> Floats:
        """Run tokens of each row in one call; return float32 [rows, n, vocab]."""
        tokens = np.zeros((len(parts), max(map(len, parts))), np.int64)
        for row, part in zip(tokens, parts, strict=True):
            row[: len(part)] = part
        named = {}
        if len(parts) > 1:
            method = session.methods[name]
            assert method.row_lengths is not None, "of_rows chose it"
            value = method.graph.values[method.graph.inputs[method.row_lengths]]
            lengths = np.array(list(map(len, parts)), value.type.dtype.numpy)
            named[method.input_names[method.row_lengths]] = lengths
        logits = cast(Floats, session.call(name, tokens, **named))
        return logits.reshape(len(parts), -1, self.vocabulary)


def _check_divisible(session: Session, name: str) -> None:
    """Check that a method of embeddings takes single ones.

    Raises:
        BadSetting: it takes those of a whole picture, which see each other.
    """
    method = session.methods[name]
    sizes = chunk_sizes(method, session.symbols)
    if sizes.least > 1:
        expected = "1: the places of a picture run together, and have one row of logits"
        raise BadSetting(name="logits_to_keep", expected=expected, found="more")
