"""Find kvc's library of native kernels; README.md tells how it is built.

In: the folder of this package, and the environment variable KVC_PROCESSOR. Out: the
loaded library, with the numbers of its kernels and the function that runs steps.
"""

import ctypes
import importlib.machinery
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from kvc.schema.errors import BadSetting, MissingLibrary

# Kernels that call addresses: no file may ask for them
NEVER_FROM_FILES: Final = ("call", "ask")
INSTALL: Final = "pip install ."  # in kvc's folder
_VERSION: Final = 11
_VARIABLE: Final = "KVC_PROCESSOR"  # environment variable of the instruction set


class Library:
    """The loaded library.

    Attributes:
        processors: the instruction sets that the kernels can use on this machine, the
            smallest first.
        processor: the instruction set in use.
    """

    _MILLISECONDS: Final = 50  # after which a run returns to Python

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            OSError: the file cannot be loaded.
            AttributeError: the file is not kvc's library.
        """
        library = ctypes.CDLL(str(path))
        library.kvc_version.restype = ctypes.c_int32
        self.version: int = library.kvc_version()
        library.kvc_processors.restype = ctypes.c_char_p
        self.processors: tuple[str, ...] = tuple(
            library.kvc_processors().decode().split()
        )
        self.processor = self.processors[-1]
        self._use = library.kvc_use_processor
        self._use.argtypes = (ctypes.c_char_p,)
        self._find = library.kvc_kernel
        self._find.argtypes, self._find.restype = (ctypes.c_char_p,), ctypes.c_int32
        self._run = library.kvc_run
        self._run.argtypes = (
            ctypes.c_void_p,
            *(ctypes.c_int32,) * 4,
            *(ctypes.c_void_p,) * 3,
        )
        self._run.restype = ctypes.c_int32
        self._name = library.kvc_kernel_name
        self._name.argtypes, self._name.restype = (ctypes.c_int32,), ctypes.c_char_p
        self._check = library.kvc_check_steps
        self._check.argtypes = (
            *(ctypes.c_void_p,) * 2,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_void_p,
        )
        self._check.restype = ctypes.c_int32
        self._kernels: dict[str, int] = {}
        self._names: tuple[str, ...] = ()

    def use(self, processor: str) -> None:
        """Set the instruction set that kernels use in this process.

        Raises:
            BadSetting: `processor` is not one of `processors`.
        """
        if processor not in self.processors or self._use(processor.encode()) != 0:
            expected = "one of " + ", ".join(self.processors)
            raise BadSetting(name=_VARIABLE, expected=expected, found=processor)
        self.processor = processor

    def kernel(self, name: str) -> int:
        """Return the number that the library gives to an operator's kernel.

        The library must have a kernel for the operator.
        """
        found = self._kernels.get(name)
        if found is None:
            found = self._kernels[name] = self._find(name.encode())
            assert found >= 0, f"no kernel for {name}"
        return found

    def names(self) -> Sequence[str]:
        """Return the names of all kernels, in the order of their numbers."""
        if not self._names:
            found: list[str] = []
            while (name := self._name(len(found))) is not None:
                found.append(name.decode())
            self._names = tuple(found)
        return self._names

    def has(self, name: str) -> bool:
        """Tell whether an operator has a kernel."""
        return bool(self._find(name.encode()) >= 0)

    def check(
        self,
        steps: int,
        counts: int,
        count: int,
        regions: int,
        region_count: int,
        breach: int,
    ) -> bool:
        """Check steps before they are first run; see `kvc_check_steps` in api.cc."""
        given = steps, counts, count, regions, region_count, breach
        return bool(self._check(*given) == count)

    def run(
        self,
        steps: int,
        count: int,
        first: int,
        threads: int,
        where: int,
        lent: int,
        ended: int = 0,
    ) -> int:
        """Run steps from index `first` on; see `kvc_run` in api.cc for arguments."""
        next_one: int = self._run(
            steps, count, first, threads, self._MILLISECONDS, where, lent, ended
        )
        return next_one


@cache
def find_library() -> Library:
    """Return kvc's library of native kernels; load it at the first call.

    Raises:
        MissingLibrary: the library was not built, or belongs to a different version of
            kvc.
        BadSetting: KVC_PROCESSOR names an instruction set that this machine lacks.
    """
    folder = Path(__file__).parent
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    paths = [folder / f"_kernels{suffix}" for suffix in suffixes]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        reason = (
            "it was not built when kvc was installed from its folder, which takes a "
            "C++17 compiler"
        )
        raise _missing(reason)
    try:
        library = Library(path)
    except (OSError, AttributeError) as error:
        raise _missing(str(error)) from error
    if library.version != _VERSION:
        raise _missing(f"it has version {library.version}, not {_VERSION}")
    if asked := os.environ.get(_VARIABLE):
        library.use(asked)
    return library


def native_library() -> Library | None:
    """Return kvc's library of native kernels, None if the library is missing."""
    with suppress(MissingLibrary):
        return find_library()
    return None


def _missing(reason: str) -> MissingLibrary:
    return MissingLibrary(library="kvc's kernels", reason=reason, install=INSTALL)
