"""Find the XNNPACK library in the `executorch` wheel, and load it without the wheel.

In: the installed packages. Out: a `Library` of exactly the version that kvc was written
for. Only three shared libraries of the wheel are loaded. They find each other by their
own search path. They use no function of torch's libraries, since no symbol is made
global.
"""

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Final

from kvc.runtime.delegates.xnnpack.functions import declare_pools, declare_xnnpack
from kvc.runtime.execution.delegate import NeededLibrary
from kvc.schema.errors import NativeCallFailed, OutOfMemory, reason_of

PACKAGE: Final = "executorch"
VERSION: Final = "1.5.1"
XNNPACK: Final = NeededLibrary("XNNPACK", f"pip install --no-deps {PACKAGE}=={VERSION}")
_FEATURES_NBYTES: Final = 85  # the size of the symbol in this version
_FOLDER: Final = "executorch/lib"
_XNNPACK: Final = "libexecutorch_backend_xnnpack.so"
_THREADPOOL: Final = "libexecutorch_threadpool.so"
_STATUSES: Final = (
    *("success", "uninitialized", "invalid parameter", "invalid state"),
    *("unsupported parameter", "unsupported hardware", "out of memory"),
    *("reallocation required", "deprecated"),
)


class Library:
    """The loaded library; one per process, used by several threads.

    Attributes:
        xnn: the functions of `xnnpack.h`, with their types.
        invoke: the address of `xnn_invoke_runtime`.
        ask: the address of `xnn_get_runtime_profiling_info`.
        build: hexadecimal identifier of the library's kernels.
        features: the processor features that the library has detected, as bytes.
    """

    def __init__(self, folder: Path) -> None:
        """Load and initialise the library in a folder.

        Raises:
            OSError, AttributeError: the library cannot be loaded, or lacks a function.
            NativeCallFailed: the library refuses this machine.
        """
        self._threads = ctypes.CDLL(str(folder / _THREADPOOL))
        self.xnn = ctypes.CDLL(str(folder / _XNNPACK))
        declare_pools(self._threads)
        declare_xnnpack(self.xnn)
        self.invoke = _address_of(self.xnn, "xnn_invoke_runtime")
        self.ask = _address_of(self.xnn, "xnn_get_runtime_profiling_info")
        self.check(self.xnn.xnn_initialize(None), "xnn_initialize")
        address = self.xnn.xnn_experimental_get_build_identifier_data()
        nbytes = self.xnn.xnn_experimental_get_build_identifier_size()
        self.build = ctypes.string_at(address, nbytes).hex()
        # `cpuinfo_isa`: one byte per flag.
        flags = (ctypes.c_char * _FEATURES_NBYTES).in_dll(self._threads, "cpuinfo_isa")
        self.features = bytes(flags)
        self._pools: dict[tuple[int, int], int] = {}
        # For each pool, `Lent` of native/pool.h: function and pool.
        self._lent: dict[int, ctypes.Array[ctypes.c_void_p]] = {}

    def check(self, status: int, what: str) -> None:
        """Check the status of a call.

        Raises:
            NativeCallFailed: the status is not success.
        """
        if status:
            known = 0 <= status < len(_STATUSES)
            reason = _STATUSES[status] if known else f"status {status}"
            raise NativeCallFailed(library="XNNPACK", what=what, reason=reason)

    def pool(self, threads: int) -> int | None:
        """Return the address of the process's pool of `threads` threads.

        Calls on a pool from several threads wait for each other, operator by operator
        (pthreadpool holds a mutex while it runs an operator). The result is None for
        one thread: each caller then computes in its own thread, and does not wait.

        Raises:
            OutOfMemory: the threads cannot be started.
        """
        if threads == 1:
            return None
        # No lock, which a fork could copy while held. A child has no threads of its
        # parent.
        key = (os.getpid(), threads)
        if key not in self._pools:
            made = self._threads.pthreadpool_create(threads)
            if not made:
                raise OutOfMemory(what=f"a pool of {threads} threads", nbytes=0)
            if self._pools.setdefault(key, made) != made:  # another thread was faster
                self._threads.pthreadpool_destroy(made)
        return self._pools[key]

    def lent(self, pool: int | None) -> int:
        """Return the address of a `Lent`, with which kvc's own kernels use a pool.

        So there are not two pools, which would compete for the processors: threads of a
        pool wait for work without sleeping. The address is 0 if `pool` is None.
        """
        if pool is None:
            return 0
        run = _address_of(self._threads, "pthreadpool_parallelize_1d")
        made = (ctypes.c_void_p * 2)(run, pool)
        return ctypes.addressof(self._lent.setdefault(pool, made))


def _address_of(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, "the library has the function"
    return address


def find_library() -> Library:
    """Return the library, loaded on the first call of the process.

    Raises:
        MissingLibrary: the library is not installed, has another version, or cannot be
            loaded.
    """
    return _load(find_folder())


def find_folder() -> Path:
    """Return the folder of the wheel's libraries, without loading anything.

    Raises:
        MissingLibrary: the wheel is not installed, or has another version.
    """
    found = _find_wheel()
    if found is None:
        raise XNNPACK.missing(f"the package {PACKAGE} is not installed")
    site, version = found
    if version != VERSION:
        raise XNNPACK.missing(f"{PACKAGE} is {version}, and has to be {VERSION}")
    folder = site / _FOLDER
    if not (folder / _XNNPACK).is_file():
        raise XNNPACK.missing(f"{folder / _XNNPACK} is not there (on {sys.platform})")
    return folder


def _find_wheel() -> tuple[Path, str] | None:
    """Return the folder that the wheel is installed in, and the version of the wheel.

    `importlib.metadata` does the same, but its import takes as long as loading a
    bundle.
    """
    for site in sys.path:
        try:
            names = [found.name for found in Path(site or ".").iterdir()]
        except OSError:  # not a folder
            continue
        for name in names:
            package, _, rest = name.partition("-")
            if package == PACKAGE and rest.endswith(".dist-info"):
                return Path(site), rest.removesuffix(".dist-info")
    return None


_libraries: dict[Path, Library] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child; a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _load(folder: Path) -> Library:
    with _lock:
        if folder not in _libraries:
            try:
                _libraries[folder] = Library(folder)
            except (OSError, AttributeError, NativeCallFailed) as error:
                raise XNNPACK.missing(reason_of(error)) from error
        return _libraries[folder]
