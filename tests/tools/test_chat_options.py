"""What `kvc chat` is given for the chat template."""

import json

import click
import pytest

from kvc.tools.chat_options import TemplateGiven, named_values, tools_in


def test_values_are_json():
    given = ["enable_thinking=false", 'date="1=2"', "n=[1, null]"]
    expected = {"enable_thinking": False, "date": "1=2", "n": [1, None]}
    assert named_values(given) == expected


@pytest.mark.parametrize("text", ["a", "a=False", "=1", "a=1\x00", ""])
def test_what_is_no_value_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected NAME=JSON"):
        named_values([text])
    with pytest.raises(click.BadParameter, match="each name once"):
        named_values(["a=1", "a=1"])


def test_tools_are_a_list_or_one(tmp_path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "a"}, {"name": "b"}]))
    assert [tool["name"] for tool in tools_in(file)] == ["a", "b"]
    whole = {"type": "function", "function": {"name": "a"}}
    for given in (whole, [whole]):
        file.write_text(json.dumps(given))
        assert tools_in(file) == [whole]


@pytest.mark.parametrize(
    "wrong", [{"name": "a"}, {"tools": [{"name": "a"}]}, [{"function": "a"}], [{}]]
)
def test_another_shape_of_tools_is_refused_with_the_right_one(tmp_path, wrong):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(wrong))
    with pytest.raises(click.BadParameter, match="expected a list of tools, each "):
        tools_in(file)


@pytest.mark.parametrize("text", ["", "3", '["a"]', "{", "\xff"])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    file = tmp_path / "tools.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(click.BadParameter, match=r"tools\.json: "):
        tools_in(file)


def test_what_was_given_is_named():
    assert TemplateGiven(None, {}).options == ()
    given = TemplateGiven([], {"a": 1}, "text")
    expected = ("--tools", "--template-argument", "--special-tokens")
    assert given.options == expected
