"""Answers as text, reasoning and calls; against transformers where it has a parser."""

import random

import pytest
from chat_templates import TEMPLATES
from family_templates import FAMILIES
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
from transformers.utils.chat_parsing import parse_response

from kvc.runtime.tokenizers.reply_forms import TABLE, THINKING, form_of
from kvc.runtime.tokenizers.reply_parser import Piece, ReplyParser
from kvc.runtime.tokenizers.response_templates import described_form

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "deep": {"type": "object"},
                },
            },
        },
    }
]
ARGUMENTS = {"city": "Köln, 3", "days": 2}


def called(*arguments, name="weather", **more):
    return [
        {**more, "type": "function", "function": {"name": name, "arguments": one}}
        for one in arguments
    ]


def form(family):
    """The form of a family, by its marks alone."""
    rows = {row[0]: row for row in (*TABLE, *THINKING)}
    return form_of(
        "".join(mark for name in family.split("+") for mark in rows[name][1])
    )


JSON = '{"name": "weather", "arguments": {"city": "Köln, 3", "days": 2}}'
DEEPSEEK = (
    "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"  # noqa: RUF001
    '```json\n{"city": "a"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>weather'  # noqa: RUF001
    "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
)
QWEN_CODE = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln, 3\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln, 3</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.weather <|constrain|>json<|message|>{"city": "a"}'
)
# Family, prompt, answer, content, reasoning, calls.
ANSWERS = {
    "hermes": (
        "Hermes+thinking",
        "",
        f"<think>\nHm.\n</think>\n\nI ask.\n<tool_call>\n{JSON}\n</tool_call>\n"
        f"<tool_call>{JSON}</tool_call>",
        ("I ask.", "Hm.", called(ARGUMENTS, ARGUMENTS)),
    ),
    "hermes, begun": (
        "Hermes+thinking",
        "<|im_start|>assistant\n<think>\n",
        "Hm.\n\nHm!\n</think>\n\nIt rains.",
        ("It rains.", "Hm.\n\nHm!", None),
    ),
    "hermes, thinks of nothing": (
        "Hermes+thinking",
        "<think>\n\n</think>\n\n",
        "It rains.\n",
        ("It rains.\n", None, None),
    ),
    "hermes, thinks to the end": (
        "thinking",
        "<think>\n",
        "Hm",
        ("", "Hm", None),
    ),
    "qwen coder": ("Qwen coder", "", QWEN_CODE, ("", None, called(ARGUMENTS))),
    "glm": ("GLM", "", GLM, ("", None, called(ARGUMENTS))),
    "mistral, old": (
        "Mistral",
        "",
        f'[TOOL_CALLS][{JSON[:-1]}, "id": "abcdefgh1"}}]',
        ("", None, called(ARGUMENTS, id="abcdefgh1")),
    ),
    "mistral, new": (
        "Mistral+thinking",
        "",
        'Yes.[TOOL_CALLS]weather[ARGS]{"city": "a"}[TOOL_CALLS]weather[CALL_ID]x'
        "[ARGS]{}",
        ("Yes.", None, [*called({"city": "a"}), *called({}, id="x")]),
    ),
    "deepseek": (
        "DeepSeek+thinking",
        "",
        DEEPSEEK,
        ("Hm", None, called({"city": "a"}, {})),
    ),
    "kimi": (
        "Kimi",
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "a"}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        ("", None, called({"city": "a"}, id="functions.weather:0")),
    ),
    "gemma": (
        "Gemma",
        "",
        "<start_function_call>call:weather{city:<escape>Köln, {3:\n<escape>,days:2}"
        "<end_function_call>",
        ("", None, called({"city": "Köln, {3:\n", "days": 2})),
    ),
    "gemma 4": (
        "Gemma 4",
        "",
        "<|channel>thought\nHm.<channel|>Yes.<|tool_call>call:weather{deep:{a:"
        '[<|"|>x, y:<|"|>,<|"|><|"|>]},days:2}<tool_call|>',
        ("Yes.", "Hm.", called({"deep": {"a": ["x, y:", ""]}, "days": 2})),
    ),
    "lfm": (
        "LFM",
        "",
        'Yes<|tool_call_start|>[weather(city="a", days=2), weather()]'
        "<|tool_call_end|>No",
        ("Yes\nNo", None, called({"city": "a", "days": 2}, {})),
    ),
    "phi": (
        "Phi",
        "",
        f"<|tool_call|>[{JSON}]<|/tool_call|>",
        ("", None, called(ARGUMENTS)),
    ),
    "granite": (
        "Granite+thinking+response",
        "",
        f"<think>Hm.</think><response>Yes.</response><|tool_call|>[{JSON}]",
        ("Yes.", "Hm.", called(ARGUMENTS)),
    ),
    "command": (
        "Command",
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[{"
        '"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "a"}}]'
        "<|END_ACTION|>",
        ("", "Hm.", called({"city": "a"}, id="0")),
    ),
    "nemotron": (
        "Nemotron",
        "",
        f"<TOOLCALL>[{JSON}]</TOOLCALL>",
        ("", None, called(ARGUMENTS)),
    ),
    "llama": (
        "Llama",
        "",
        '\n{"name": "weather", "parameters": {"city": "a"}}; {"name": "weather", '
        '"parameters": {}}',
        ("", None, called({"city": "a"}, {})),
    ),
    "llama, python": (
        "Llama",
        "",
        '<|python_tag|>brave_search.call(query="a")',
        ("", None, called({"query": "a"}, name="brave_search")),
    ),
    "llama, json": ("Llama", "", ' {"a": 1}', (' {"a": 1}', None, None)),
    "gpt-oss": (
        "gpt-oss",
        "<|start|>assistant",
        HARMONY,
        ("", "Hm.", called({"city": "a"})),
    ),
    "gpt-oss, target first": (
        "gpt-oss",
        "<|start|>assistant",
        " to=functions.weather<|channel|>commentary json<|message|>{}",
        ("", None, called({})),
    ),
    "gpt-oss, text": (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Done. ",
        ("I look.\nDone. ", "Hm.", None),
    ),
}
# What begins as a call, and is none: the text stays.
BROKEN = {
    "cut off": ("Hermes", 'Yes. <tool_call>\n{"name": "we'),
    "no json": ("Hermes", "<tool_call>\nweather(3)\n</tool_call> No."),
    "no name": ("Hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    "no arguments": ("Hermes", '<tool_call>{"name": "a"}</tool_call>'),
    "arguments of a list": ("Hermes", '<tool_call>{"name": "a", "arguments": [1]}'),
    "nothing": ("Hermes", "<tool_call></tool_call>"),
    "deep": ("Hermes", "<tool_call>" + "[" * 99999 + "</tool_call>"),
    "a list of texts": ("Mistral", '[TOOL_CALLS]["a"]'),
    "no target": ("Mistral", "[TOOL_CALLS][ARGS]{}"),
    "code": ("Llama", "<|python_tag|>import os\nos.listdir()"),
    "no names": ("LFM", "<|tool_call_start|>[weather(3)]<|tool_call_end|>"),
    "more names": ("LFM", "<|tool_call_start|>[weather(**a)]<|tool_call_end|>"),
    "no call": ("LFM", "<|tool_call_start|>[3, weather]<|tool_call_end|>"),
    "no constant": ("LFM", "<|tool_call_start|>w(a=open(1))<|tool_call_end|>"),
    "no json value": ("LFM", "<|tool_call_start|>w(a={1, 2})<|tool_call_end|>"),
    "deep python": ("LFM", "<|tool_call_start|>" + "(" * 9999 + "<|tool_call_end|>"),
    "no brace": ("Gemma", "<start_function_call>call:a<end_function_call>"),
    "no mark": ("Gemma", "<start_function_call>a{}<end_function_call>"),
    "rest": ("Qwen coder", "<tool_call><function=a></function>b</tool_call>"),
    "no parameter": ("Qwen coder", "<tool_call><function=a>b</function></tool_call>"),
    "no function": ("Qwen coder", "<tool_call>  </tool_call>"),
    "no key": ("GLM", "<tool_call><arg_key>a</arg_key></tool_call>"),
    "no section": ("Kimi", "<|tool_calls_section_begin|>a"),
    "no separator": ("DeepSeek", DEEPSEEK.replace("sep", "end")),
    "no message": ("gpt-oss", "<|channel|>analysis to=functions.weather"),
}


def parse(answer, form, prompt="", tools=TOOLS, cuts=()):
    """Return the message, the pieces, and what is told, of an answer cut anywhere."""
    parser, pieces = ReplyParser(form, prompt, tools), list[Piece]()
    ends = [*cuts, len(answer)]
    for start, end in zip([0, *cuts], ends, strict=True):
        pieces += parser.push(answer[start:end])
    pieces += parser.finish()
    return parser.message(), pieces, parser.problems


def joined(pieces, part):
    return "".join(piece for piece in pieces if piece.part == part)


def cuts_of(answer, seed):
    chance = random.Random(seed)
    most = min(len(answer), 1 + seed % 9)
    return sorted(chance.sample(range(len(answer) + 1), most))


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_told_apart(name):
    family, prompt, answer, (content, thought, calls) = ANSWERS[name]
    message, pieces, problems = parse(answer, form(family), prompt)
    expected = {"content": content, "reasoning_content": thought, "tool_calls": calls}
    assert message == {key: one for key, one in expected.items() if one is not None}
    assert problems == []
    assert joined(pieces, "content") == content
    assert joined(pieces, "reasoning_content") == (thought or "")


@pytest.mark.parametrize("name", [*ANSWERS, *BROKEN])
def test_every_cut_of_an_answer_is_parsed_as_the_whole(name):
    family, prompt, answer = (
        ANSWERS[name][:3] if name in ANSWERS else (BROKEN[name][0], "", BROKEN[name][1])
    )
    answer = answer if len(answer) < 3000 else answer[:60]
    whole = parse(answer, form(family), prompt)
    parts = ("content", "reasoning_content", "tool_calls")
    every = [range(1, len(answer)), *([i] for i in range(len(answer)))]
    for cuts in (*every, *(cuts_of(answer, seed) for seed in range(60))):
        made = parse(answer, form(family), prompt, cuts=list(cuts))
        assert made[0] == whole[0]
        assert made[2] == whole[2]
        for part in parts:
            assert joined(made[1], part) == joined(whole[1], part)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_call_stays_in_the_text(name):
    family, answer = BROKEN[name]
    message, pieces, problems = parse(answer, form(family))
    assert message == {"content": answer}
    assert joined(pieces, "content") == answer
    assert (len(problems), "is no call:" in problems[0]) == (1, True)


def test_calls_beside_a_broken_one_are_kept():
    call = f"<tool_call>{JSON}</tool_call>"
    answer = f"A\n{call}\n<tool_call>{{</tool_call>\nB{call}"
    message, _, problems = parse(answer, form("Hermes"))
    assert message["tool_calls"] == called(ARGUMENTS, ARGUMENTS)
    assert message["content"] == "A<tool_call>{</tool_call>\nB"
    assert len(problems) == 1


def test_text_comes_as_soon_as_it_is_sure():
    parser = ReplyParser(form("Hermes+thinking"), "", TOOLS)
    assert parser.push("Yes") == ["Yes"]
    assert parser.push(" <") == []
    assert parser.push("b>") == [" <b>"]
    assert parser.push("\n<tool_call>{") == []
    assert parser.push("}</tool_call>") == ["\n<tool_call>{}</tool_call>"]
    assert parser.push(" x") == [" x"]


def test_without_a_form_all_is_text_at_once():
    parser = ReplyParser(None, "", TOOLS)
    assert parser.push(" <think> ") == [" <think> "]
    assert (parser.finish(), parser.problems) == ([], [])
    assert parser.message() == {"content": " <think> "}


@pytest.mark.parametrize("tools", [None, []])
def test_an_answer_in_json_is_no_call_where_there_are_no_tools(tools):
    answer = '{"name": "weather", "parameters": {}}'
    assert parse(answer, form("Llama"), tools=tools)[0] == {"content": answer}


@pytest.mark.parametrize("value", ["<escape>9", "<escape>-1", "<escape>0", "<escape>"])
def test_a_text_that_is_like_the_mark_of_another_is_no_call(value):
    opens, closes = "<start_function_call>", "<end_function_call>"
    answer = f'{opens}call:weather{{city:"{value}"}}{closes}'
    message, _, problems = parse(answer, form("Gemma"))
    assert message == {"content": answer}
    assert len(problems) == 1


def test_families_are_recognized_by_their_templates():
    names = {
        name: getattr(form_of(text), "name", "") for name, text in FAMILIES.items()
    }
    assert names == {
        "qwen": "Hermes and thinking",
        "qwen_coder": "Qwen coder and thinking",
        "thinking": "thinking",
        "llama": "Llama",
        "mistral": "Mistral",
        "granite": "Granite",
        "harmony": "gpt-oss",
        "gemma": "Gemma",
    }
    assert [form_of(TEMPLATES[name]) for name in ("chatml", "gemma", "features")] == [
        None
    ] * 3


@pytest.mark.parametrize("types", list(_RESPONSE_TEMPLATE_FALLBACKS))
@pytest.mark.parametrize("name", ["hermes", "hermes, begun", "qwen coder", "gemma 4"])
def test_described_forms_are_parsed_as_by_transformers(types, name):
    described, (_, prompt, answer, _) = (
        _RESPONSE_TEMPLATE_FALLBACKS[types],
        ANSWERS[name],
    )
    starts = described["start_anchor"]
    start = starts if isinstance(starts, str) else starts[0]
    begun = prompt.removeprefix(start)
    answer = answer + ("<|im_end|>\n<|endoftext|>" if "qwen" in types[0] else "<turn|>")
    for tools in (TOOLS, None):
        prefix = f"<think>before{start}{begun}"
        try:
            expected = parse_response(answer, described, prefix=prefix, tools=tools)
        except ValueError:  # a call of another family, which stays as it is
            expected = None
        for seed in range(20):
            cuts = cuts_of(answer, seed)
            found, _, problems = parse(
                answer, described_form(described), prefix, tools, cuts
            )
            if expected is None:
                assert problems
            else:
                assert found == {"content": "", **expected}
