"""The runtime: load a bundle, open sessions, run methods.

`import kvc.runtime` never imports torch; kernels import it on first need. A name of the
package is imported at its first use. So code that only loads a bundle and calls the
bundle's methods does not wait for the import of generation, chats and snapshots.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvc.runtime.data import BlobResidency, FreeableBuffer, Residency, Totals
    from kvc.runtime.delegates.table import register_delegate
    from kvc.runtime.embedding import (
        Label,
        classify,
        classify_images,
        embed,
        embed_images,
        similarity,
    )
    from kvc.runtime.execution.delegate import Packing, ReferenceUsed, SoftwareDevice
    from kvc.runtime.execution.recording import Recorder, Span, record
    from kvc.runtime.generation import (
        BatchGeneration,
        BegunTwice,
        Generation,
        GenerationSettings,
        SettingIgnored,
        TokenLogprob,
        generate,
        right_padded,
    )
    from kvc.runtime.generation.conversation import Conversation
    from kvc.runtime.generation.conversation_files import TemplateChanged
    from kvc.runtime.generation.conversation_reply import UnknownAnswers
    from kvc.runtime.memory.growing import GrowingArray
    from kvc.runtime.sessions.prefixes import Prefix
    from kvc.runtime.sessions.program import Program, load
    from kvc.runtime.sessions.session import Session
    from kvc.runtime.sessions.session_residency import SessionResidency
    from kvc.schema.errors import (
        AdapterInUse,
        BackendTaken,
        BadAdapter,
        BadChatTemplate,
        BadPicture,
        BadSetting,
        BadSnapshot,
        BadSound,
        BadTokenizer,
        BranchMismatch,
        BufferFreed,
        Busy,
        CacheOverflow,
        CallMismatch,
        CallTooLong,
        CannotRewind,
        CannotWrite,
        Closed,
        DataFileMismatch,
        DataFileMissing,
        DigestMismatch,
        ExecutionError,
        FileChanged,
        FileProblem,
        Forked,
        FormatError,
        IndexOutOfRange,
        InputMismatch,
        KernelFailed,
        KvcError,
        LoadError,
        MissingDelegate,
        MissingLibrary,
        MissingPackage,
        NativeCallFailed,
        NoPosition,
        NoSlots,
        NotEncoded,
        NotLoaded,
        NotRewindable,
        OutOfMemory,
        Poisoned,
        PromptTooLong,
        RowLengthOutOfRange,
        StateMismatch,
        StateNeeded,
        TemplateLimit,
        TextTooLong,
        ThreadsFixed,
        TooManyTurns,
        UnknownName,
        Unsynced,
        UnusableLogits,
    )

# The modules of names that are imported on demand; all others are in schema.errors.
_ON_DEMAND: Final = {
    "data": (
        "BlobResidency",
        "FreeableBuffer",
        "Residency",
        "Totals",
    ),
    "delegates.table": ("register_delegate",),
    "embedding": (
        "Label",
        "classify",
        "classify_images",
        "embed",
        "embed_images",
        "similarity",
    ),
    "execution.delegate": (
        "Packing",
        "ReferenceUsed",
        "SoftwareDevice",
    ),
    "execution.recording": ("Recorder", "Span", "record"),
    "generation": (
        "BatchGeneration",
        "BegunTwice",
        "Generation",
        "GenerationSettings",
        "SettingIgnored",
        "TokenLogprob",
        "generate",
        "right_padded",
    ),
    "generation.conversation": ("Conversation",),
    "generation.conversation_files": ("TemplateChanged",),
    "generation.conversation_reply": ("UnknownAnswers",),
    "memory.growing": ("GrowingArray",),
    "sessions.prefixes": ("Prefix",),
    "sessions.program": (
        "Program",
        "load",
    ),
    "sessions.session": ("Session",),
    "sessions.session_residency": ("SessionResidency",),
}

__all__ = [
    "AdapterInUse",
    "BackendTaken",
    "BadAdapter",
    "BadChatTemplate",
    "BadPicture",
    "BadSetting",
    "BadSnapshot",
    "BadSound",
    "BadTokenizer",
    "BatchGeneration",
    "BegunTwice",
    "BlobResidency",
    "BranchMismatch",
    "BufferFreed",
    "Busy",
    "CacheOverflow",
    "CallMismatch",
    "CallTooLong",
    "CannotRewind",
    "CannotWrite",
    "Closed",
    "Conversation",
    "DataFileMismatch",
    "DataFileMissing",
    "DigestMismatch",
    "ExecutionError",
    "FileChanged",
    "FileProblem",
    "Forked",
    "FormatError",
    "FreeableBuffer",
    "Generation",
    "GenerationSettings",
    "GrowingArray",
    "IndexOutOfRange",
    "InputMismatch",
    "KernelFailed",
    "KvcError",
    "Label",
    "LoadError",
    "MissingDelegate",
    "MissingLibrary",
    "MissingPackage",
    "NativeCallFailed",
    "NoPosition",
    "NoSlots",
    "NotEncoded",
    "NotLoaded",
    "NotRewindable",
    "OutOfMemory",
    "Packing",
    "Poisoned",
    "Prefix",
    "Program",
    "PromptTooLong",
    "Recorder",
    "ReferenceUsed",
    "Residency",
    "RowLengthOutOfRange",
    "Session",
    "SessionResidency",
    "SettingIgnored",
    "SoftwareDevice",
    "Span",
    "StateMismatch",
    "StateNeeded",
    "TemplateChanged",
    "TemplateLimit",
    "TextTooLong",
    "ThreadsFixed",
    "TokenLogprob",
    "TooManyTurns",
    "Totals",
    "UnknownAnswers",
    "UnknownName",
    "Unsynced",
    "UnusableLogits",
    "classify",
    "classify_images",
    "embed",
    "embed_images",
    "generate",
    "load",
    "record",
    "register_delegate",
    "right_padded",
    "similarity",
]


def __getattr__(name: str) -> object:
    """Import a name of this package at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (f"{__name__}.{m}" for m, names in _ON_DEMAND.items() if name in names)
    found: object = getattr(import_module(next(homes, "kvc.schema.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return all names of this package, including those not imported yet."""
    return sorted({*globals(), *__all__})
