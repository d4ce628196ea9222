"""Calls that fail, and calls that are refused."""

from collections.abc import Sequence

from kvc.schema.errors.base import KvcError, meant, shortened


class ExecutionError(KvcError):
    """A call on a loaded program failed."""


class UnknownName(ExecutionError):
    """A method, state or named data that the program does not have.

    Attributes: kind, name, known (all names of the kind), hint (what follows them).
    """

    name: object
    known: tuple[str, ...]
    template = "the program has no {kind} {name!r}{meant}; it has: {listed}{hint}"

    def __init__(
        self, *, kind: str, name: object, known: Sequence[str], hint: str = ""
    ) -> None:
        super().__init__(kind=kind, name=name, known=tuple(known), hint=hint)

    def _text(self) -> str:
        told = {"meant": meant(self.name, self.known), "listed": shortened(self.known)}
        return self.template.format(**told, **self.facts)


class InputMismatch(ExecutionError):
    """An input does not have the declared type."""

    template = "method {method}, input {input}: expected {expected}, got {found}"


class CacheOverflow(ExecutionError):
    """A write would leave the cache; nothing has been written."""

    template = (
        "the cache is full: row {row} would write {positions} from {start} on, but "
        "the cache holds {capacity}; make room (reset or rewind the session, truncate "
        "the array), or open the session or the array with a larger capacity, or "
        "compile with a larger cache"
    )

    def _text(self) -> str:
        count = self.facts["count"]
        positions = "1 position" if count == 1 else f"{count} positions"
        return self.template.format(positions=positions, **self.facts)


class PromptTooLong(CacheOverflow):
    """A prompt does not fit behind what the session holds; nothing has run."""

    template = "the prompt{place} has {count} tokens, but the session has room for {room}: it holds {start} of {capacity}; shorten the prompt, make room (reset or rewind the session), open the session with a larger capacity, or compile with a larger cache"

    def _text(self) -> str:
        many = self.facts.get("rows", 1) != 1
        place = f" of row {self.facts['row']}" if many else ""
        return self.template.format(place=place, **self.facts)


class CallTooLong(ExecutionError):
    """A call has more tokens than a ring has slots beside its window; nothing ran.

    Attributes: method, count (its tokens), longest (the most that a call may have),
    state, slots, window (of the ring).
    """

    template = "method {method} was called with {count} tokens, but with the ring {state} a call has {longest} at the most: it has {slots} slots for a window of {window}; call it with fewer at a time, or compile with more slots"


class IndexOutOfRange(ExecutionError):
    """A write would be outside its tensor; nothing has been written."""

    template = "{place}index {index} is out of range for an axis of {size}"


class CountOutOfRange(ExecutionError):
    """A row counts tokens that are not there; nothing has been written."""

    template = "row {row} counts {count} of {most} tokens; a count is from 0 to {most}"


class BranchMismatch(ExecutionError):
    """A branch for an empty past was taken with one that is not; nothing is written."""

    template = "the branch that is taken is for a past of length {expected}, it has {size}; reset the session, or take the other branch"


class KernelFailed(ExecutionError):
    """An instruction failed; the message says where it comes from."""

    template = "method {method}, instruction {index}, {op}{place}: {reason}"


class NoPosition(ExecutionError):
    """The program has no position to ask for."""

    template = "there is no position: {reason}"


class NotRewindable(ExecutionError):
    """A state cannot go back; nothing has changed."""

    template = "the state {state} cannot be rewound: {reason}; reset the session, or restore a saved one"


class CannotRewind(ExecutionError):
    """Rows of a batch cannot go back by different counts; nothing has changed."""

    template = "cannot rewind rows by different counts: {reason}"


class StateMismatch(ExecutionError):
    """What the session holds does not fit the method; nothing has run."""

    template = "method {method}, state {state}: expected {expected}, found {found}"


class Poisoned(ExecutionError):
    """A call broke off while it wrote a state that cannot be put back."""

    template = "a call of {method} broke off in the middle and left states half written; reset the session, restore a saved one, or open sessions with transactional=True"


class OutOfMemory(ExecutionError):
    """The system gives no address space."""

    template = "the system refuses {nbytes} bytes for {what}"


class Forked(ExecutionError):
    """A program or session was used in a child of the process that opened it."""

    template = "the {kind} was opened in process {opened} and cannot be used in its child {here}; load the bundle again there"


class BufferFreed(ExecutionError):
    """Named data was used after it was freed."""

    template = "{name!r} has been freed; ask program.data for it again"


class Closed(ExecutionError):
    """A program or session was used after it was closed."""

    template = "the {kind} has been closed"


class Busy(ExecutionError):
    """A session was used from two threads at a time."""

    template = "this session is running {method} in another thread; a session belongs to one thread at a time"


class StateNeeded(ExecutionError):
    """A method with state was called on the program itself."""

    template = (
        "method {method} uses the state {state}; open a session and call it there"
    )


class BadSetting(ExecutionError):
    """A setting of a session or of a generation is impossible."""

    template = "{name}: expected {expected}, got {found}"


class UnusableLogits(ExecutionError):
    """No token can be chosen from what a model gave."""

    template = "the model's logits cannot be used: {reason}"


class CallMismatch(ExecutionError):
    """Arguments do not nest as those that the method was compiled with."""

    template = "method {method}, {reason}"


class ThreadsFixed(ExecutionError):
    """Another number of threads is asked for than this process computes with.

    Attributes:
        wanted, found: the numbers.
    """

    template = "threads={wanted} is asked for, but programs of this process compute with {found} already, and share their threads; ask for {found}, leave it out, or ask before the first call"


class NativeCallFailed(ExecutionError):
    """A backend's library refused what it was asked for."""

    template = "{library}: {what}: {reason}"
