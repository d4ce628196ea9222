"""How the library is found, and what happens where it is not."""

import importlib.metadata
import os
import subprocess
import sys

import pytest
from xnnpack_graphs import library_or_skip

from kvc.runtime.delegates.xnnpack import library as module
from kvc.runtime.delegates.xnnpack.library import find_folder, find_library
from kvc.schema.errors import MissingLibrary, NativeCallFailed


@pytest.fixture
def library():
    return library_or_skip()


def test_the_library_is_loaded_once(library):
    assert find_library() is library


def test_first_calls_at_once_get_the_same_library(library):
    code = """
import threading
from kvc.runtime.delegates.xnnpack import (library as module)

class Slow(module.Library):
    def __init__(self, folder):
        super().__init__(folder)
        threading.Event().wait(0.2)

def work():
    start.wait()
    found.append(module.find_library())

module.Library = Slow
start, found = threading.Barrier(4), []
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 4 and len(set(map(id, found))) == 1, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_child_forked_while_the_library_is_loaded_can_load_it(library):
    code = """
import os, threading
from kvc.runtime.delegates.xnnpack import (library as module)

class Slow(module.Library):
    def __init__(self, folder):
        super().__init__(folder)
        loading.set()
        go_on.wait()

real, module.Library = module.Library, Slow
loading, go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=module.find_library)
thread.start()
loading.wait()
pid = os.fork()
if pid == 0:
    import signal
    signal.alarm(60)
    module.Library = real
    os._exit(int(module.find_library().pool(1) is not None))
go_on.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_it_says_which_build_it_is(library):
    assert len(bytes.fromhex(library.build)) >= 16


def test_it_says_what_it_knows_of_the_processor(library):
    assert set(library.features) == {0, 1}


def test_neither_torch_nor_the_wheels_package_is_imported(library):
    code = """
import sys
from kvc.runtime.delegates.xnnpack.library import (find_library)
find_library()
assert not {"torch", "executorch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_symbols_stay_its_own(library):
    """What is loaded later must not bind to them."""
    code = """
import ctypes
from kvc.runtime.delegates.xnnpack.library import (find_library)
find_library()
assert not hasattr(ctypes.CDLL(None), "pthreadpool_create")
assert not hasattr(ctypes.CDLL(None), "xnn_initialize")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def install(version, folder, monkeypatch):
    """Put a wheel without files before all others."""
    (folder / f"{module.PACKAGE}-{version}.dist-info").mkdir()
    monkeypatch.syspath_prepend(folder)


def test_another_version_counts_as_missing(monkeypatch, tmp_path):
    install("1.4.0", tmp_path, monkeypatch)
    with pytest.raises(
        MissingLibrary, match=r"1\.4\.0.*has to be 1\.5\.1.*pip install"
    ):
        find_folder()


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", "no-such-package-of-kvc")
    monkeypatch.syspath_prepend("/no/such/folder")
    with pytest.raises(MissingLibrary, match="no-such-package-of-kvc is not installed"):
        find_library()


def test_a_wheel_without_the_library_counts_as_missing(monkeypatch, tmp_path):
    install(module.VERSION, tmp_path, monkeypatch)
    with pytest.raises(MissingLibrary, match="is not there"):
        find_library()


def test_the_version_found_is_what_the_package_says(library):
    assert importlib.metadata.version(module.PACKAGE) == module.VERSION
    files = importlib.metadata.distribution(module.PACKAGE).locate_file("executorch")
    assert find_folder().parent == files


def test_a_file_that_is_no_library_counts_as_missing(monkeypatch, tmp_path):
    for name in (module._XNNPACK, module._THREADPOOL):
        (tmp_path / name).write_bytes(b"text")
    monkeypatch.setattr(module, "find_folder", lambda: tmp_path)
    with pytest.raises(MissingLibrary, match="cannot be used"):
        find_library()


@pytest.mark.parametrize(
    ("status", "name"),
    [(2, "invalid parameter"), (6, "out of memory"), (77, "status 77"), (-1, "-1")],
)
def test_a_status_is_raised_by_name(library, status, name):
    with pytest.raises(NativeCallFailed, match=f"XNNPACK: xnn_this: .*{name}"):
        library.check(status, "xnn_this")


def test_success_raises_nothing(library):
    library.check(0, "xnn_this")


def test_one_thread_needs_no_pool(library):
    assert library.pool(1) is None


def test_a_pool_is_made_once(library):
    made = library.pool(2)
    assert made == library.pool(2) != library.pool(3)


def test_a_child_of_the_process_gets_a_pool_of_its_own(library, monkeypatch):
    made = library.pool(2)
    monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    assert library.pool(2) != made
