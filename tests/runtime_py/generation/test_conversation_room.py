"""Chats that go on where the session is full, without their oldest turns."""

import gc
import random
import weakref
from contextlib import closing
from dataclasses import replace
from itertools import islice

import pytest
from adding_model import CAPACITY, END, TEMPLATE, Adding, Totaling, write_chat
from daily import every
from held_buffers import ZERO

from kvc.runtime import BadSnapshot, CacheOverflow, generate, load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadSetting

# Of earlier answers only the end is told, as where reasoning is left out.
FORGETFUL = TEMPLATE.replace(
    "{{ message.content }}",
    "{{ message.content[-2:] if message.role == 'assistant' else message.content }}",
)
SYSTEM = "[s]Be brief."


class Hybrid(Adding, total=ZERO):
    """A model with a cache and a position, and a sum that cannot be rewound."""

    def forward(self, tokens):
        self.total.add_(tokens.sum(1))
        return super().forward(tokens) + self.best(self.total)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    with (
        load(write_chat(folder / "a.kvc")) as adding,
        load(write_chat(folder / "h.kvc", Hybrid)) as hybrid,
        load(write_chat(folder / "t.kvc", Totaling)) as totaling,
        load(write_chat(folder / "n.kvc", template=None)) as text,
    ):
        yield {
            "adding": adding,
            "hybrid": hybrid,
            "totaling": totaling,
            "text": text,
        }


def template_of(program, text):
    template = chat_template_of(program)
    return replace(template, renderer=Renderer("t.jinja", text, Limits()))


@pytest.fixture
def talk(programs):
    """Open a conversation: talk("adding", max_tokens=3)."""

    def start(name="adding", text=TEMPLATE, **given):
        program, given = programs[name], {"on_full": "drop", **given}
        template, tokenizer = template_of(program, text), tokenizer_of(program)
        return Conversation(program.session(), tokenizer, template, **given)

    return start


def answer(conversation, said):
    return "".join(conversation.say(said))


def read(conversation):
    """The messages that are still read."""
    system = [one for one in conversation.messages if one["role"] == "system"]
    rest = conversation.messages[len(system) :]
    return system + rest[conversation.dropped :]


def fresh_answer(program, messages, made="", text=TEMPLATE, **settings):
    """What the model says after all that is read, and a part of the answer."""
    with program.session() as session:
        whole = template_of(program, text).render(messages) + made
        settings = {"stop_tokens": [ord(END)], **settings}
        return "".join(generate(session, whole, **settings).text())


@pytest.mark.parametrize("text", [TEMPLATE, FORGETFUL])
@pytest.mark.parametrize("name", ["adding", "hybrid"])
def test_each_answer_is_that_of_a_fresh_session_without_old_turns(
    talk, programs, name, text
):
    conversation = talk(name, text, system="Be brief.", max_tokens=20)
    counts = []
    for number in range(12):
        made = answer(conversation, f"Hello {number}")
        messages = read(conversation)
        assert messages[0] == {"role": "system", "content": "Be brief."}
        assert messages[1]["role"] == "user"
        expected = fresh_answer(programs[name], messages[:-1], text=text, max_tokens=20)
        assert made == expected
        counts.append(conversation.dropped)
    assert len(conversation.messages) == 1 + 2 * 12
    assert counts == sorted(counts)
    assert counts[-1] > 4
    assert all(count % 2 == 0 for count in counts)


def test_whole_turns_make_room_until_a_fourth_is_free(talk):
    conversation = talk(system="Be brief.", max_tokens=8)
    while not conversation.dropped:
        before = conversation.used
        answer(conversation, "Hello")
    turn = len("[u]Hello[a]12345678!")
    assert before + len("8!") + turn > CAPACITY
    prompt = conversation.used - 7
    assert prompt <= CAPACITY - CAPACITY // 4 < prompt + turn


def test_only_what_moved_is_read_again(talk):
    conversation = talk(system="Be brief.", max_tokens=8)
    while not conversation.dropped:
        assert conversation.read_again == 0
        answer(conversation, "Hello")
    new = len("8![u]Hello[a]")
    moved = conversation.used - 7 - len(f"{SYSTEM}[u]Hello[a]") - new
    # The oldest turns are equal up to their answers, which are shared then.
    assert abs(conversation.read_again - moved) <= 1
    run = conversation.answer.prefill.tokens
    assert run == conversation.read_again + new
    answer(conversation, "Hello")
    assert conversation.read_again == 0
    assert conversation.answer.prefill.tokens == new


@pytest.mark.parametrize("name", ["adding", "hybrid"])
def test_an_answer_goes_on_where_the_session_is_full(talk, programs, name):
    conversation = filled(talk, name=name, system="Be brief.")
    before = [one["content"] for one in conversation.messages]
    conversation._settings |= {"max_tokens": None, "stop_tokens": []}
    pieces = conversation.say("Tell")
    messages = [*conversation.messages, {"role": "user", "content": "Tell"}]
    prompt = template_of(programs[name], TEMPLATE).render(messages)
    full = CAPACITY - len(prompt) + 1
    part = "".join(islice(pieces, full))
    assert (conversation.read_again, conversation.answer.reason) == (0, None)
    given = {"max_tokens": full, "stop_tokens": []}
    assert part == fresh_answer(programs[name], messages, **given)
    more = "".join(islice(pieces, 5))
    assert conversation.read_again > 0
    pieces.close()
    messages = read(conversation)
    assert conversation.dropped in {2, 4}
    assert messages[-1] == {"role": "assistant", "content": part + more}
    assert more == fresh_answer(
        programs[name], messages[:-1], part, max_tokens=5, stop_tokens=[]
    )
    assert [one["content"] for one in conversation.messages[:-2]] == before
    # And the next turn reads only what is new.
    conversation._settings["max_tokens"] = 3
    made = answer(conversation, "Go")
    assert made == fresh_answer(programs[name], read(conversation)[:-1], max_tokens=3)
    if name == "adding":
        assert conversation.answer.prefill.tokens == len("5![u]Go[a]")


def test_an_answer_drops_turns_until_it_is_alone(talk):
    conversation = filled(talk)
    conversation._settings |= {"max_tokens": None, "stop_tokens": []}
    made = answer(conversation, "Tell")
    assert conversation.answer.reason == "length"
    assert conversation.dropped == 6
    assert len(made) == CAPACITY - len("[u]Tell[a]") + 1
    assert conversation.used == CAPACITY
    assert made[:-1] == bytes(conversation.held).decode()[len("[u]Tell[a]") :]
    figures = conversation.answer.prefill, conversation.answer.decode
    assert figures[0].tokens > conversation.read_again > CAPACITY // 2
    assert figures[1].tokens < len(made) - 1


def filled(talk, **given):
    """A conversation of three turns, which the next answer will fill."""
    conversation = talk(max_tokens=20, **given)
    for said in ("Hello", "What?", "Go"):
        answer(conversation, said)
    return conversation


def test_random_numbers_go_on_after_turns_are_dropped(talk):
    conversation = filled(talk, temperature=1e4, seed=3)
    conversation._settings |= {"max_tokens": 130, "stop_tokens": []}
    answer(conversation, "Tell")
    assert conversation.dropped == 6
    tokens = conversation.answer.tokens
    assert len(tokens) == 130
    assert len({tuple(tokens[at : at + 3]) for at in range(128)}) == 128


def test_the_answer_so_far_counts_after_turns_are_dropped(talk):
    conversation = filled(talk)
    given = {"min_new_tokens": 130, "forced_eos_token_id": 90, "logprobs": 1}
    conversation._settings |= {**given, "max_tokens": 130}
    made = answer(conversation, "Tell")
    assert conversation.dropped == 6
    assert (len(made), conversation.answer.reason) == (130, "max_tokens")
    assert conversation.answer.tokens[-1] == 90
    noted = [one.token for one in conversation.answer.logprobs]
    assert noted == conversation.answer.tokens


def test_a_stop_string_is_found_across_the_drop(talk):
    conversation, other = filled(talk), filled(talk)
    other._settings |= {"max_tokens": 110, "stop_tokens": []}
    whole = answer(other, "Tell")
    full = CAPACITY - conversation.used - len("x![u]Tell[a]") + 1
    string = whole[full - 2 : full + 2]
    given = {"max_tokens": 110, "stop_tokens": [], "stop_strings": [string]}
    conversation._settings |= given
    assert answer(conversation, "Tell") == whole[: whole.index(string)]
    assert conversation.answer.reason == "stop_string"


@pytest.mark.parametrize("name", ["adding", "hybrid"])
def test_a_message_that_does_not_fit_alone_changes_nothing(talk, name):
    conversation = talk(name, system="Be brief.", max_tokens=8)
    answer(conversation, "Hello")
    before, held = list(conversation.messages), conversation.held
    with pytest.raises(CacheOverflow, match=f"has room for {CAPACITY}"):
        conversation.say("x" * CAPACITY)
    assert conversation.messages == before
    assert (conversation.held, conversation.dropped) == (held, 0)
    answer(conversation, "What?")
    assert conversation.answer.prefill.tokens == len("8![u]What?[a]")


def test_a_message_that_just_fits_is_answered_alone(talk):
    conversation = talk(max_tokens=8)
    answer(conversation, "Hello")
    made = answer(conversation, "x" * (CAPACITY - len("[u][a]")))
    assert (len(made), conversation.answer.reason) == (1, "length")
    assert conversation.dropped == 2


def test_without_drop_nothing_is_left_out(talk):
    conversation = talk(max_tokens=60, on_full="stop")
    answer(conversation, "Hello")
    answer(conversation, "Hello")
    with pytest.raises(CacheOverflow):
        conversation.say("x" * 60)
    assert (conversation.dropped, conversation.read_again) == (0, 0)
    conversation._settings["max_tokens"] = 10
    answer(conversation, "Hello")
    assert conversation.answer.reason == "length"


def test_results_of_tools_stay_with_their_calls(talk):
    conversation = talk(max_tokens=20)
    answer(conversation, "Hello")
    answer(conversation, "What?")
    "".join(conversation.say_tool("1" * 80))
    assert conversation.dropped == 2
    "".join(conversation.say_tool("1" * 10))
    assert [one["role"][0] for one in read(conversation)] == [*"uatata"]
    with pytest.raises(CacheOverflow):
        conversation.say_tool("1" * 60)
    assert conversation.dropped == 2


def test_a_large_limit_of_tokens_leaves_half_of_the_capacity(talk):
    conversation = talk(max_tokens=10 * CAPACITY, stop_tokens=[])
    conversation.messages = [
        {"role": role, "content": "x" * 20} for role in ("user", "assistant")
    ]
    next(conversation.say("Hello"))
    assert conversation.dropped == 0


def test_a_reset_reads_all_again(talk):
    conversation = talk(system="Be brief.", max_tokens=20)
    first = answer(conversation, "Hello")
    while not conversation.dropped:
        answer(conversation, "Hello")
    conversation.reset()
    assert (conversation.dropped, conversation.read_again) == (0, 0)
    assert answer(conversation, "Hello") == first


def test_a_model_without_limits_drops_nothing(talk):
    conversation = talk("totaling", max_tokens=100)
    for _ in range(4):
        answer(conversation, "Hello")
    assert conversation.dropped == 0


def test_a_model_without_limits_is_never_full(talk):
    conversation = talk("totaling", on_full="sinks", max_tokens=100)
    for _ in range(4):
        answer(conversation, "Hello")
    assert conversation.answer.reason == "max_tokens"
    words = f"full at {CAPACITY} tokens; a model compiled with .* --window N --keep K"
    with pytest.raises(BadSetting, match=words):
        talk("adding", on_full="sinks")


def test_what_to_do_is_checked(talk, programs):
    for found in ("shift", None, ["drop"]):
        with pytest.raises(BadSetting, match="on_full: expected 'stop', 'drop' or"):
            talk(on_full=found)
    program = programs["text"]
    with (
        program.session() as session,
        pytest.raises(BadSetting, match="on_full: expected 'stop', as without"),
    ):
        Conversation(session, tokenizer_of(program), None, on_full="drop")


def test_a_chat_on_disk_keeps_what_is_no_longer_read(programs, tmp_path):
    program, file = programs["adding"], tmp_path / "chat"
    given = {"system": "Be brief.", "max_tokens": 20, "on_full": "drop"}
    conversations = [
        Conversation(
            program.session(), tokenizer_of(program), chat_template_of(program), **given
        )
        for _ in range(2)
    ]
    first, other = conversations
    for number in range(9):
        assert answer(first, f"Hello {number}") == answer(other, f"Hello {number}")
        assert first.answer.prefill.tokens == other.answer.prefill.tokens
        assert first.dropped == other.dropped
        other.save(file)
        other = Conversation.restore(program, file)
    assert first.dropped == other.dropped > 2
    stopping = Conversation.restore(program, file, on_full="stop")
    assert stopping.dropped == first.dropped
    with pytest.raises(CacheOverflow):
        stopping.say("x" * 120)


@pytest.mark.parametrize("dropped", [-1, 3, True, "1", None])
def test_a_file_that_leaves_out_more_than_it_has_is_damaged(
    talk, programs, tmp_path, dropped
):
    conversation, file = talk(max_tokens=3), tmp_path / "chat"
    answer(conversation, "Hello")
    conversation._room.dropped = dropped
    conversation.session.save(file)
    conversation.save(file)
    with pytest.raises(BadSnapshot, match=f"dropped is|it leaves out {dropped} of 2"):
        Conversation.restore(programs["adding"], file)


def test_a_dropped_conversation_gives_its_session_back(talk):
    conversation = talk(max_tokens=20)
    for _ in range(5):
        answer(conversation, "Hello")
    pieces = conversation.say("Hello")
    next(pieces)
    session = weakref.ref(conversation.session)
    gc.disable()
    try:
        del pieces, conversation
        assert session() is None
    finally:
        gc.enable()


def pieces_of(conversation, said, most):
    """The tokens of an answer, and how many messages each was made without."""
    with closing(conversation.say(said)) as pieces:
        left_out = [conversation._now.dropped for _ in islice(pieces, most)]
    return conversation.answer.tokens, left_out


@every(3, "name", "seed")
@pytest.mark.parametrize("name", ["adding", "hybrid"])
@pytest.mark.parametrize("seed", range(9))
def test_each_token_is_that_of_a_fresh_session_to_what_was_read(
    talk, programs, name, seed
):
    chance = random.Random(seed)
    most, text = chance.choice([None, 20, 200]), chance.choice([TEMPLATE, FORGETFUL])
    conversation = talk(name, text, system="Be brief.", max_tokens=most)
    conversation._settings["stop_tokens"] = chance.choice([[], [ord(END)]])
    settings = {"stop_tokens": conversation._settings["stop_tokens"], "text": text}
    for _ in range(5):
        said = chance.choice("abcdef") * chance.randrange(1, 40)
        tokens, left_out = pieces_of(conversation, said, chance.choice([3, 50, None]))
        assert len(tokens) == len(left_out)
        before = conversation.messages[1:-1]
        for dropped in dict.fromkeys(left_out):
            begin, count = left_out.index(dropped), left_out.count(dropped)
            messages = [conversation.messages[0], *before[dropped:]]
            made, more = bytes(tokens[:begin]).decode(), {"max_tokens": count}
            found = fresh_answer(programs[name], messages, made, **more, **settings)
            assert found == bytes(tokens[begin : begin + count]).decode()
