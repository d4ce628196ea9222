"""Errors of compiling: models, checkpoints and declarations that cannot be used."""

from typing import TYPE_CHECKING

from kvc.schema.errors.base import KvcError


class CompileError(KvcError):
    """A model cannot be compiled."""

    template = "{message}"
    if TYPE_CHECKING:  # not a field: subclasses have no such fact

        def __init__(self, *, message: str) -> None: ...


class ModelNotFound(CompileError):
    """MODEL names neither a module that can be imported nor a file that can be read."""

    model: str
    reason: str
    known: str
    template = "no model {model!r}: {reason}; give the path of a Hugging Face folder, a built-in name ({known}) or package.module:factory"


class FactoryFailed(ModelNotFound):
    """MODEL names a function that fails, or a module that cannot be imported."""

    template = "{model} gives no model: {reason}"


class WrongTorch(CompileError):
    """The installed torch is not a version that the compiler is tested with.

    Attributes: found (the installed version), expected (the range of versions, as pip
    takes it).
    """

    found: str
    expected: str
    template = "torch {found} is installed, but kvc's compiler works with {expected}: it patches functions of torch that change between releases, and could compile a wrong program without noticing; get one with `pip install '{expected}'`"


class MissingTransformers(CompileError):
    """Hugging Face models need a package that is not installed."""

    package: str
    template = "Hugging Face models need the package {package}, which is not installed; get what they need with `pip install 'transformers>=5.23,<5.24' 'safetensors>=0.8' 'tokenizers>=0.23' 'jinja2>=3.1.6'`"


class WrongTransformers(CompileError):
    """The installed transformers is not a version that the front end is tested with.

    Attributes: found (the installed version), expected (the range of versions, as pip
    takes it).
    """

    found: str
    expected: str
    template = "transformers {found} is installed, but kvc compiles its models with {expected}: it replaces functions of transformers that change between releases, and could compile a wrong program without noticing; get one with `pip install '{expected}'`"


class BadModelSetting(CompileError):
    """A setting of an export, or in a model's own files, has an impossible value."""

    place: str
    setting: str
    expected: str
    found: str
    template = "{place}, {setting}: expected {expected}, found {found}"


class BadModelFolder(CompileError):
    """A folder lacks a file that a model of transformers needs."""

    path: str
    reason: str
    template = "model folder {path}: {reason}"


class UnsupportedModel(CompileError):
    """The front end for transformers cannot express a model's computation."""

    model: str
    reason: str
    template = "{model} is not supported: {reason}"


class UnknownTask(CompileError):
    """A model's files name no task for the model, or several tasks.

    Attributes: model, kind (the model_type in its config.json), named (the classes in
    `architectures`), tasks (the tasks that such a model can have), possible (these
    tasks, as text for the message).
    """

    model: str
    kind: str
    named: str
    tasks: tuple[str, ...]
    possible: str
    template = "{model}: config.json names {named} in `architectures`, which does not determine the task of this {kind}; give it with --task (export_hf: task=): {possible}"


class CaptureError(CompileError):
    """A method cannot be traced."""

    method: str
    place: str
    reason: str
    template = "cannot capture method {method}{place}: {reason}"


class SizesRefused(CaptureError):
    """A model's code computes something else for some of the declared sizes."""

    advice: str
    template = "cannot capture method {method}{place}: {reason}; {advice}"


class CapacityFixed(CaptureError):
    """A model's code fixes the size of a buffer that each session should select."""

    buffer: str
    dim: str
    axis: int
    template = "cannot capture method {method}{place}: the buffer {buffer} must allow any size of Dim {dim} along axis {axis}, but {reason}"


class UnsupportedOps(CompileError):
    """Methods use operators that kvc has no kernel for; the error lists all of them."""

    count: int
    listing: str
    ops: tuple[str, ...]
    template = "no kernel for {count} op(s):\n{listing}"


class StateConflict(CompileError):
    """Two methods, or two names of one state, disagree about the state."""

    state: str
    reason: str
    template = "state {state}: {reason}"


class CacheDtypeRefused(CompileError):
    """A state cannot be stored as int8 or float16: the model uses it as float32."""

    state: str
    what: str
    method: str
    reader: str
    source: str
    reason: str
    template = "{what} cannot be a cache of another dtype: {reason}; only kvc::cache_update may write such a state and only kvc::attention read it; change the model, or leave caches float32 (in the recipe: [cache] dtype)"


class CopyBudgetExceeded(CompileError):
    """Writing the states of a method copies more bytes than allowed."""

    method: str
    nbytes: int
    allowed: int
    listing: str
    template = "method {method} copies {nbytes:,} bytes in a call to write its states, but {allowed:,} are allowed:\n{listing}"


class BudgetExceeded(CompileError):
    """A file, the memory or the session states of a bundle exceed the user's limit.

    Attributes:
        what: the part that is too large, and for which sizes.
        nbytes, allowed: the size, and the allowed size, in bytes.
        listing: the largest parts, and the settings that would make them smaller.
    """

    what: str
    nbytes: int
    allowed: int
    listing: str
    template = "{what} takes {nbytes:,} bytes, but {allowed:,} are allowed; nothing was written\n{listing}"


class PassFailed(CompileError):
    """A compiler pass made a program that the verifier rejects: a bug in kvc."""

    step: str
    method: str
    node: str
    place: str
    reason: str
    template = "after {step}: method {method}, {node}{place}: {reason}; this is a bug in kvc, please report it"


class PlanFailed(CompileError):
    """The independent checker rejects a memory plan: a bug in kvc."""

    method: str
    reason: str
    template = "the memory plan of method {method} is wrong: {reason}; this is a bug in kvc, please report it"


class CannotPack(CompileError):
    """Weights cannot be packed for the library that the user names."""

    wanted: str
    reason: str
    template = "cannot pack for {wanted!r}: {reason}"


class BadFile(CompileError):
    """A file cannot be put into a bundle."""

    file: str
    reason: str
    template = "cannot put the file {file!r} into the bundle: {reason}"


class NotFinite(CompileError):
    """A weight that is to be quantized has values that are not finite."""

    weight: str
    dtype: str
    count: int
    total: int
    template = "weight {weight} cannot be quantized to {dtype}: {count:,} of its {total:,} values are NaN or infinite; nothing is written; correct the weight, or use a recipe that does not quantize it"


class StoredScalesNotFinite(CompileError):
    """A matrix that a checkpoint has quantized has scales that are not finite."""

    weight: str
    count: int
    total: int
    template = "the checkpoint's weight {weight} is damaged: {count:,} of the {total:,} scales and minimums of its blocks are NaN or infinite; nothing is written; get the file again"


class BadBackend(CompileError):
    """The compile-time part of a backend returned an invalid result."""

    backend: str
    where: str
    expected: str
    found: str
    template = "backend {backend}, {where}: expected {expected}, found {found}; this is a bug in the backend"


class CheckpointError(CompileError):
    """A checkpoint cannot be used.

    Some subclasses have the attribute `listing`: the problems, one per line.
    """

    path: str
    template = "checkpoint {path}: {reason}"
    if TYPE_CHECKING:  # `reason` is not a field: not all subclasses have it

        def __init__(self, *, path: str, reason: str) -> None: ...


class PickleCheckpoint(CheckpointError):
    """A checkpoint is a pickle, which may run any code while it is read."""

    files: str
    template = "checkpoint {path}: {files} is a pickle, which can run any code when it is loaded, so kvc does not read it; convert it once, where you trust it: safetensors.torch.save_file(torch.load(PICKLE, weights_only=True), 'model.safetensors')"


class BadCheckpoint(CheckpointError):
    """Files of a checkpoint are damaged, cut short, missing, or contradict each other."""

    problems: tuple[str, ...]
    listing: str
    template = "checkpoint {path} is not whole:\n{listing}"


class CheckpointMismatch(CheckpointError):
    """A checkpoint is intact, but does not fit the model; `problems` says why."""

    model: str
    problems: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    listing: str
    template = "checkpoint {path} does not fit {model}:\n{listing}"


class CheckpointChanged(CheckpointError):
    """A checkpoint has changed since it was opened, so a tensor cannot be read."""

    tensor: str
    reason: str
    template = "checkpoint {path}: cannot read {tensor}: {reason}"


class ParametersEmpty(CompileError):
    """The compiler needs values of parameters that are empty (on the meta device)."""

    names: tuple[str, ...]
    what: str
    template = "{what}; parameters made in empty_parameters() have no memory: Checkpoint(path).load_into(model) says where compile_program reads them; a model that is to run by itself must be built outside of it"


class NotCalibrated(CompileError):
    """The calibration samples never run a method of which a backend runs parts."""

    methods: str
    backend: str
    template = "the samples never run {methods}, of which {backend} takes parts; give samples for all inputs"


class NeverSeen(CompileError):
    """Calibration samples are so small that some values have no elements."""

    methods: str
    backend: str
    template = "some values of {methods} have no elements in any sample, and {backend} needs to know how large they become; give samples of greater sizes"


class BadSamples(CompileError):
    """Samples for calibration cannot be read, or are not for this model."""

    source: str
    reason: str
    template = "samples {source}: {reason}"


class SamplesNotFinite(CompileError):
    """The model computes a NaN for a calibration sample."""

    method: str
    what: str
    place: str
    template = "calibration: method {method} gives NaN for a sample, first in {what}{place}; no range of integers holds it"


class RangeUnbounded(CompileError):
    """A value to be stored as an integer becomes infinite, or too large."""

    low: float
    high: float
    template = "a value that is to be stored as an integer becomes too large (from {low} to {high}); a mask of infinities, or of the least float, can be one of large finite numbers, such as -1e4"


class TokenizerTooLarge(CompileError):
    """A tokenizer has token ids that are too large for the model's vocabulary."""

    file: str
    highest: int
    token: str
    vocabulary: int
    template = "the tokenizer {file} does not fit the model: it has tokens up to {highest} ({token!r}), the model knows those below {vocabulary}; take the tokenizer that belongs to the model, or resize its embedding"
