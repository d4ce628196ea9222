"""Which recipe of a bundle is run."""

from dataclasses import replace

import numpy as np
import pytest
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import write_bundle

from kvc.runtime import BadSetting, MissingDelegate, load, register_delegate
from kvc.runtime.delegates import table
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.selecting import choose_body
from kvc.runtime.execution.delegate import FoundDevice
from kvc.schema.errors import MissingLibrary, NativeCallFailed, OutOfMemory
from kvc.schema.model import Variant

PROGRAM, BYTES = delegated_program(backend="card")
ALL = ("card", "chip", "plain")


@pytest.fixture(autouse=True)
def tables():
    """Forget what a test registers."""
    before = dict(table.DELEGATES)
    yield
    table.DELEGATES.clear()
    table.DELEGATES.update(before)


def of_backends(*names):
    """Return a program by a recipe for each backend."""
    (delegate,) = PROGRAM.delegates
    variants = [
        Variant(
            f"r_{name}",
            "",
            PROGRAM.methods,
            (replace(delegate, backend=name),),
            PROGRAM.symbols,
        )
        for name in names
    ]
    first = replace(PROGRAM.provenance, recipe=variants[0].recipe)
    return replace(
        PROGRAM,
        provenance=first,
        delegates=variants[0].delegates,
        variants=tuple(variants[1:]),
    )


def register(name, *devices, missing=False, refuses=None):
    """Make a backend known, with devices or without, or without its library.

    Or with a driver that refuses to tell of its devices.
    """

    def find():
        asked.append(name)
        if refuses is not None:
            raise refuses
        return devices

    def check_library():
        asked.append(name)
        if missing:
            raise MissingLibrary(library=name, reason="gone", install="it")

    asked: list[str] = []
    kind = backend_of(lambda partition, data: ReferenceHandle(PROGRAM, partition, data))
    kind.devices = staticmethod(find)
    kind.check_library = staticmethod(check_library)
    register_delegate(name, kind)
    return asked


def chosen(program, backend=None, device=None, reference=None):
    return choose_body(program, backend, device, reference).provenance.recipe


CARD = FoundDevice("card:0", "a card", "")
BROKEN = FoundDevice("card:0", "a card", "lacks something")
SLOW = FoundDevice("card:0", "a program", "", software=True)


def test_the_first_that_can_run_is_taken_and_no_other_looked_for():
    register("card", CARD)
    later = register("chip"), register("plain")
    assert chosen(of_backends(*ALL)) == "r_card"
    assert later == ([], [])


def test_one_without_its_library_or_a_device_comes_after_all_that_are_here():
    register("card", BROKEN, missing=True)
    register("chip", missing=True)
    register("plain")
    assert chosen(of_backends(*ALL)) == "r_plain"
    assert chosen(of_backends("card", "chip")) == "r_card"


@pytest.mark.parametrize(
    "refuses",
    [
        NativeCallFailed(library="driver", what="an instance", reason="refused"),
        OutOfMemory(what="a device", nbytes=0),
    ],
)
def test_one_whose_driver_refuses_comes_after_all_that_are_here(refuses):
    register("card", refuses=refuses)
    register("chip")
    assert chosen(of_backends("card", "chip")) == "r_chip"


def test_a_program_that_acts_as_a_device_comes_last_of_what_is_here():
    register("card", SLOW)
    register("chip", missing=True)
    assert chosen(of_backends("card", "chip")) == "r_card"
    register("plain")
    assert chosen(of_backends(*ALL)) == "r_plain"


def test_a_backend_that_is_not_installed_comes_after_those_with_a_reference():
    register("plain", missing=True)
    assert chosen(of_backends("unknown", "plain")) == "r_plain"


def test_what_is_asked_for_is_taken():
    register("card", SLOW)
    register("chip", missing=True)
    register("plain")
    program = of_backends(*ALL)
    assert chosen(program, backend="chip") == "r_chip"
    assert chosen(program, device="card:0") == "r_card"
    assert chosen(program, reference=True) == "r_card"
    assert chosen(program, backend="plain", reference=True) == "r_plain"


def test_a_single_recipe_is_taken_whatever_is_missing():
    asked = register("card", missing=True)
    assert chosen(of_backends("card")) == "r_card"
    assert asked == []


@pytest.mark.parametrize("names", [("card",), ALL])
def test_a_backend_without_a_recipe_is_refused(names):
    with pytest.raises(BadSetting, match="has a recipe for, here card") as caught:
        chosen(of_backends(*names), backend="cpu")
    assert caught.value.found == "'cpu'"


def test_load_runs_what_was_chosen(tmp_path):
    register("card", missing=True)
    register("plain")
    path = write_bundle(tmp_path / "m.kvc", (of_backends("card", "plain"), BYTES))
    with load(path) as program:
        assert program.provenance.recipe == "r_plain"
        turned, _, _ = program.forward(np.ones((2, 4), np.float32))
        assert turned.tolist() == [[1, 2], [3, -4], [1, 2], [3, -4]]
    with load(path, backend="card") as program:
        assert program.provenance.recipe == "r_card"
    with pytest.raises(MissingLibrary, match="card"):
        load(path, backend="card", reference=False)
    none = write_bundle(tmp_path / "n.kvc", (of_backends("x", "y"), BYTES))
    with pytest.raises(MissingDelegate, match="needs the backend x"):
        load(none)
