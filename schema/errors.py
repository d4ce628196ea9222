"""Every error that kvc raises: one root, a few families, narrow kinds.

Each kind is a class whose keyword arguments are the facts; they stay on it as
attributes, and its message is built from them: what failed, where, what was
expected and found, and what to try. `KvcError.code` is stable, for scripts.
"""

from collections.abc import Sequence


class KvcError(Exception):
    """The root of all errors that kvc raises on purpose.

    Attributes:
        code: the stable name of the kind, as `kvc ... --json` prints it.
    """

    template = "{message}"

    def __init__(self, **facts: object) -> None:
        self.__dict__.update(facts)
        self.facts = facts
        super().__init__(self._text())

    def _text(self) -> str:
        """Return the message."""
        return self.template.format(**self.facts)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by class and facts, since the constructor takes only keywords."""
        return (_rebuild, (type(self), self.facts))

    @property
    def code(self) -> str:
        """Return the stable name of this kind of error."""
        return type(self).__name__


def _rebuild(kind: type[KvcError], facts: dict[str, object]) -> KvcError:
    return kind(**facts)


def listing(names: Sequence[str]) -> str:
    """Join names for a message, or say that there are none."""
    return ", ".join(names) if names else "none"


# Bytes of a bundle that are wrong.


class FormatError(KvcError):
    """The bytes of a bundle are wrong."""


class Truncated(FormatError):
    """The file ends too early, or goes on behind its end."""

    template = "{path}: the file has {found} bytes, {what} needs {expected}; it is cut short or damaged, fetch it again"


class BadMagic(FormatError):
    """The file is something else."""

    template = (
        "{path}: not a kvc file: it begins with {found}, which looks like {guess}"
    )


class UnsupportedVersion(FormatError):
    """The file is of another format version."""

    template = "{path}: format version {found}, but this kvc reads version {expected}; compile the model again, or use the kvc that wrote it"


class DigestMismatch(FormatError):
    """Bytes differ from their digest."""

    template = "{path}: {what} is damaged: its {nbytes} bytes at offset {offset} do not have the digest that the file states; fetch the file again or compile the model again"


class LimitExceeded(FormatError):
    """Something is larger than kvc allows."""

    template = "{path}: {what} is {found}, more than the limit of {limit}"


class BadStructure(FormatError):
    """Offsets, counts or padding that no writer of kvc makes."""

    template = "{path}: malformed at byte {offset}: {what}"


class BadProgram(FormatError):
    """The file is well formed, but what it says is impossible."""

    template = "{path}: {where}: {what}"


# Loading that is refused or impossible.


class LoadError(KvcError):
    """The bytes may be fine; loading is refused or impossible."""


class FileProblem(LoadError):
    """The operating system refused to open or read a file."""

    template = "cannot read {path}: {reason}"


class CannotWrite(FileProblem):
    """A session cannot be saved; what was there before is untouched."""

    template = "cannot write {path}: {reason}"


class SavedUnsynced(FileProblem):
    """A saved session is in place and whole, but may not survive a crash."""

    template = "{path} is written and whole, but the system could not say that it is safe on disk: {reason}"


class BadSnapshot(LoadError):
    """A saved session is damaged, or belongs to another program."""

    template = "{path}: cannot restore a session from it: {reason}"


class FileChanged(LoadError):
    """A mapped file is not the one that was opened."""

    template = "{path} changed while it was in use; load it again"


class DataFileMissing(LoadError):
    """A bundle keeps data in another file, which is nowhere to be found."""

    template = "{path}: its data file {name} (digest {expected}) is not there; looked in: {folders}; put it beside the bundle, or give its folder (data_folders=, --data-folder)"


class DataFileMismatch(LoadError):
    """A file has the name of a bundle's data file, but holds other data."""

    template = "{path}: its data file {name} must have digest {expected}, but what has this name has {found} (in {folders}); it belongs to another build: fetch or compile both files again, or give the folder of the right one (data_folders=, --data-folder)"


class CannotCollect(LoadError):
    """What data files a folder needs cannot be known; nothing is removed."""

    template = "{folder}: nothing is removed, since {path} may need any of its data files and cannot be read: {reason}; move it away or compile it again, then try again"


class MissingDelegate(LoadError):
    """A bundle needs a backend that this runtime does not have."""

    template = "{path}: method {method} needs the backend {backend}, but this runtime has: {known}"


# Models that cannot be compiled.


class CompileError(KvcError):
    """A model cannot be compiled."""


class ModelNotFound(CompileError):
    """MODEL names nothing that can be imported or read."""

    template = "no model {model!r}: {reason}; give a built-in name ({known}) or package.module:factory"


class CaptureError(CompileError):
    """A method cannot be traced."""

    template = "cannot capture method {method}{place}: {reason}"


class CapacityFixed(CaptureError):
    """A buffer's size is to be chosen when a session is opened, but the code fixes it."""

    template = "cannot capture method {method}{place}: the buffer {buffer} is to have any size of Dim {dim} along axis {axis}, but {reason}"


class UnsupportedOps(CompileError):
    """Methods use ops that kvc has no kernel for; all of them are listed."""

    template = "no kernel for {count} op(s):\n{listing}"


class StateConflict(CompileError):
    """Two methods, or two names, disagree about one state."""

    template = "state {state}: {reason}"


class CopyBudgetExceeded(CompileError):
    """Writing the states of a method copies more bytes than it may."""

    template = "method {method} copies {nbytes:,} bytes in a call to write its states, but {allowed:,} are allowed:\n{listing}"


class PassFailed(CompileError):
    """A pass produced a program that does not verify: a bug in kvc."""

    template = "after {step}: method {method}, {node}{place}: {reason}; this is a bug in kvc, please report it"


class PlanFailed(CompileError):
    """A memory plan does not pass the independent checker: a bug in kvc."""

    template = "the memory plan of method {method} is wrong: {reason}; this is a bug in kvc, please report it"


class OutputProblem(CompileError):
    """A bundle cannot be written; what was there before is untouched."""

    template = "cannot write {path}: {reason}"


class OutputUnsynced(CompileError):
    """A new bundle is in place and whole, but may not survive a crash of the machine."""

    template = "{path} is replaced by the new bundle, which is whole, but the system could not say that it is safe on disk: {reason}; write it again if the machine fails"


# Checkpoints that a model cannot be compiled from.


class CheckpointError(CompileError):
    """A checkpoint cannot be used; `listing` tells every problem of this kind."""

    template = "checkpoint {path}: {reason}"


class PickleCheckpoint(CheckpointError):
    """A checkpoint is a pickle, which may run any code when it is read."""

    template = "checkpoint {path}: {files} is a pickle, which can run any code when it is loaded, so kvc does not read it; convert it once, where you trust it: safetensors.torch.save_file(torch.load(PICKLE, weights_only=True), 'model.safetensors')"


class BadCheckpoint(CheckpointError):
    """Files of a checkpoint are damaged, cut short, missing, or contradict each other."""

    template = "checkpoint {path} is not whole:\n{listing}"


class CheckpointMismatch(CheckpointError):
    """A checkpoint is whole, but is not of this model."""

    template = "checkpoint {path} does not fit {model}:\n{listing}"


class CheckpointChanged(CheckpointError):
    """A checkpoint is no longer what was opened, so that a tensor cannot be read."""

    template = "checkpoint {path}: cannot read {tensor}: {reason} after it was opened; open it again and compile anew"


class ParametersEmpty(CompileError):
    """Tensors of a model have no values, on the meta device, but some are needed."""

    template = "{what}; parameters made in empty_parameters() have no memory: Checkpoint(path).load_into(model) says where compile_program reads them; a model that is to run by itself must be built outside of it"


# Recipes.


class RecipeError(KvcError):
    """A recipe is unknown or wrong."""


class UnknownRecipe(RecipeError):
    """No recipe has this name."""

    template = (
        "no recipe {recipe!r}; there are: {known}, or give the path of a .toml file"
    )


class BadRecipe(RecipeError):
    """A recipe file is wrong."""

    template = "{path}: {what}"


# Calls on a loaded program.


class ExecutionError(KvcError):
    """A call on a loaded program failed."""


class UnknownName(ExecutionError):
    """A method, state or named data that the program does not have."""

    template = "the program has no {kind} {name!r}; it has: {known}"


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


class IndexOutOfRange(ExecutionError):
    """A write would be outside its tensor; nothing has been written."""

    template = "{place}index {index} is out of range for an axis of {size}"


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


class CallMismatch(ExecutionError):
    """Arguments do not nest as those that the method was compiled with."""

    template = "method {method}, {reason}"
