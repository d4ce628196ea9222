"""The facts of every kind: what a type checker knows of them, and what they become."""

import copy
import pickle
from pathlib import Path
from typing import get_type_hints

import mypy.api
import pytest

from kvc.schema import errors
from kvc.schema.errors import Busy, CacheOverflow

SCHEMA = Path(errors.__file__).parents[1]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
FAMILIES = {"KvcError"} | {
    f"{name}Error"
    for name in ("Batch", "Format", "Load", "Execution", "Recipe", "Serving")
}
VALUES = {str: "text", int: 7, float: 0.5, object: 1.5, tuple[str, ...]: ("a", "b")}
NOT_INHERITED = {"CompileError": {"message": "m"}, "CheckpointError": {"reason": "r"}}
RAISES = """\
from kvc.schema.errors import (CompileError, LoadError, PlanFailed, Truncated)

def right() -> None: raise Truncated(path="p", found=1, what="w", expected=2)
def wrong() -> None: raise Truncated(path="p", found=1, what="w", expected=2, seen=3)
def missing() -> None: raise Truncated(path="p", found=1, what="w")
def mistyped() -> None: raise Truncated(path="p", found="1", what="w", expected=2)
def bare() -> None: raise LoadError(message="m")
def inherited() -> None: raise PlanFailed(method="s", reason="r", message="m")
def told() -> None: raise CompileError(message=b"m")
def read(error: Truncated) -> str: return error.found
"""


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.__name__ not in FAMILIES],
    ids=lambda kind: kind.__name__,
)
def test_every_kind_makes_a_message_of_its_facts(kind):
    hints = {k: v for k, v in get_type_hints(kind).items() if not hasattr(kind, k)}
    facts = {name: VALUES[hint] for name, hint in hints.items()}
    facts |= NOT_INHERITED.get(kind.__name__, {})
    error = kind(**facts)
    assert error.facts == vars(error) == facts
    assert error.args == (str(error),)
    assert str(error)
    assert "{" not in str(error)
    assert error.code == kind.__name__
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again)) == (kind, str(error))
        assert again.facts == facts
        assert again != error


def test_a_type_checker_refuses_wrong_facts(tmp_path, monkeypatch):
    (tmp_path / "kvc").mkdir()
    (tmp_path / "kvc/schema").symlink_to(SCHEMA)
    monkeypatch.setenv("MYPYPATH", str(tmp_path))
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}"]
    said, _, _ = mypy.api.run([*options, "--no-error-summary", "-c", RAISES])
    found = [line.split(": error: ")[1] for line in said.splitlines()]
    assert found == [
        'Unexpected keyword argument "seen" for "Truncated"  [call-arg]',
        'Missing named argument "expected" for "Truncated"  [call-arg]',
        'Argument "found" to "Truncated" has incompatible type "str"; '
        'expected "int"  [arg-type]',
        'Argument "message" to "LoadError" has incompatible type "str"; '
        'expected "Never"  [arg-type]',
        'Unexpected keyword argument "message" for "PlanFailed"  [call-arg]',
        'Argument "message" to "CompileError" has incompatible type "bytes"; '
        'expected "str"  [arg-type]',
        'Incompatible return value type (got "int", expected "str")  [return-value]',
    ]


def test_errors_are_equal_by_identity_and_take_facts_by_name():
    first, second = (Busy(method="f") for _ in range(2))
    assert len({first, second, first}) == 2
    with pytest.raises(TypeError):
        Busy("f")


def test_a_note_goes_along_through_pickle():
    error = CacheOverflow(row=0, start=1, count=1, capacity=1)
    error.add_note("in row 0")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["in row 0"]
