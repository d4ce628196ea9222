"""Errors of calls on a loaded program: calls that fail, and calls that are refused."""

from kvc.schema.errors.base import KvcError, meant, shortened


class ExecutionError(KvcError):
    """A call on a loaded program failed."""


class UnknownName(ExecutionError):
    """The program has no method, state or named data of this name.

    Attributes: kind (what was asked for, such as "method"), name, known (all names of
    this kind), hint (the end of the message).
    """

    kind: str
    name: object
    known: tuple[str, ...]
    hint: str = ""

    def _text(self) -> str:
        return f"the program has no {self.kind} {self.name!r}{meant(self.name, self.known)}; it has: {shortened(self.known)}{self.hint}"


class InputMismatch(ExecutionError):
    """An input does not have the declared type."""

    method: str
    input: str
    expected: str
    found: str
    template = "method {method}, input {input}: expected {expected}, got {found}"


class CacheOverflow(ExecutionError):
    """A write would go past the end of a cache; nothing has been written."""

    row: int
    start: int
    count: int
    capacity: int

    def _text(self) -> str:
        positions = "1 position" if self.count == 1 else f"{self.count} positions"
        return f"the cache is full: row {self.row} would write {positions} from {self.start} on, but the cache holds {self.capacity}; make room (reset or rewind the session, truncate the array), or open the session or the array with a larger capacity, or compile with a larger cache"


class PromptTooLong(CacheOverflow):
    """A prompt has more tokens than the session can still store; nothing has run."""

    room: int
    rows: int = 1

    def _text(self) -> str:
        place = "" if self.rows == 1 else f" of row {self.row}"
        return f"the prompt{place} has {self.count} tokens, but the session has room for {self.room}: it holds {self.start} of {self.capacity}; shorten the prompt, make room (reset or rewind the session), open the session with a larger capacity, or compile with a larger cache"


class TextTooLong(ExecutionError):
    """A text has more tokens than a model without a cache accepts; nothing has run.

    Attributes: number (index of the text, from 0), tokens (of the text), most (that the
    model accepts).
    """

    number: int
    tokens: int
    most: int
    template = "texts[{number}] has {tokens} tokens, and the model takes at most {most}; shorten it, or part it into several texts"


class AdapterInUse(ExecutionError):
    """An adapter cannot be freed: rows of open sessions have it.

    Attributes: name (of the adapter), sessions (how many sessions have it).
    """

    name: str
    sessions: int
    template = "adapter {name!r} is used by {sessions} open sessions or prefixes; close them, then free it"


class NotLoaded(ExecutionError):
    """A row has an adapter that this program has not loaded.

    Attributes: name (by which the adapter was loaded), digest (SHA-256 of its file).
    """

    name: str
    digest: str
    template = "the row has the adapter {name!r}, which is not loaded here; load the file whose SHA-256 is {digest:.16}... with program.adapters.load"


class NotEncoded(ExecutionError):
    """A method needs the result of an encoder that has not run; nothing has run.

    Attributes: method, encode (the method that runs the encoder).
    """

    method: str
    encode: str
    template = "method {method} needs the result of {encode}, and the session, or a row of it, does not hold one: call {encode} first; reset, and rewinding to before that call, drop its result"


class CallTooLong(ExecutionError):
    """A call has too many tokens for a ring; nothing has run.

    The ring has slots for its window, and the slots beyond the window limit the call.

    Attributes: method, count (tokens of the call), longest (the most tokens that a call
    may have), state (the ring), slots (of the ring), window (of the ring).
    """

    method: str
    count: int
    longest: int
    state: str
    slots: int
    window: str
    template = "method {method} was called with {count} tokens, but the ring {state} allows {longest} at most: it has {slots} slots for a window of {window}; call it with fewer at a time, or compile with more slots"


class IndexOutOfRange(ExecutionError):
    """An index is outside its tensor; the instruction has written nothing."""

    place: str
    index: int
    size: int
    template = "{place}index {index} is out of range for an axis of {size}"


class RowLengthOutOfRange(ExecutionError):
    """A row length is below 0 or above the call's token count; nothing was written."""

    row: int
    length: int
    most: int
    template = "row {row} has length {length}, but a row length is from 0 to {most}, the tokens of the call"


class TooManyTurns(ExecutionError):
    """A loop runs more iterations than the caller of `load` allows.

    Attributes: method, turns (the allowed number of iterations).
    """

    method: str
    turns: int
    template = "a loop of method {method} goes on after {turns} turns, the most that load(max_turns=) allows"


class BranchMismatch(ExecutionError):
    """A call ran a branch that is compiled for a past of another length.

    The past is the part of a cache that earlier calls have filled. The error is also
    raised if a call passes an input that the branch would ignore. Nothing is written.
    """

    size: int
    expected: int
    template = "the branch taken is for a past of length {expected}, but the past has length {size}, or the call passes an input of this length from which the branch computes nothing; reset the session, take the other branch, or leave the input empty"


class KernelFailed(ExecutionError):
    """An instruction failed; the message says where it is in the model's source."""

    method: str
    index: int
    op: str
    place: str
    reason: str
    template = "method {method}, instruction {index}, {op}{place}: {reason}"


class NoPosition(ExecutionError):
    """A program is asked for its position, but no cursor counts its tokens."""

    reason: str
    template = "there is no position: {reason}"


class NotRewindable(ExecutionError):
    """A state cannot be rewound; nothing has changed."""

    state: str
    reason: str
    template = "the state {state} cannot be rewound: {reason}; reset the session, or restore a saved one"


class CannotRewind(ExecutionError):
    """Rows of a batch cannot be rewound by different numbers of tokens; nothing has changed."""

    reason: str
    template = "cannot rewind rows by different numbers of tokens: {reason}"


class StateMismatch(ExecutionError):
    """A state of the session does not fit the method; nothing has run."""

    method: str
    state: str
    expected: str
    found: str
    template = "method {method}, state {state}: expected {expected}, found {found}"


class Poisoned(ExecutionError):
    """A call failed while it wrote a state that cannot be restored."""

    method: str
    template = "a call of {method} failed in the middle and left states half written; reset the session, restore a saved one, or open sessions with transactional=True"


class OutOfMemory(ExecutionError):
    """The system refuses to allocate address space."""

    what: str
    nbytes: int
    template = "the system refuses {nbytes} bytes for {what}"


class Forked(ExecutionError):
    """A program or session was used in a child of the process that opened it."""

    kind: str
    opened: int
    here: int
    template = "the {kind} was opened in process {opened} and cannot be used in its child {here}; load the bundle again there"


class BufferFreed(ExecutionError):
    """The array of a named data was used after its memory was freed."""

    name: str
    template = "{name!r} has been freed; ask program.data for it again"


class Closed(ExecutionError):
    """A program or session was used after it was closed."""

    kind: str
    template = "the {kind} has been closed"


class CheckFailed(ExecutionError):
    """A bundle has other results on this machine than on the compiler's machine."""

    result: str
    expected: str
    found: str
    template = "{result} differs from the reference result of the compiler's machine: expected {expected}, found {found}; try --reference, to find out whether the library or the bundle is wrong"


class NoCheck(ExecutionError):
    """A bundle has no usable reference results to compare with."""

    reason: str
    template = "{reason}"


class Busy(ExecutionError):
    """A session was used from two threads at a time."""

    method: str
    template = "this session is running {method} in another thread; a session belongs to one thread at a time"


class Overloaded(ExecutionError):
    """A scheduler refuses a request, since too many wait; a later try may succeed.

    Attributes: waiting (how many requests wait), seconds (after which to try again).
    """

    waiting: int
    seconds: float
    template = "{waiting} requests wait already; try again in {seconds:.0f} s"


class RequestFailed(ExecutionError):
    """A request failed by a defect of kvc; others go on."""

    reason: str
    template = "the request failed by a defect of kvc: {reason}"


class StateNeeded(ExecutionError):
    """A method that uses a state was called on the program instead of on a session."""

    method: str
    state: str
    template = (
        "method {method} uses the state {state}; open a session and call it there"
    )


class BadSetting(ExecutionError):
    """A setting of a session or of text generation has an impossible value."""

    name: str
    expected: str
    found: object
    template = "{name}: expected {expected}, got {found}"


class UnusableLogits(ExecutionError):
    """No token can be sampled from a model's logits."""

    reason: str
    template = "the model's logits cannot be used: {reason}"


class CallMismatch(ExecutionError):
    """The arguments of a call are nested differently from the method's examples."""

    method: str
    reason: str
    template = "method {method}, {reason}"


class ThreadsFixed(ExecutionError):
    """This process already computes with another number of threads than requested.

    Attributes:
        wanted, found: the requested, and the actual, number of threads.
    """

    wanted: int
    found: int
    template = "threads={wanted} is requested, but programs of this process already compute with {found} threads, which they share; request {found}, leave it out, or request it before the first call"


class NativeCallFailed(ExecutionError):
    """A backend's library refused a call."""

    library: str
    what: str
    reason: str
    template = "{library}: {what}: {reason}"


class WorkerLost(ExecutionError):
    """The process in which a backend's library runs was lost; the call wrote nothing."""

    library: str
    what: str
    reason: str
    template = "{library}: {what}: {reason}; nothing was written, and the next call starts another process; if it happens again, use a recipe of another backend"


class DeviceLost(ExecutionError):
    """A device has stopped working; the content of its sessions is lost."""

    backend: str
    what: str
    template = "the {backend} device was lost ({what}): the content of its sessions is lost, and this process cannot use it again; start another process, and if it happens again, update the driver or use a recipe of another backend"


class ScaleOutOfRange(ExecutionError):
    """The scales of two values' grids differ too much for 32-bit integer arithmetic."""

    scale: float
    most: float
    template = "a scale of {scale} between two values is more than {most}, the greatest that integers of 32 bits express; calibrate with samples in which neither is constant"


class ExportFailed(ExecutionError):
    """The compiler of an export's target failed to produce its file."""

    target: str
    what: str
    reason: str
    template = "{target}: {what} cannot be compiled: {reason}"


class BadChatTemplate(ExecutionError):
    """The chat template of a bundle is invalid, or rejects a conversation."""

    file: str
    reason: str
    template = "the chat template {file}: {reason}"


class TemplateLimit(ExecutionError):
    """Rendering the chat template of a bundle exceeds a limit of the caller.

    Attributes: file, limit (the exceeded limit, with its unit), setting (the setting
    that changes the limit).
    """

    file: str
    limit: str
    setting: str
    template = "the chat template {file} takes more than {limit}, the most that chat_template_of({setting}=) allows"
