"""Write `tools/reports/JSON.md`: the fields that commands print with `--json`.

    python tools/dev/json_page.py

The page is made from the fields, types and docstrings of the classes of reports. Run
the program after a change of one of these classes.
"""

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType

from kvc.runtime.scoring import Evaluation
from kvc.schema.container import Collected
from kvc.tools.bench.method_speeds import MethodSpeed
from kvc.tools.bench.profiling import ProfileReport
from kvc.tools.bench.rounds import BenchReport
from kvc.tools.checks.expected import Checked
from kvc.tools.commands.verify import VerifyReport
from kvc.tools.executorch.report import PteReport
from kvc.tools.generation_output import AnswerReport
from kvc.tools.printing import VERSIONS
from kvc.tools.reports.bundle import DumpReport
from kvc.tools.reports.differences import DifferenceReport
from kvc.tools.reports.files import ExportedReport, SessionReport
from kvc.tools.reports.footprint import Footprint
from kvc.tools.reports.instructions import ListingReport
from kvc.tools.reports.recipes import RecipeGroup
from kvc.tools.reports.savings import Saving

PAGE = Path(__file__).parents[1] / "reports" / "JSON.md"
# The command; the key beside `version`, "" if the fields are beside `version`, and
# what is under it; the class.
PRINTED: tuple[tuple[str, str, str, type | None], ...] = (
    ("kvc dump BUNDLE --json", "", "", DumpReport),
    ("kvc dump BUNDLE --ops METHOD --json", "ops", "a list of ", ListingReport),
    (
        "kvc dump BUNDLE --at ... --json",
        "footprint",
        "with `total`, the sum, ",
        Footprint,
    ),
    ("kvc dump BUNDLE --what-if --json", "savings", "a list of ", Saving),
    ("kvc dump SESSION --json", "session", "", SessionReport),
    ("kvc dump PROGRAM.pte --json", "", "", PteReport),
    ("kvc dump EXPORTED --json", "exported", "", ExportedReport),
    ("kvc diff OLD NEW --json", "", "", DifferenceReport),
    ("kvc generate BUNDLE PROMPT... --json", "", "a line for each, ", AnswerReport),
    (
        "kvc eval BUNDLE... FILE --json",
        "bundles",
        "with `file`, a list of ",
        Evaluation,
    ),
    ("kvc bench BUNDLE... --json", "bundles", "a list of ", BenchReport),
    (
        "kvc bench BUNDLE... --json",
        "methods",
        "of bundles that generate no text, a list of ",
        MethodSpeed,
    ),
    ("kvc profile BUNDLE --json", "tests", "a list of ", ProfileReport),
    ("kvc verify FILE... --json", "files", "a list of ", VerifyReport),
    (
        "kvc check BUNDLE --json",
        "",
        "with `path` and `ok`; if this is false `result`, `expected` and `found` of "
        "the first that differs, or of a damaged weight, and otherwise ",
        Checked,
    ),
    ("kvc gc FOLDER --json", "", "with `folder`, `dry_run`, `nbytes`, ", Collected),
    (
        "kvc recipes --json",
        "recipes",
        "name -> description; with `devices`, what they run on, a list of ",
        RecipeGroup,
    ),
    (
        "kvc devices --json",
        "devices",
        "a list with `backend`, `device`, `what`, and `missing`: why it cannot be used",
        None,
    ),
)
HEAD = """\
# What commands print with `--json`

`python tools/dev/json_page.py` writes this page from the classes of reports.

Each output is one object with the key `version`, which the table below tells. A field
that goes, or comes to mean something else, raises it; a new field does not. Bytes and
counts are integers, digests are hexadecimal, `null` stands for nothing.

With `--size`, `--memory`, `--states`, `--copies` (the key `updates`), `--blobs` or
`--delegates` (`delegates` and `operators`) `kvc dump` leaves the other keys out. Of a
`.pte` file `--ops METHOD` prints under `ops` a list of objects with `method`, its
name, and `code`, its instructions as lines of text.

| command | version | key | |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the text of the page."""
    rows = [
        f"| `{command}` | {VERSIONS[command.split()[1]]} | {f'`{key}`' if key else ''} "
        f"| {many}{_link(kind) if kind else ''} |"
        for command, key, many, kind in PRINTED
    ]
    kinds: dict[type, None] = {}
    for *_, kind in PRINTED:
        if kind is not None:
            _collect(kind, kinds)
    sections = [line for kind in kinds for line in ("", *_section(kind))]
    return HEAD + "\n".join([*rows, *sections]) + "\n"


def _collect(kind: type, kinds: dict[type, None]) -> None:
    """Add a class, and the classes of its fields."""
    if kind in kinds:
        return
    kinds[kind] = None
    for hint in typing.get_type_hints(kind).values():
        for part in _parts(hint):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                _collect(part, kinds)


def _parts(hint: object) -> Iterator[object]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)


def _section(kind: type) -> list[str]:
    summary, _, rest = (inspect.getdoc(kind) or "").partition("Attributes:")
    told = _told(rest)
    hints = typing.get_type_hints(kind)
    rows = [
        f"| `{one.name}` | {_typed(hints[one.name])} | {told.get(one.name, '')} |"
        for one in dataclasses.fields(kind)
    ]
    lines = [f"## {kind.__name__}", "", " ".join(summary.split()), ""]
    return [*lines, "| field | type | |", "| --- | --- | --- |", *rows]


def _told(text: str) -> Mapping[str, str]:
    """Return the description of each attribute in a docstring."""
    found: dict[str, str] = {}
    names: Sequence[str] = ()
    for line in text.splitlines():
        start = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: said.replace("|", "\\|") for name, said in found.items()}


def _typed(hint: object) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f'"{part}"' for part in parts)
    if isinstance(hint, UnionType) or origin is typing.Union:
        return " or ".join(_typed(part) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {_typed(parts[1])}"
    if origin is not None:
        kinds = dict.fromkeys(_typed(part) for part in parts if part is not Ellipsis)
        return f"list of {' and '.join(kinds)}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _link(hint)
    names = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
    }
    return names.get(typing.cast("type", hint), str(hint))


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
