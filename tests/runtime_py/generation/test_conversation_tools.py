"""Tools in a conversation: what the template is told, and the results of calls."""

from dataclasses import replace

import pytest
from adding_model import write_chat
from family_templates import QWEN

from kvc.runtime import generate, load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadSetting

# The templates of these tests are of no family.
pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.UnknownAnswers")
TOLD = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{{ mood }}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    "{% for m in messages %}[{{ m.role[0] }}]{{ m.name }}{{ m.tool_call_id }}"
    "{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {}}}


def add(a: int):
    """Add one.

    Args:
        a: A number
    """


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with load(write_chat(tmp_path_factory.mktemp("chat") / "a.kvc")) as opened:
        yield opened


def talk(program, text=TOLD, **given):
    template = replace(
        chat_template_of(program), renderer=Renderer("t", text, Limits())
    )
    session = program.session()
    return Conversation(session, tokenizer_of(program), template, max_tokens=3, **given)


def prompt(conversation):
    return bytes(conversation.held).decode()


def test_the_template_is_told_of_tools_and_arguments(program):
    arguments = {"mood": "gay", "documents": [{"text": "it rains"}]}
    given = {"tools": [add], "template_arguments": arguments}
    conversation = talk(program, **given)
    made = "".join(conversation.say("Hi"))
    text = f"add;gayit rains[u]Hi[a]{made}"
    assert prompt(conversation) == text[:-1]  # the last token has not run
    again = "".join(conversation.say("Ho"))
    assert conversation.answer.prefill.tokens == len(f"{made[-1]}![u]Ho[a]")
    with program.session() as session:
        fresh = generate(session, f"{text}![u]Ho[a]", max_tokens=3)
        assert "".join(fresh.text()) == again


def test_the_result_of_a_call_names_the_call(program):
    conversation = talk(program)
    conversation.messages = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    list(conversation.say_tool({"sum": "é"}))
    said = {"role": "tool", "name": "add", "content": '{"sum": "é"}'}
    assert conversation.messages[1] == {**said, "tool_call_id": "c1"}
    list(conversation.say_tool("3"))  # the last message calls nothing
    assert conversation.messages[3] == {"role": "tool", "content": "3"}
    list(conversation.say_tool("3", "sub", "c9"))
    assert conversation.messages[5] == {
        "role": "tool",
        "name": "sub",
        "content": "3",
        "tool_call_id": "c9",
    }


def test_several_results_are_said_at_once(program):
    conversation, other = talk(program), talk(program)
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    made = "".join(conversation.say(results))
    assert conversation.messages[:2] == results
    assert prompt(conversation) == f"[t]1[t]2[a]{made}"[:-1]
    assert "".join(other.say([{"role": "user", "content": "Hi"}])) == "".join(
        talk(program).say("Hi")
    )


@pytest.mark.parametrize("said", [[], ["a"], [3], 3, None])
def test_what_is_no_message_is_refused(program, said):
    conversation = talk(program)
    with pytest.raises(BadSetting, match=r"(said|messages): expected"):
        conversation.say(said)
    assert conversation.messages == []


def test_what_is_no_result_is_refused(program):
    with pytest.raises(BadSetting, match="content: expected JSON"):
        talk(program).say_tool({1, 2})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tools": [3]}, "tools: expected a list"),
        ({"template_arguments": {"messages": 1}}, "template_arguments: expected a"),
        ({"template_arguments": [1]}, "template_arguments: expected a mapping"),
        ({"template_arguments": {3: 1}}, "template_arguments: expected a mapping"),
    ],
)
def test_what_no_template_can_have_is_refused_at_once(program, given, match):
    with pytest.raises(BadSetting, match=match):
        talk(program, QWEN, **given)


@pytest.mark.parametrize(
    "given", [{"tools": [add]}, {"template_arguments": {"mood": "gay"}}]
)
def test_without_a_template_nothing_can_be_told(program, given):
    with program.session() as session:
        tokenizer = tokenizer_of(program)
        with pytest.raises(BadSetting, match="there is no chat template"):
            Conversation(session, tokenizer, None, **given)
        conversation = Conversation(session, tokenizer, None)
        with pytest.raises(BadSetting, match="said: expected a text"):
            conversation.say([{"role": "user", "content": "Hi"}])


def test_one_message_is_said_as_it_is(program):
    conversation, other = talk(program), talk(program)
    said = {"role": "user", "content": "Hi", "name": "Eva"}
    made = "".join(conversation.say(said))
    assert made == "".join(other.say([said]))
    assert conversation.messages[0] == said


DROPPING = (
    "{% for m in messages %}{% if m.role == 'user' %}[u]{{ m.content }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}[a]"
)


def test_a_role_that_the_template_leaves_out_is_refused(program):
    conversation = talk(program, DROPPING)
    with pytest.raises(BadSetting, match=r"role: expected a role .*, got 'usr'"):
        conversation.say({"role": "usr", "content": "Hello"})
    assert conversation.messages == []
    kept = talk(program)
    "".join(kept.say({"role": "usr", "content": " Hello "}))  # which it renders
    "".join(conversation.say({"role": "user", "content": "Hello"}))
    assert prompt(conversation).startswith("[u]Hello[a]")
