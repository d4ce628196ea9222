"""Descriptions of answers in tokenizer_config.json, right and wrong."""

import sys
from copy import deepcopy

import pytest
from transformers.utils.chat_parsing import parse_response

from kvc.runtime.tokenizers.reply_parser import ReplyParser
from kvc.runtime.tokenizers.response_templates import described_form
from kvc.schema.errors import BadChatTemplate

DESCRIBED = {
    "version": 1,
    "defaults": {"role": "assistant", "mood": None},
    "start_anchor_pattern": r"\[a\d*\]",
    "fields": {
        "thinking": {"open": ["<t>", "<th>"], "close": "</t>", "repeats": True},
        "notes": {"open": "<n>", "close": "</n>", "repeats": True, "join": "; "},
        "count": {"open": "<c>", "close": "</c>", "content": "int"},
        "share": {"open": "<s>", "close": "</s>", "content": "float"},
        "sure": {"open": "<b>", "close": "</b>", "content": "bool"},
        "pairs": {
            "open": "<p>",
            "close": "</p>",
            "content": "kv-lines",
            "content_args": {"value_parser": {"name": "json"}},
        },
        "tags": {
            "open": "<x>",
            "close": "</x>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"\[(?P<key>\w+)\](?P<value>[^\[]*)",
                "merge_duplicates": True,
            },
        },
        "tool_calls": {
            "open_pattern": r"<call (?P<name>\w+)>",
            "close_pattern": r"</call>\s*",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["~", "~"]]},
            "transform": {"function": {"name": "{name}", "arguments": "{content.a}"}},
        },
        "all": {
            "open": "<all>",
            "close": "</all>",
            "content": "json",
            "transform": {"one": "{x}", "two": [1, "{x}"]},
            "transform_each": True,
        },
        "loose": {
            "open": "<l>",
            "close": "</l>",
            "content": "json",
            "content_args": {"allow_non_json": True},
        },
        "content": {"close": "[end]"},
    },
}
ANSWERS = [
    "",
    "<t> a </t><th>b</t> there ",
    "<n>a</n><n>b</n>",
    "<c> 3 </c><s>0.5</s><b>True</b>x",
    "<p>a: 1\n b: [2]\nno\n</p><x>[a]1[b]2[a]3</x>",
    'A <call add>{a:{b:~"x~,c:[1]}}</call>\n <call sub>{a:{}}</call>',
    '<all>[{"x": 1}, {"x": [2]}]</all><l> no json </l>',
    "<c>3",
    "text[end]",
    " text ",
]
BROKEN = ["<c>x</c>", "<call add>{</call>", "<call add>{b:1}</call>", "<all>3</all>"]


def parse(answer, cuts, prefix=""):
    parser = ReplyParser(described_form(DESCRIBED), prefix, None)
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        pieces += parser.push(answer[start:end])
    pieces += parser.finish()
    return parser.message(), parser.problems, pieces


@pytest.mark.parametrize("package", ["regex", "re"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_parsed_as_by_transformers(answer, package, monkeypatch):
    prefixes = ["", "[a][a1]", "[a7]<t>be", "[a] <n>"]
    wanted = [parse_response(answer, DESCRIBED, prefix=one) for one in prefixes]
    if package == "re":
        monkeypatch.setitem(sys.modules, "regex", None)
    for prefix, expected in zip(prefixes, wanted, strict=True):
        for cut in range(len(answer) + 1):
            found, problems, _ = parse(answer, [cut], prefix)
            assert found == {"content": "", **expected}
            assert problems == []


@pytest.mark.parametrize("answer", BROKEN)
def test_what_cannot_be_read_stays(answer):
    with pytest.raises((ValueError, KeyError)):
        parse_response(answer, DESCRIBED, prefix="")
    for cut in range(len(answer) + 1):
        found, problems, _ = parse(f"A {answer} B", [cut])
        assert found["content"] == f"A {answer} B"
        assert len(problems) == 1


def test_text_beside_regions_is_kept():
    assert parse("A<c>1</c>B", [3])[0]["content"] == "A\nB"
    assert parse("A[end]\n", [3])[0]["content"] == "A"


def test_pieces_are_sure_with_the_package_regex():
    parser = ReplyParser(described_form(DESCRIBED), "", None)
    assert parser.push("Hello <ca") == ["Hello"]
    assert parser.push("ke>") == [" <cake>"]
    assert parser.push(" <call a>{") == []


def test_a_pattern_that_takes_too_long_ends_the_parsing(monkeypatch):
    monkeypatch.setattr("kvc.runtime.tokenizers.reply_marks._SECONDS", 0.01)
    slow = deepcopy(DESCRIBED)
    slow["fields"] = {"a": {"open_pattern": r"\s*\s*\s*\s*\s*<a>"}, "content": {}}
    parser, answer = ReplyParser(described_form(slow), "", None), "b" + " " * 3000 + "c"
    pieces = [*parser.push(answer), *parser.push("<a>d"), *parser.finish()]
    assert "".join(pieces) == answer + "<a>d"
    assert parser.message()["content"] == answer + "<a>d"
    assert parser.problems == ["a pattern of the response_template takes too long"]


def changed(*path, value):
    found = deepcopy(DESCRIBED)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize(
    "found",
    [
        3,
        [],
        {},
        {"fields": {}, "start_anchor": "a"},
        {"fields": {"a": {}, "b": {}}, "start_anchor": "a"},
        {"fields": {"a": {}}},
        changed("version", value=2),
        changed("more", value=1),
        changed("defaults", value=[]),
        changed("fields", value=[]),
        changed("start_anchor", value="both"),
        changed("fields", "content", value=3),
        changed("fields", "content", value={"more": 1}),
        changed("fields", "count", "content", value="date"),
        changed("fields", "count", "content", value=["int"]),
        changed("fields", "count", "content_args", value=3),
        changed("fields", "count", "open", value=""),
        changed("fields", "count", "open", value=[]),
        changed("fields", "count", "open", value=[3]),
        changed("fields", "count", "join", value="a"),
        changed("fields", "notes", "join", value=3),
        changed("fields", "tool_calls", "open_pattern", value="("),
        changed("fields", "tool_calls", "open_pattern", value=3),
        changed("fields", "tool_calls", "open_pattern", value="(a+)+b"),
        changed("fields", "tool_calls", "open_pattern", value="a" * 1001),
        changed("fields", "tool_calls", "transform", value="a{content}"),
        changed("fields", "tags", "content_args", value={}),
        changed("fields", "tags", "content_args", "tag_pattern", value="(?P<key>a)"),
        changed("fields", "pairs", "content_args", "line_sep", value=""),
        changed("fields", "pairs", "content_args", "value_parser", value=3),
        changed("fields", "pairs", "content_args", "value_parser", "name", value="x"),
    ],
)
def test_wrong_descriptions_are_refused(found):
    with pytest.raises(BadChatTemplate, match=r"tokenizer_config\.json: its response_"):
        described_form(found)
