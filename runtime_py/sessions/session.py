"""`Session`: the states of one conversation, and the calls that read and write them.

In: an engine, the sizes that the session fixes. Out: results of calls; the states stay
here from one call to the next. A session is used by one thread at a time.
"""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.engine import Engine
from kvc.runtime.sessions.methods import Callables
from kvc.runtime.sessions.rewinding import GoingBack, most_rewindable, rewind, trim
from kvc.runtime.sessions.rows import reset_row, take_row
from kvc.runtime.sessions.session_residency import SessionResidency, describe_states
from kvc.runtime.sessions.sizes import (
    choose_capacity,
    choose_sizes,
    count_rows,
)
from kvc.runtime.sessions.state_views import StateViews
from kvc.runtime.sessions.usage import Usage, Use
from kvc.runtime.states.memory import NONE, Copies, StateMemory
from kvc.schema.errors import BadSetting
from kvc.schema.types import Symbol

if TYPE_CHECKING:
    from torch import Tensor


class Session(Callables):
    """The states of one user of a program, its caches above all, and their position.

    Methods of the program are called on it: `session.decode(token)`. Weights are shared
    with all sessions. One thread at a time may use it; `close` it, or use `with`.
    """

    def __init__(self, engine: Engine, states: StateMemory) -> None:
        """Take over states that nothing else uses; `open` makes new ones."""
        self._engine = engine
        self._states = states
        self._usage = Usage(engine, states)
        self._changes = 0
        # Runs once: at close, or when the session is collected.
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
        """Reserve memory for the states; `fill` puts something else than zeros there.

        Raises as `Program.session` does, and whatever `fill` raises.
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
        """Run a method on this session's states.

        Arguments are numpy arrays or torch tensors, nested as traced, by position or
        by name. Results are the caller's own, torch tensors when an argument was one.
        An input that the method changes is changed in the caller's array. One that it
        extends is extended in place when it is a `GrowingArray`, which is then the
        result itself; any other array stays as it is.

        A call that fails leaves the session as it was, or poisoned when a state has
        been written that knowing the position cannot put back. What it has written
        into a caller's array stays there. A method of the role "encode" begins the
        session anew once its arguments are known to fit: if it fails after that, the
        session is empty.

        Raises:
            UnknownName: there is no such method.
            CallMismatch, InputMismatch: the arguments are not what was compiled for.
            StateMismatch: the states that grow are not as long as the method takes.
            CacheOverflow: the cache is full; nothing has been written.
            NotEncoded: the method needs what an encoder makes, and it has not run.
            CallTooLong: there are more tokens than a ring has slots beside its window,
                and the method has not the role "prefill"; a prefill is taken in pieces,
                all of them or none.
            IndexOutOfRange: a write would be outside its tensor.
            KernelFailed: an instruction failed; the message names its source line.
            Poisoned: an earlier call left states half written.
            Busy: the session is running in another thread.
            FileChanged, FormatError, FileProblem: weights cannot be used any more: the
                file has changed, is damaged, or cannot be read.
            Closed, Forked: session or program are closed, or of another process.
        """
        index = self._find(name)
        with Use(self._usage, name):
            made = self._engine.call(index, args, kwargs, self._states)
            if self._engine.program.methods[index].writes:
                self._note_change()
            return made

    def reset(self) -> None:
        """Put every state that a reset clears back to its initial value.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "reset"):
            self._states.reset()

    def rewind(self, count: "int | Array | Tensor") -> None:
        """Drop the last `count` tokens: an int, or int64 [batch] for each row.

        The session is then as if they had never run; memory that only they used goes
        back to the system. A ring has written over what it held long ago, so that a
        row can go back by `rewindable` tokens, or by all. States that calls overwrite
        anywhere, such as recurrent ones, go back only to where one of the last calls
        began, in a session with `snapshots`.

        Raises:
            BadSetting: `count` is not from 0 to the position.
            NoPosition: nothing counts tokens.
            NotRewindable: a state cannot go back, or not so far.
            CannotRewind: rows must go back by the same number of tokens.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "rewind"):
            if rewind(self._engine.program, self._states, count):
                self._note_change()

    def reset_row(self, row: int) -> None:
        """Make one row of a batch as `reset` makes all; the other rows stay.

        Raises:
            BadSetting: there is no such row.
            StateMismatch: a state, or the position, has no rows of its own.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "reset_row"):
            reset_row(self._engine.program, self._states, row)
            self._note_change()

    def copy_row(self, source: int, target: int) -> None:
        """Make one row of a batch as another one is; all but the target stay.

        Raises as `reset_row`.
        """
        with Use(self._usage, "copy_row"):
            program, states = self._engine.program, self._states
            names = "copy_row", "target", "source"
            take_row(program, states, target, states, source, names)
            self._note_change()

    def admit(self, row: int, other: "Session", other_row: int = 0) -> None:
        """Take a row of another session over into a row of this one; others stay.

        The other session is of the same program and sizes, but for the number of its
        rows, and stays as it is.

        Raises:
            BadSetting: there is no such row, or the other is no session, or one of
                another program.
            StateMismatch: as `reset_row`, or the sessions have other sizes.
            CacheOverflow: the row has more tokens than this session's capacity.
            Poisoned, Busy, Closed, Forked: as `call`, of both sessions.
        """
        if other is self:
            self.copy_row(other_row, row)
            return
        if not isinstance(other, Session):
            raise BadSetting(name="other", expected="a Session", found=repr(other))
        with Use(self._usage, "admit"), Use(other._usage, "admit"):
            mine, theirs = self._engine.identity, other._engine.identity
            if mine != theirs:
                expected = f"a session of program {mine}"
                raise BadSetting(name="other", expected=expected, found=theirs)
            names, states = ("admit", "row", "other_row"), other._states
            take_row(self._engine.program, self._states, row, states, other_row, names)
            self._note_change()

    def trim(self) -> None:
        """Free memory that holds nothing: after the position, and idle scratch.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "trim"):
            trim(self._states)
            self._engine.give_back_scratch()

    def fork(self, transactional: bool | None = None) -> "Session":
        """Open another session with the content of this one.

        From then on they are independent, and either may be closed first. Pages that
        both have lie in memory once, until one of the two writes them. The first fork
        moves the content into memory that can be shared; later ones take a
        millisecond.

        Args:
            transactional: as `Program.session`; left out, as this session.

        Raises:
            OutOfMemory: the system gives no address space.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "fork"):
            self._states.check_usable()
            copies = self._states.copies
            if transactional is not None:
                copies = copies._replace(transactional=transactional)
            return Session(self._engine, self._states.fork(copies))

    def residency(self) -> SessionResidency:
        """Return what memory the states take on the host now.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "residency"):
            return describe_states(self._states.owner)

    def check_usable(self) -> None:
        """Check what does not depend on the arguments of a call.

        Raises:
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "check_usable"):
            self._states.check_usable()

    def before_use(self, settle: Callable[[], None] | None) -> None:
        """Set a function to run before the session is used next, by anything.

        For code that leaves the session in a state that others should not see.

        Args:
            settle: may use the session itself, and is then called again, within the
                first call; None removes it. It stays until it is replaced.
        """
        self._usage.before = settle

    def leave_pending(self, rows: Sequence[Sequence[int]]) -> None:
        """Note the tokens of each row that were made and are to run next.

        They stay until the states change.
        """
        self._states.pending = tuple(map(tuple, rows))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states, and what is `pending`, to a file.

        It has as many bytes as there are tokens. `Program.restore` opens a session from
        it. The file is whole, or not there.

        Raises:
            BadSetting: `path` is no path.
            CannotWrite: the system refuses; the old file is untouched.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        from kvc.runtime.sessions.snapshots import save_snapshot  # few sessions do

        with Use(self._usage, "save"):
            engine = self._engine
            save_snapshot(path, engine.program, engine.identity, self._states)

    @property
    def position(self) -> Array:
        """Return how many tokens the states hold, int64 [batch].

        Raises:
            NoPosition: nothing counts tokens, or what grows has different lengths.
            StateMismatch: a counter is so far off that nothing can be added to it.
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "position"):
            found = self._states.position()
            return np.array(found, np.int64)

    @property
    def positions(self) -> Mapping[str, Array]:
        """Return where rows stand at each cursor, int64 [rows], the position first.

        A cursor has the name of its input or state, or of the first state that grows
        by it. Unknown positions are left out.

        Raises:
            StateMismatch: as `position`.
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "positions"):
            found = self._states.named_positions()
            return {name: np.array(rows, np.int64) for name, rows in found.items()}

    @property
    def pending(self) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each row that a generation made but has not run.

        As a rule the last token of an answer. To go on, put them before the next
        prompt. They are saved with the session, and gone with the next change of it.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "pending"):
            rows = count_rows(self._engine.program, self._states.sizes)
            return self._states.pending or ((),) * rows

    @property
    def holds_nothing(self) -> bool:
        """Tell whether it holds no token, and none is pending.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "holds_nothing"):
            return self._states.hold_nothing

    @property
    def changes(self) -> int:
        """Return how often the states were changed: by calls, resets, rewinds.

        If the number is unchanged, so are the states.
        """
        return self._changes + self._states.renewed

    @property
    def rewindable(self) -> Array:
        """Return by how many tokens each row can be rewound now, int64 [batch].

        That is all it has, unless rings have overwritten what would be seen then.
        A row can always go back to its beginning.

        Raises:
            NoPosition, NotRewindable, Poisoned, Busy, Closed, Forked: as `rewind`.
        """
        with Use(self._usage, "rewindable"):
            found = most_rewindable(self._engine.program, self._states)
            return np.array(found, np.int64)

    @property
    def going_back(self) -> GoingBack:
        """Return what serves code that runs tokens which it may have to forget."""
        return GoingBack(self._usage, self._note_change)

    @property
    def longest_call(self) -> int | None:
        """Return how many tokens one call may add, None where no ring limits it.

        A call of the role "prefill" may have more: the session takes it in pieces.

        Raises:
            Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "longest_call"):
            entries = map(self._engine.entry, range(len(self._engine.program.methods)))
            limits = [entry.narrowest(self._states) for entry in entries]
        return min((kind.longest for kind in limits if kind is not None), default=None)

    @property
    def capacity(self) -> int | None:
        """Return the greatest position, None where nothing limits it."""
        return self._states.capacity

    @property
    def state(self) -> Mapping[str, Array]:
        """Return a read-only look at the states, by name."""
        return StateViews(self._usage, self)

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        """Return the program's symbolic sizes by name."""
        return self._engine.symbols

    def close(self) -> None:
        """Give the states' memory back; closing twice is safe.

        In a child of the process that opened it, this leaves the parent's alone.

        Raises:
            Busy: the session is running in another thread.
        """
        if self._engine.forked:
            self._states.closed = True
            self._closer.detach()
        elif not self._states.closed:
            with Use(self._usage, "close", closing=True):
                self._closer()

    def _note_change(self) -> None:
        self._changes += 1
        self._states.pending, self._states.written = (), True

    def __repr__(self) -> str:
        return f"<Session of {self._engine.path}: {self._usage}>"
