"""The page of what commands print with `--json` is that of today's reports."""

import dataclasses
import json

from kvc.tools.cli import main
from kvc.tools.commands.verify import VerifyReport
from kvc.tools.dev.json_page import PAGE, PRINTED, page
from kvc.tools.printing import VERSIONS
from kvc.tools.reports.bundle import DumpReport
from kvc.tools.reports.differences import DifferenceReport


def test_the_page_is_up_to_date():
    """Else run `python tools/dev/json_page.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_fields_are_told_from_docstrings():
    lines = page().splitlines()
    assert "| `kind` | text |  |" in lines
    said = "the most bytes in use at one time, as the file states them; no plan can be"
    assert f"| `peak_live` | integer | {said} smaller. |" in lines


def test_every_command_that_prints_json_is_there_with_a_version():
    commands = {
        name
        for name, command in main.commands.items()
        if any("--json" in one.opts for one in command.params)
    }
    assert commands == set(VERSIONS)
    assert commands == {command.split()[1] for command, *_ in PRINTED}


def test_what_dump_prints_has_the_fields_of_the_page(kvc, tiny):
    told = json.loads(kvc("dump", tiny, "--json").stdout)
    assert told.pop("version") == VERSIONS["dump"]
    assert list(told) == [field.name for field in dataclasses.fields(DumpReport)]


def test_what_verify_prints_has_the_fields_of_the_page(kvc, tiny):
    told = json.loads(kvc("verify", tiny, "--json").stdout)
    assert told.pop("version") == VERSIONS["verify"]
    (told,) = told.pop("files")
    assert list(told) == [field.name for field in dataclasses.fields(VerifyReport)]


def test_what_diff_prints_has_the_fields_of_the_page(kvc, tiny):
    told = json.loads(kvc("diff", tiny, tiny, "--json").stdout)
    assert told.pop("version") == VERSIONS["diff"]
    assert list(told) == [field.name for field in dataclasses.fields(DifferenceReport)]
