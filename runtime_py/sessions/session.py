"""`Session`: the states of one conversation, and the calls that read and write them.

In: an engine, the sizes that the session fixes. Out: results of calls; the states stay
in the session from one call to the next. One thread at a time uses a session.
"""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.engine import Engine
from kvc.runtime.sessions.going_back import GoingBack
from kvc.runtime.sessions.rewinding import most_rewindable, rewind, trim
from kvc.runtime.sessions.rowwise import Rowwise
from kvc.runtime.sessions.session_residency import SessionResidency, describe_states
from kvc.runtime.sessions.sizes import choose_capacity, choose_sizes, count_rows
from kvc.runtime.sessions.state_views import StateViews
from kvc.runtime.sessions.usage import Usage, Use
from kvc.runtime.states.row_range import RowRange
from kvc.runtime.states.session_states import NONE, Copies, StateMemory

if TYPE_CHECKING:
    from torch import Tensor

_NO_MORE: Final[Mapping[str, object]] = MappingProxyType({})


class Session(Rowwise):
    """The states of one user of a program, such as caches, and their position.

    Call the program's methods on the session: `session.decode(token)`. All sessions
    share the weights. One thread at a time uses a session. `close` it, or use `with`.

    What uses the states raises `Busy`, `Closed` and `Forked` for the reasons of `call`.

    Attributes:
        attached: what the file of a restored session carries beside the states.
    """

    def __init__(self, engine: Engine, states: StateMemory) -> None:
        """Take over the memory of states, which no other session must use."""
        self._engine = engine
        self._states = states
        self._usage = Usage(engine, states)
        self._changes = 0
        self.attached = _NO_MORE
        # Runs once: at close, or when the session is garbage-collected.
        self._closer = weakref.finalize(self, engine.close_states, self._states)
        self._closer.atexit = False

    @classmethod
    def open(
        cls,
        engine: Engine,
        sizes: Mapping[str, int],
        capacity: int | None = None,
        copies: Copies = NONE,
        fill: Callable[[StateMemory], None] | None = None,
    ) -> "Session":
        """Reserve memory for new states; `fill` can replace their initial values.

        Raises:
            KvcError: as `Program.session`, and any error of `fill`.
        """
        chosen = choose_sizes(engine.program, sizes, capacity)
        limit = choose_capacity(engine.program, chosen, capacity)
        session = cls(engine, engine.open_states(chosen, limit, copies))
        if fill is not None:
            try:
                fill(session._states)
            except BaseException:
                session._closer()
                raise
        return session

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method on the session's states.

        Arguments are numpy arrays or torch tensors, nested as in the traced call, by
        position or by name. The caller owns the results. The results are torch tensors
        if any argument was a torch tensor. If the method writes an input, the caller's
        array changes. If the method extends an input that is a `GrowingArray`, that
        array is extended in place and is itself the result. An array of any other class
        that a method extends stays as it is.

        A failed call leaves the session as it was, or poisons it if the call has
        written a state whose old content cannot be restored. Bytes that the call has
        written into the caller's arrays stay there. A method of the role "encode"
        checks its arguments, then resets the session: if the method fails after the
        reset, the session is empty.

        Raises:
            UnknownName: the program has no method of that name.
            CallMismatch, InputMismatch: the arguments do not match the compiled method.
            StateMismatch: the growing states do not have the lengths that the method
                takes.
            CacheOverflow: the cache is full; nothing has been written.
            NotEncoded: the method needs the output of an encoder that has not run.
            CallTooLong: the call has more tokens than a ring buffer has slots outside
                its window, and the method does not have the role "prefill". A prefill
                is split into pieces instead, which take effect together or not at all.
            IndexOutOfRange: a write would be outside its tensor.
            KernelFailed: an instruction failed; the message names its source line.
            Poisoned: an earlier call failed and left states partly written.
            Busy: another thread uses the session.
            FileChanged, FormatError, FileProblem: the file of the weights has changed,
                is damaged, or cannot be read.
            Closed, Forked: the session or the program is closed, or was opened by
                another process.
        """
        return self._call(name, args, kwargs, None)

    def reset(self) -> None:
        """Reset every state to its initial value, except states that a reset keeps."""
        with Use(self._usage, "reset"):
            self._states.reset()

    def rewind(self, count: "int | Array | Tensor") -> None:
        """Drop the last `count` tokens: an int, or int64 [batch] for each row.

        The session is then as if the tokens had never run; memory pages that only the
        dropped tokens used return to the system. A ring buffer overwrites its oldest
        slots, so a row can only go back by up to `rewindable` tokens, or to its
        beginning. States that calls overwrite anywhere, such as recurrent states, can
        only go back to the beginning of one of the last calls, and only in a session
        with `snapshots`.

        Raises:
            BadSetting: `count` is not from 0 to the position.
            NoPosition: the program has no position.
            NotRewindable: a state cannot be restored at the earlier position.
            CannotRewind: `count` differs between rows, but all rows must go back by the
                same number of tokens.
        """
        with Use(self._usage, "rewind"):
            if rewind(self._engine.program, self._states, count):
                self._note_change()

    def trim(self) -> None:
        """Free state pages after the position, and scratch memory not in use."""
        with Use(self._usage, "trim"):
            trim(self._states)
            self._engine.give_back_scratch()

    def fork(self, transactional: bool | None = None) -> "Session":
        """Open a new session with the same content.

        Afterwards the two are independent; either can be closed first. They share each
        memory page until one writes to it. The first fork moves the content into memory
        that can be shared; a later one takes a millisecond.

        Args:
            transactional: as in `Program.session`; None as in this session.

        Raises:
            OutOfMemory: the system provides no address space.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "fork"):
            self._states.check_usable()
            copies = self._states.copies
            if transactional is not None:
                copies = copies._replace(transactional=transactional)
            return Session(self._engine, self._states.fork(copies))

    def one_row(self) -> "Session":
        """Open an empty session of one row, with this one's sizes and first adapter.

        Raises:
            UnknownName, BadSetting: sessions of the program cannot have one row.
            OutOfMemory, Busy, Closed, Forked: as `fork`.
        """
        with Use(self._usage, "one_row"):
            engine, old = self._engine, self._states
            sizes = choose_sizes(engine.program, {**old.sizes, "batch": 1})
            return Session(engine, engine.open_states(sizes, old.capacity, NONE, old))

    def residency(self) -> SessionResidency:
        """Return a report of the host memory that the states occupy now."""
        with Use(self._usage, "residency"):
            return describe_states(self._states.owner)

    def foretold_nbytes(self, tokens: int) -> int:
        """Return the bytes that the states take when each row holds some tokens.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "foretold_nbytes"):
            return self._states.foretold_nbytes(tokens)

    def check_usable(self) -> None:
        """Check that the session can run a call, whatever the arguments are.

        Raises:
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "check_usable"):
            self._states.check_usable()

    def before_use(self, settle: Callable[[], None] | None) -> None:
        """Set a function that ends a state between two steps; None removes it.

        It runs before every use until it is replaced, also before its own.
        """
        self._usage.before = settle

    def leave_pending(self, rows: Sequence[Sequence[int]]) -> None:
        """Store the tokens of each row that were generated and are to run next.

        `pending` returns the tokens until the states change.
        """
        self._states.pending = tuple(map(tuple, rows))

    def save(
        self, path: str | os.PathLike[str], attached: Mapping[str, object] = _NO_MORE
    ) -> None:
        """Write the states, and the tokens in `pending`, to a file.

        The file's size is proportional to the number of tokens. `Program.restore` opens
        a session from it. It is written completely or not at all.

        Args:
            path: the path of the file.
            attached: more for the file; `attached` of a restored session.

        Raises:
            BadSetting: `path` is not a path, or `attached` cannot be written as JSON.
            CannotWrite: the system refuses the write; an existing file is unchanged.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        from kvc.runtime.sessions.snapshots import save_snapshot  # few sessions do

        with Use(self._usage, "save"):
            engine = self._engine
            states, identity = self._states, engine.identity
            save_snapshot(path, engine.program, identity, states, attached)

    @property
    def position(self) -> Array:
        """Return how many tokens the states hold, int64 [batch].

        Raises:
            NoPosition: the program has no position, or growing states differ in length.
            StateMismatch: a counter state is out of the range of positions.
        """
        with Use(self._usage, "position"):
            return np.array(self._states.position(), np.int64)

    @property
    def positions(self) -> Mapping[str, Array]:
        """Return the position of each row at each cursor, int64 [rows], by name.

        The first cursor is that of `position`. A cursor has the name of the input or
        the state with its value, or of the first of the states whose length it is.
        Unknown positions are left out.

        Raises:
            StateMismatch: as `position`.
        """
        with Use(self._usage, "positions"):
            found = self._states.named_positions()
            return {name: np.array(rows, np.int64) for name, rows in found.items()}

    @property
    def pending(self) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each row that a generation sampled but has not run.

        Usually one, the last of the answer. To continue, put them before the next
        prompt. `save` writes them; the next change of the states clears them.
        """
        with Use(self._usage, "pending"):
            rows = count_rows(self._engine.program, self._states.sizes)
            return self._states.pending or ((),) * rows

    @property
    def holds_nothing(self) -> bool:
        """Tell whether the session holds no token and has no pending token."""
        with Use(self._usage, "holds_nothing"):
            return self._states.hold_nothing

    @property
    def changes(self) -> int:
        """Return how often calls, resets and rewinds have changed the states."""
        return self._changes + self._states.renewed

    @property
    def rewindable(self) -> Array:
        """Return how many tokens of each row `rewind` can drop now, int64 [batch].

        Usually the row's position; less if ring buffers have overwritten slots inside
        the window of an earlier position. A row can always go back to its beginning.

        Raises:
            NoPosition, NotRewindable, Poisoned, Busy, Closed, Forked: as `rewind`.
        """
        with Use(self._usage, "rewindable"):
            found = most_rewindable(self._engine.program, self._states)
            return np.array(found, np.int64)

    @property
    def going_back(self) -> GoingBack:
        """Return the interface by which a generation undoes guessed tokens."""
        return GoingBack(self._usage, self._note_change)

    @property
    def longest_call(self) -> int | None:
        """Return how many tokens one call can add, None without a ring buffer.

        The session splits a longer call of the role "prefill" into pieces.
        """
        with Use(self._usage, "longest_call"):
            entries = map(self._engine.entry, range(len(self._engine.program.methods)))
            limits = [entry.narrowest(self._states) for entry in entries]
        return min((kind.longest for kind in limits if kind is not None), default=None)

    @property
    def capacity(self) -> int | None:
        """Return how many tokens a row can hold, None if there is no limit."""
        return self._states.capacity

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the sizes that the session has fixed, by the names of symbols."""
        return MappingProxyType(self._states.sizes)

    @property
    def state(self) -> Mapping[str, Array]:
        """Return the states as read-only arrays, by name."""
        return StateViews(self._usage, self)

    def close(self) -> None:
        """Free the states' memory; a second call does nothing.

        In a forked child process, the parent's session does not change.

        Raises:
            Busy: another thread uses the session.
        """
        if self._engine.forked:
            self._states.closed = True
            self._closer.detach()
        elif not self._states.closed:
            with Use(self._usage, "close", closing=True):
                self._closer()

    def _call(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        rows: RowRange | None,
    ) -> object:
        index = self._find(name)
        with Use(self._usage, name):
            made = self._engine.call(index, args, kwargs, self._states, rows)
            if self._engine.program.methods[index].writes:
                self._note_change()
            return made

    def _note_change(self) -> None:
        self._changes += 1
        self._states.pending, self._states.written = (), True

    def __repr__(self) -> str:
        return f"<Session of {self._engine.path}: {self._usage}>"
