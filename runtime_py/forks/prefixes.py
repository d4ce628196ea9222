"""`Prefix`: a prompt cache. Tokens are read once, then asked for by many sessions.

In: a new session, tokens. Out: sessions that have read them, each a fork. Used from
many threads: who asks while another thread is being served waits for a millisecond.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.arrays import Array, is_tensor, own_copy, tensor_as_array
from kvc.runtime.engine import Engine
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting, Closed, UnknownName, listing
from kvc.schema.model import Method
from kvc.schema.types import bounds

if TYPE_CHECKING:
    from torch import Tensor

    from kvc.runtime.sessions import Session


class Prefix(Closing):
    """Tokens that have been read, and sessions that begin with them.

    Attributes:
        tokens: that were read, int64 [batch, seq].
    """

    def __init__(
        self,
        engine: Engine,
        session: "Session",
        tokens: "Sequence[int] | Array | Tensor",
    ) -> None:
        """Let a new session read the tokens, and own it; it is closed on failure.

        Raises as `Program.prefix` does.
        """
        self._engine, self._session = engine, session
        self._closed = False
        self._lock = threading.Lock()
        try:
            self.tokens = _as_tokens(tokens)
            self._logits = _read(session, self.tokens)
            session.fork().close()  # what is shared is moved now, not for the first
        except BaseException:
            session.close()
            raise

    @property
    def logits(self) -> Array:
        """Return the logits behind the last token, float32 [batch, vocab]: a copy."""
        return own_copy(self._logits)

    def session(self, transactional: bool = False) -> "Session":
        """Open a session that has read the tokens.

        It stays open when the prefix is closed.

        Raises:
            OutOfMemory: the system gives no address space.
            Closed, Forked: prefix or program are closed, or of another process.
        """
        self._engine.check_process("prefix")
        with self._lock:
            if self._closed:
                raise Closed(kind="prefix")
            return self._session.fork(transactional)

    def close(self) -> None:
        """Let go of what was read; sessions that have it keep it."""
        if self._engine.forked:  # the lock may have been held when it was
            self._closed = True
            self._session.close()
            return
        with self._lock:
            self._closed = True
            self._session.close()


def _read(session: "Session", tokens: Array) -> Array:
    """Run tokens in chunks of the prefill method, the rest one by one.

    Raises:
        UnknownName: no method has the role.
    """
    prefill = _find_role(session, "prefill")
    dim = prefill.graph.values[prefill.graph.inputs[0]].type.dims[1]
    least, most = bounds(dim, session.symbols)
    logits: object = None
    start, end = 0, tokens.shape[1]
    while start < end:
        count = min(most, end - start)
        method = prefill
        if count < least:
            method, count = _find_role(session, "decode"), 1
        logits = session.call(method.name, tokens[:, start : start + count])
        start += count
    assert isinstance(logits, np.ndarray), "the role says so"
    return logits


def _find_role(session: "Session", role: str) -> Method:
    for method in session.methods.values():
        if method.role == role:
            return method
    known = listing([m.role for m in session.methods.values() if m.role])
    raise UnknownName(kind="method of the role", name=role, known=known)


def _as_tokens(tokens: object) -> Array:
    """Return tokens as int64 [batch, seq].

    Raises:
        BadSetting: they are none.
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
