"""Which backends a bundle may name."""

import numpy as np
import pytest
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import write_bundle

from kvc.runtime import (
    BackendTaken,
    BadSetting,
    LoadError,
    MissingDelegate,
    load,
    register_delegate,
)
from kvc.runtime.delegates.table import DELEGATES


@pytest.fixture(autouse=True)
def tables():
    """Forget what a test registers."""
    before = dict(DELEGATES)
    yield
    DELEGATES.clear()
    DELEGATES.update(before)


Mine = backend_of(lambda partition, data: None)


@pytest.fixture
def path(tmp_path):
    return write_bundle(tmp_path / "d.kvc", delegated_program(backend="mine"))


def test_a_bundle_of_a_registered_backend_loads(path):
    register_delegate("mine", Mine)
    load(path).close()


def test_one_of_an_unknown_backend_does_not_and_says_what_to_do(path):
    with pytest.raises(MissingDelegate) as caught:
        load(path)
    error = caught.value
    assert (error.backend, error.method) == ("mine", "forward")
    assert "nothing of this name is registered or installed" in str(error)
    names = "coreai, coreml, cpu, ethosu, mlx, qnn, vulkan, xnnpack"
    assert f"this runtime has: {names}" in str(error)
    assert "kvc.runtime.register_delegate before load" in str(error)


def test_a_name_that_is_taken_is_refused():
    register_delegate("mine", Mine)
    for name in ("mine", "xnnpack"):
        with pytest.raises(BackendTaken, match=name):
            register_delegate(name, Mine)


@pytest.mark.parametrize(("name", "factory"), [("", Mine), (3, Mine), ("mine", 3)])
def test_what_is_no_backend_is_refused(name, factory):
    with pytest.raises(BadSetting):
        register_delegate(name, factory)
    assert "mine" not in DELEGATES


class Entry:
    value = "mine:Delegate"

    def __init__(self, found):
        self.found = found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def install(monkeypatch, found):
    """Install a package; return how often it was looked for."""
    asked = []

    def entry_points(group, name):
        asked.append((group, name))
        return [Entry(found)]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return asked


def test_an_installed_backend_is_looked_up_once(path, monkeypatch):
    asked = install(monkeypatch, Mine)
    for _ in range(2):
        load(path).close()
    assert asked == [("kvc.delegates", "mine")]


def test_one_that_is_registered_is_not_looked_up(path, monkeypatch):
    asked = install(monkeypatch, Mine)
    register_delegate("mine", Mine)
    load(path).close()
    assert asked == []


def test_one_that_cannot_be_imported_says_why(path, monkeypatch):
    install(monkeypatch, ImportError("no libmine.so"))
    with pytest.raises(MissingDelegate, match=r"mine:Delegate failed.*no libmine\.so"):
        load(path)


class LibraryMissing(LoadError):
    template = "no libmine.so"


class Checked(Mine):
    @staticmethod
    def check_library():
        raise LibraryMissing()


def test_a_missing_library_is_told_at_load_where_no_reference_is_wanted(path):
    register_delegate("mine", Checked)
    with pytest.raises(LibraryMissing):
        load(path, reference=False)
    load(path).close()
    load(path, reference=True).close()


@pytest.mark.parametrize("reference", [True, False, None])
def test_a_backend_is_told_what_load_was_told(path, reference, monkeypatch):
    made = []

    class Recording(Mine):
        def __init__(self, options):
            made.append(options)
            raise LibraryMissing()

    monkeypatch.setattr("kvc.runtime.sessions.resources.settle_threads", lambda: 7)
    register_delegate("mine", Recording)
    with load(path, reference=reference) as program:
        with pytest.raises(LibraryMissing):
            program.call("forward", np.ones((1, 4), np.float32))
        with pytest.raises(LibraryMissing):
            program.call("forward", np.ones((1, 4), np.float32))  # tried again
    assert [one.reference for one in made] == [reference, reference]
    assert made[0].threads == 7
    assert made[0].path == str(path)


@pytest.mark.parametrize("reference", [0, 1, "yes", "none"])
def test_a_wrong_reference_is_refused(path, reference):
    register_delegate("mine", Mine)
    with pytest.raises(BadSetting, match="reference: expected True, False or None"):
        load(path, reference=reference)
