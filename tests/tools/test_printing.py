"""How commands print: tables on a terminal, JSON that every reader takes."""

import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kvc.tools.printing import fitted, json_text

KVC = Path(sys.executable).parent / "kvc"
LONG = "  decode   layers.{0..29}.attn.k_cache   COPY   3,000   read later by another"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(number):
    value = {"a": [1.5, number, (number, {"b": number})], "c": "NaN"}
    text = json_text(value)
    assert text == '{"a": [1.5, null, [null, {"b": null}]], "c": "NaN"}'


def test_the_rest_is_as_json_writes_it():
    value = {"text": "naïve", "rows": [[1, True, None]]}
    for options in ({"indent": 2}, {"ensure_ascii": False}, {}):
        assert json_text(value, **options) == json.dumps(value, **options)


def test_long_lines_go_on_further_in():
    assert list(fitted(["STATE", LONG], 60, colour=False)) == [
        "STATE",
        "  decode   layers.{0..29}.attn.k_cache   COPY   3,000",
        "          read later by another",
    ]
    assert list(fitted([LONG], 20, colour=False)) == [LONG]
    row = "  layers.{0..29}.attn.k_cache  linear   30 x 1.57 MB  prefill rw"
    assert list(fitted([row], 50, colour=False)) == [
        "  layers.{0..29}.attn.k_cache  linear",
        "          30 x 1.57 MB  prefill rw",
    ]
    word = "x" * 100
    assert "".join("".join(fitted([word], 40, colour=False)).split()) == word


def test_titles_and_copies_are_coloured():
    title, line = fitted(["STATE", LONG], 100, colour=True)
    assert title == "\x1b[1mSTATE\x1b[0m"
    assert line == LONG.replace("COPY", "\x1b[33mCOPY\x1b[0m")


@pytest.mark.linux
def test_kvc_dump_colours_a_terminal_unless_told_not_to(sample):
    def shown(**environment):
        parent, child = pty.openpty()
        command = [KVC, "dump", sample]
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | environment
        env |= {"COLUMNS": "60"}
        with subprocess.Popen(command, stdout=child, env=env) as process:
            os.close(child)
            found = b"".join(iter(lambda: _read(parent), b""))
        os.close(parent)
        assert process.returncode == 0
        return found.decode().replace("\r\n", "\n")

    assert "\x1b[1mMETHODS\x1b[0m\n" in shown()
    plain = shown(NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 60


def _read(terminal):
    """Return what comes next, nothing at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody writes any more
        return b""
