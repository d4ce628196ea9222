import hashlib
import runpy
from pathlib import Path

import pytest

from kvc.schema._generated import TABLES
from kvc.schema.codec.graphs import (
    ALIAS,
    CALLER,
    CONSTANT,
    CURSOR,
    LIST,
    NONE,
    SCRATCH,
    STATE,
)
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField
from kvc.schema.model import CursorKind, MemoryKind, ResetRule, StateKind

ROOT = Path(__file__).parents[2]
FBS = ROOT / "schema" / "program.fbs"
GENERATED = ROOT / "schema" / "_generated.py"
READER = ROOT / "runtime_py" / "native" / "libkvc" / "program_generated.h"


def members(table, name):
    return next(field[5] for field in TABLES[table] if field[0] == name)


def test_the_generated_layout_is_that_of_the_schema():
    digest = hashlib.sha256(FBS.read_bytes()).hexdigest()
    first = GENERATED.read_text().splitlines()[0]
    assert first == f"# sha256 of program.fbs: {digest}"
    first = READER.read_text().splitlines()[0]
    assert first == f"// sha256 of program.fbs: {digest}"


def test_generating_again_changes_nothing():
    script = runpy.run_path(str(ROOT / "tools" / "dev" / "gen_schema.py"))
    try:
        made = script["render_all"]()
    except SystemExit:
        pytest.skip("flatc is not installed")
    assert made.keys() == {GENERATED, READER}
    for path, text in made.items():
        assert text == path.read_text()


def test_enums_of_the_schema_are_those_of_the_model():
    assert members("Pool", "type_dtypes") == len(DType)
    assert members("State", "kind") == len(StateKind)
    assert members("State", "reset") == len(ResetRule)
    assert members("Cursor", "kind") == len(CursorKind)
    assert members("Delegate", "memory") == len(MemoryKind)
    assert members("Graph", "value_storages") == CURSOR + 1
    assert members("Graph", "argument_kinds") == LIST + 1
    assert (
        members("Cursor", "capacity_kind")
        == members("Cursor", "rows_kind")
        == members("Pool", "dim_kinds")
        == 2
    )
    assert members("Advance", "tokens_kind") == 2
    assert (CONSTANT, STATE, SCRATCH, ALIAS, CALLER, CURSOR) == (0, 1, 2, 3, 4, 5)
    assert NONE == 0


def test_each_member_of_the_schema_has_the_model_s_number():
    text = FBS.read_text()
    for member in DType:
        assert f"{member.name} = {int(member)}" in text
    for enum in (StateKind, ResetRule, CursorKind, CursorField, MemoryKind):
        body = ", ".join(f"{member.name} = {int(member)}" for member in enum)
        assert f"enum {enum.__name__} : ubyte {{ {body} }}" in text
