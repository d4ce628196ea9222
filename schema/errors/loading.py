"""Errors of files: loading, writing and removing them."""

from kvc.schema.errors.base import KvcError, listing


class LoadError(KvcError):
    """A file cannot be loaded, though its bytes may be correct."""


class FileProblem(LoadError):
    """The operating system refused to open or read a file."""

    path: str
    reason: str
    template = "cannot read {path}: {reason}"


class CannotWrite(FileProblem):
    """A file cannot be written; the old file is untouched."""

    template = "cannot write {path}: {reason}"


class NoSpace(CannotWrite):
    """The disk has no room for a new file; nothing has been written."""

    folder: str
    needed: int
    free: int
    reason: str = ""
    template = "cannot write {path}: it takes at least {needed:,} bytes, and {free:,} are free in {folder}; free some, or write it elsewhere"


class Unsynced(FileProblem):
    """A new file is complete and in place, but may not survive a system crash."""

    template = "{path} is written and whole, but could not be synced to disk: {reason}; write it again if the machine fails"


class BadSound(LoadError):
    """A file is not audio that can be transcribed.

    Attributes: path, reason, rate (samples per second that the model expects).
    """

    path: str
    reason: str
    rate: int
    template = "{path}: {reason}; it has to be a wav file of plain samples, {rate} a second (ffmpeg -i INPUT -ar {rate} -ac 1 -c:a pcm_s16le OUTPUT.wav makes one)"


class BadPicture(LoadError):
    """A file is not a picture that a model can read."""

    path: str
    reason: str
    template = "{path}: {reason}; it has to be a picture that Pillow reads (PNG, JPEG, WebP, GIF, BMP or TIFF), of {most:,} pixels at most"
    most: int


class BadSnapshot(LoadError):
    """A saved session is damaged, or belongs to another program."""

    path: str
    reason: str
    template = "{path}: cannot restore a session from it: {reason}"


class BadAdapter(LoadError):
    """A file of an adapter is damaged, or does not fit the program."""

    path: str
    reason: str
    template = "{path}: cannot load an adapter from it: {reason}"


class NoSlots(LoadError):
    """A bundle has no slot for an adapter, or none that is free.

    Attributes: path (of the bundle), room (how many adapters it can hold), loaded
    (their names).
    """

    path: str
    room: int
    loaded: tuple[str, ...]

    def _text(self) -> str:
        if not self.room:
            return f"{self.path} has no slots for adapters; compile it with --adapters COUNT,rank=RANK"
        return f"{self.path} holds {self.room} of {self.room} adapters ({', '.join(self.loaded)}); free one (program.adapters.free), or compile it with more slots (--adapters)"


class FileChanged(LoadError):
    """A mapped file has changed since it was opened."""

    path: str
    template = "{path} changed while it was in use; load it again"


class DataFileMissing(LoadError):
    """The data file of a bundle cannot be found."""

    path: str
    name: str
    expected: str
    folders: str
    template = "{path}: its data file {name} (digest {expected}) is not there; looked in: {folders}; put it beside the bundle, or give its folder (data_folders=, --data-folder)"


class DataFileMismatch(LoadError):
    """A file has the name of a bundle's data file, but holds other data."""

    path: str
    name: str
    expected: str
    found: str
    folders: str
    template = "{path}: its data file {name} must have digest {expected}, but the file of this name has {found} (in {folders}); it belongs to another build: fetch or compile both files again, or give the folder of the right one (data_folders=, --data-folder)"


class CannotCollect(KvcError):
    """Garbage collection has stopped: which data files a folder needs is unknown.

    Attributes:
        folder: path of the folder.
        path: the file that cannot be read; "" if the folder keeps changing instead.
        reason: why the file cannot be read.
        removed: names of the files that were removed before the error.
    """

    folder: str
    path: str
    reason: str
    removed: tuple[str, ...]

    def _text(self) -> str:
        gone = f"nothing more is removed after {listing(self.removed)}"
        why = f"{self.reason}; try again"
        if self.path:
            why = f"{self.path} may need any of its data files and cannot be read: {self.reason}; move it away or compile it again, then try again"
        return f"{self.folder}: {gone if self.removed else 'nothing is removed'}, since {why}"


class BackendTaken(KvcError):
    """A backend with this name is already registered."""

    name: str
    new: str
    found: str
    template = "cannot register {new} as the backend {name!r}: that is {found}; choose another name"


class MissingDelegate(LoadError):
    """A bundle needs a backend that this runtime does not have."""

    path: str
    method: str
    backend: str
    reason: str
    known: str
    template = "{path}: method {method} needs the backend {backend}, but {reason}; this runtime has: {known}; install a package that provides it (entry point group kvc.delegates), or call kvc.runtime.register_delegate before load"


class MissingLibrary(LoadError):
    """A backend's library is not installed, or is another version than needed."""

    library: str
    reason: str
    install: str
    template = "the library {library} cannot be used: {reason}; get it with `{install}`"


# Errors in the bytes of a bundle or data file.


class FormatError(KvcError):
    """The bytes of a file, such as a bundle, are wrong."""

    path: str


class Truncated(FormatError):
    """The file is shorter or longer than it should be."""

    what: str
    found: int
    expected: int
    template = "{path}: the file has {found} bytes, {what} needs {expected}; it is cut short or damaged, fetch it again"


class BadMagic(FormatError):
    """The file is not a kvc file."""

    found: str
    guess: str
    template = (
        "{path}: not a kvc file: it looks like {guess} (its first bytes: {found})"
    )


class WrongKind(BadMagic):
    """The file is a bundle where a data file is expected, or the other way round."""

    expected: str
    template = "{path}: {expected} is expected here, but it is {guess}"


class UnsupportedVersion(FormatError):
    """The file is of another format version."""

    found: int
    expected: int
    template = "{path}: format version {found}, but this kvc reads version {expected}; compile the model again, or use the kvc that wrote it"


class DigestMismatch(FormatError):
    """Bytes do not have the digest that the file states."""

    what: str
    nbytes: int
    offset: int
    template = "{path}: {what} is damaged: its {nbytes} bytes at offset {offset} do not have the digest that the file states; fetch the file again or compile the model again"


class LimitExceeded(FormatError):
    """A size or count is larger than kvc allows."""

    what: str
    found: int
    limit: int
    template = "{path}: {what} is {found}, more than the limit of {limit}"


class BadStructure(FormatError):
    """Offsets, counts or padding of a file differ from those that kvc writes."""

    offset: int
    what: str
    template = "{path}: malformed at byte {offset}: {what}"


class BadProgram(FormatError):
    """The file is well formed, but its content is impossible."""

    where: str
    what: str
    template = "{path}: {where}: {what}"


class MissingPackage(LoadError):
    """A needed optional package is not installed."""

    what: str
    package: str
    reason: str
    install: str
    template = "{what} needs the package {package}: {reason}; get it with `{install}`"


class BadTokenizer(LoadError):
    """The tokenizer of a bundle cannot be read."""

    file: str
    reason: str
    template = "the tokenizer {file} cannot be used: {reason}"
