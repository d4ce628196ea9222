"""`Prefix`: a prompt that is run once, for many sessions.

In: a new session and tokens. Out: sessions that hold the tokens; each is a fork of the
first. Many threads can use a prefix: a lock lets one thread fork at a time, which takes
a millisecond.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.calls.chunks import chunk_sizes, plan_chunks
from kvc.runtime.memory.arrays import Array, is_tensor, own_copy, tensor_as_array
from kvc.runtime.sessions.engine import Engine
from kvc.runtime.sessions.methods import find_roles
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting, Closed, NoPosition, PromptTooLong

if TYPE_CHECKING:
    from torch import Tensor

    from kvc.runtime.sessions.session import Session


class Prefix(Closing):
    """A prompt that has been run once, for sessions that begin with it.

    Attributes:
        tokens: the tokens of the prompt, int64 [batch, seq].
    """

    def __init__(
        self,
        engine: Engine,
        session: "Session",
        tokens: "Sequence[int] | Array | Tensor",
    ) -> None:
        """Run the tokens in a new session, and keep the session; close it on failure.

        Raises:
            KvcError: as `Program.prefix`.
        """
        self._engine, self._session = engine, session
        self._closed = False
        self._lock = threading.Lock()
        try:
            self.tokens = _as_tokens(tokens)
            self._logits = _read(session, self.tokens)
            session.fork().close()  # moves pages to shared memory now, not at first use
        except BaseException:
            session.close()
            raise

    @property
    def logits(self) -> Array:
        """Return a copy of the logits after the last token, float32 [batch, vocab]."""
        return own_copy(self._logits)

    def session(self, transactional: bool = False) -> "Session":
        """Open a session that holds the tokens of the prefix.

        The session stays open when the prefix is closed.

        Raises:
            OutOfMemory: the system provides no address space.
            Closed, Forked: the prefix or the program is closed, or was opened by
                another process.
        """
        self._engine.check_process("prefix")
        with self._lock:
            if self._closed:
                raise Closed(kind="prefix")
            return self._session.fork(transactional)

    def close(self) -> None:
        """Close the session of the prefix; sessions forked from it stay open."""
        if self._engine.forked:  # another thread may have held the lock at the fork
            self._closed = True
            self._session.close()
            return
        with self._lock:
            self._closed = True
            self._session.close()

    def __repr__(self) -> str:
        rows, count = self.tokens.shape
        of = f"{count} tokens" if rows == 1 else f"{rows} rows of {count} tokens"
        closed = ", closed" if self._closed else ""
        return f"<Prefix of {self._engine.path}: {of}{closed}>"


def _read(session: "Session", tokens: Array) -> Array:
    """Run tokens in as few calls as possible; return the logits of the last call.

    Raises:
        PromptTooLong: the session has too little room; nothing has run.
        UnknownName: no method has the role "prefill", or none the role "decode".
    """
    _check_room(session, tokens.shape[1])
    prefills = [
        chunk_sizes(method, session.symbols, session.longest_call)
        for method in find_roles(session, "prefill")
    ]
    (decode,) = find_roles(session, "decode")
    last = chunk_sizes(decode, session.symbols)
    logits: object = None
    start = 0
    for chunk in plan_chunks(tokens.shape[1], prefills, last):
        logits = session.call(chunk.method, tokens[:, start : start + chunk.count])
        start += chunk.count
    assert isinstance(logits, np.ndarray), "the roles say so"
    return logits


def _check_room(session: "Session", count: int) -> None:
    """Check that a new session has room for `count` tokens.

    A program that does not count tokens is not checked.

    Raises:
        PromptTooLong: the session has too little room.
    """
    try:
        _ = session.position
    except NoPosition:
        return
    room = session.capacity
    if room is not None and count > room:
        raise PromptTooLong(row=0, start=0, count=count, capacity=room, room=room)


def _as_tokens(tokens: object) -> Array:
    """Return tokens as int64 [batch, seq].

    Raises:
        BadSetting: the argument has no tokens, or is not an array of integers.
    """
    if is_tensor(tokens):
        tokens = tensor_as_array(tokens)  # type: ignore[arg-type]  # is_tensor says so
    try:
        found = np.array(tokens)
    except ValueError:  # rows of several lengths
        found = np.empty(0)
    if found.ndim == 1:
        found = found[None]
    if found.ndim != 2 or not found.size or found.dtype.kind not in "iu":
        expected = "at least one token, as ints or int64 [batch, seq]"
        raise BadSetting(name="tokens", expected=expected, found=repr(tokens))
    return found.astype(np.int64)
