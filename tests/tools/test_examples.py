"""Every `--help` ends with an example that is a command line of today."""

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from kvc.recipes import load_recipes
from kvc.runtime.delegates.table import DELEGATES
from kvc.tools.cli import main


def example_of(name):
    told = CliRunner().invoke(main, [name, "--help"], prog_name="kvc").output
    (text,) = re.findall(r"Example: kvc (.*?)\n\n", told, re.DOTALL)
    return shlex.split(text.partition(">>")[0])


@pytest.mark.parametrize("name", list(main.commands))
def test_the_example_of_a_command_is_one(name):
    used, *arguments = example_of(name)
    assert used == name or name == "recipes"  # its names are for `kvc compile`
    with main.commands[used].make_context(used, arguments) as made:
        given = made.params
    if isinstance(given.get("recipe"), str):
        assert load_recipes(given["recipe"])
    if isinstance(given.get("target"), str):
        assert given["target"].partition(":")[0] in DELEGATES


def test_an_example_with_an_option_that_is_none_would_be_found():
    with pytest.raises(click.NoSuchOption):
        main.commands["export"].make_context("export", ["a.kvc", "--aim", "coreml"])
