"""Forms of answers: the marks by which families of models tell reasoning and calls.

In: the text of a chat template. Out: the form of the answers of its model: regions that
begin and end with marks. `TABLE` has all families; another template gives None, and
answers are text alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from kvc.runtime.tokenizers.call_readers import (
    Call,
    Reader,
    Types,
    call,
    deepseek_calls,
    gemma_calls,
    glm_calls,
    json_calls,
    kimi_calls,
    mistral_calls,
    python_calls,
    xml_calls,
)
from kvc.runtime.tokenizers.reply_marks import Mark, Pattern, Texts
from kvc.schema.frozen import frozen

CONTENT: Final = "content"
REASONING: Final = "reasoning_content"
CALLS: Final = "tool_calls"


# The text of a region, the groups of its opening pattern, the tools -> the values.
ReadValues = Callable[[str, Mapping[str, str], Types], list[object]]


@frozen
class Region:
    """A part of an answer that becomes a field of the message.

    Attributes:
        field: the name of the field.
        opens: what begins the region; nothing for the region that holds all other text.
        closes: what ends it; nothing for one that goes on to the end of the answer.
        read: returns the region's values; None if its text is the value.
        several: whether the values are appended to a list; if not, the last one counts.
        join: for texts, what stands between the texts of several such regions; None to
            keep the last one alone.
        first: whether the region can only begin an answer; the opening is then part of
            its text, and a text that cannot be read is no mistake.
        head: what ends the region's head, after which `choose` returns the region that
            follows; None for a region without a head.
        choose: returns the region that a head announces.
    """

    field: str
    opens: Mark | None = None
    closes: Mark | None = None
    read: ReadValues | None = None
    several: bool = False
    join: str | None = "\n"
    first: bool = False
    head: Mark | None = None
    choose: "Callable[[str], Region] | None" = None


@frozen
class Form:
    """The form of a model's answers.

    Attributes:
        name: the name of the family, or of the file that describes the form.
        regions: the regions.
        rest: the region of all other text, None to leave it out.
        begin: a text that ends prompts, and is the head of the first region.
        anchor: the pattern of what begins an answer; what the prompt has after its last
            match belongs to the answer. None: a prompt that ends with the opening of a
            region begins it.
        strips: whether texts are stripped at both ends; otherwise only beside marks.
        defaults: fields that every message has.
    """

    name: str
    regions: tuple[Region, ...]
    rest: Region | None = Region(CONTENT)
    begin: str = ""
    anchor: Pattern | None = None
    strips: bool = False
    defaults: Mapping[str, object] | None = None

    def shows(self, token: str) -> bool:
        """Tell whether the parser must see a special token, since it may be a mark."""
        if self.anchor is not None:
            return True
        marks = [m for r in self.regions for m in (r.opens, r.closes, r.head) if m]
        return token in _WITHIN or any(token in mark.texts for mark in marks)


def _mark(*texts: str) -> Mark:
    return Texts(texts)


def _calls(
    reader: Reader, opens: str, closes: str | None = None, first: bool = False
) -> Region:
    """Return the region of calls between two marks, or up to the end."""

    def read(text: str, groups: Mapping[str, str], types: Types) -> list[object]:
        return [*reader(text, types)]

    end = None if closes is None else _mark(closes)
    return Region(CALLS, _mark(opens), end, read, several=True, first=first)


def _text(field: str, opens: str, closes: str) -> Region:
    return Region(field, _mark(opens), _mark(closes))


# Marks that stand within the text of calls.
_WITHIN: Final = frozenset(
    {
        *("[ARGS]", "[CALL_ID]", '<|"|>', "<escape>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),  # noqa: RUF001
    }
)
_THINK: Final = _text(REASONING, "<think>", "</think>")


# gpt-oss: <|start|>assistant<|channel|>final<|message|>text<|end|>

_TO: Final = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_ENDS: Final = _mark("<|end|>", "<|call|>", "<|return|>")


def _harmony(head: str) -> Region:
    """Return the region that a head of gpt-oss announces."""
    target = _TO.search(head)
    if target is not None:
        name = target[1]

        def read(text: str, groups: Mapping[str, str], types: Types) -> list[object]:
            found: Call = call(name, text)
            return [found]

        return Region(CALLS, closes=_ENDS, read=read, several=True)
    thinks = "<|channel|>analysis" in head
    return Region(REASONING if thinks else CONTENT, closes=_ENDS)


_HARMONY: Final = Region(
    CONTENT,
    opens=_mark("<|start|>", "<|channel|>"),
    closes=_ENDS,
    head=_mark("<|message|>"),
    choose=_harmony,
)

# Name, what the template's text must have, the regions; the first that fits counts.
_Row = tuple[str, tuple[str, ...], tuple[Region, ...]]
TABLE: Final[tuple[_Row, ...]] = (
    ("gpt-oss", ("<|channel|>", "<|message|>", "<|start|>"), (_HARMONY,)),
    (
        "Qwen coder",
        ("<tool_call>", "<function="),
        (_calls(xml_calls, "<tool_call>", "</tool_call>"),),
    ),
    (
        "GLM",
        ("<tool_call>", "<arg_key>"),
        (_calls(glm_calls, "<tool_call>", "</tool_call>"),),
    ),
    (
        "Hermes",
        ("<tool_call>",),
        (_calls(json_calls, "<tool_call>", "</tool_call>"),),
    ),
    (
        "Nemotron",
        ("<TOOLCALL>",),
        (_calls(json_calls, "<TOOLCALL>", "</TOOLCALL>"),),
    ),
    ("Mistral", ("[TOOL_CALLS]",), (_calls(mistral_calls, "[TOOL_CALLS]"),)),
    (
        "DeepSeek",
        ("<｜tool▁calls▁begin｜>",),  # noqa: RUF001
        (
            _calls(
                deepseek_calls,
                "<｜tool▁calls▁begin｜>",  # noqa: RUF001
                "<｜tool▁calls▁end｜>",  # noqa: RUF001
            ),
        ),
    ),
    (
        "Kimi",
        ("<|tool_calls_section_begin|>",),
        (
            _calls(
                kimi_calls, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
            ),
        ),
    ),
    (
        "Gemma 4",
        ("<|tool_call>", "<tool_call|>"),
        (
            _calls(gemma_calls, "<|tool_call>", "<tool_call|>"),
            _text(REASONING, "<|channel>thought\n", "<channel|>"),
        ),
    ),
    (
        "Gemma",
        ("<start_function_call>",),
        (_calls(gemma_calls, "<start_function_call>", "<end_function_call>"),),
    ),
    (
        "LFM",
        ("<|tool_call_start|>",),
        (_calls(python_calls, "<|tool_call_start|>", "<|tool_call_end|>"),),
    ),
    (
        "Phi",
        ("<|tool_call|>", "<|/tool_call|>"),
        (_calls(json_calls, "<|tool_call|>", "<|/tool_call|>"),),
    ),
    ("Granite", ("<|tool_call|>",), (_calls(json_calls, "<|tool_call|>"),)),
    (
        "Command",
        ("<|START_ACTION|>",),
        (
            _calls(json_calls, "<|START_ACTION|>", "<|END_ACTION|>"),
            _text(REASONING, "<|START_THINKING|>", "<|END_THINKING|>"),
            _text(CONTENT, "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
    ),
    (
        "Llama",
        ("<|start_header_id|>", '"parameters"'),
        (
            _calls(python_calls, "<|python_tag|>", "<|eom_id|>"),
            _calls(json_calls, "{", first=True),
        ),
    ),
)
# Reasoning, beside any kind of calls.
THINKING: Final[tuple[_Row, ...]] = (
    ("thinking", ("</think>",), (_THINK,)),
    ("[THINK]", ("[THINK]",), (_text(REASONING, "[THINK]", "[/THINK]"),)),
    ("response", ("<response>",), (_text(CONTENT, "<response>", "</response>"),)),
)


def form_of(template: str) -> Form | None:
    """Return the form of answers to a chat template, None if it is of no known family.

    Args:
        template: the text of the template.
    """

    def fits(row: _Row) -> bool:
        return all(mark in template for mark in row[1])

    rows = [row for row in TABLE if fits(row)][:1]
    if [row[0] for row in rows] != ["gpt-oss"]:
        rows += [row for row in THINKING if fits(row)]
    if not rows:
        return None
    name = " and ".join(dict.fromkeys(row[0] for row in rows))
    regions = tuple(region for row in rows for region in row[2])
    begin = "<|start|>assistant" if _HARMONY in regions else ""
    return Form(name, regions, begin=begin)
