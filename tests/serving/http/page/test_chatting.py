"""The page of `kvc serve` in Chromium: what readers do, and what the server is asked.

They are skipped where there is no Chromium (`apt install chromium`).
"""

import json
import re
import threading
from itertools import pairwise

import pytest
from chat_page import ANSWER, ENDED, ask, say
from chat_server import Reply, delta, event, stream, words
from chromium import SHIFT


def asked(desk):
    """Return the roles and contents of the messages of the last request."""
    return [(one["role"], one["content"]) for one in desk.asked[-1]["messages"]]


def cut_in_characters(whole):
    """Return the pieces of bytes that are cut within each character of several."""
    cuts = [i for i, byte in enumerate(whole) if byte & 0xC0 == 0x80]
    return [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]


def cut_in_lines(whole):
    """Return the pieces of bytes that are cut before and after each end of a line."""
    return re.split(rb"(?=\n)|(?<=\n)|(?<=da)(?=ta:)", whole)


@pytest.mark.parametrize("cut", [cut_in_characters, cut_in_lines])
def test_an_answer_may_be_cut_anywhere(page, desk, cut):
    text = "Grüße, 世界 🎉\n\nsecond *line*"
    chunks = [delta(content=text[i : i + 9]) for i in range(0, len(text), 9)]
    whole = b": a comment\n\n" + stream(chunks).replace(b"\n", b"\r\n")
    desk.replies.append(Reply(cut(whole), pause=0.02))  # else pieces come together
    ask(page, "Hello")
    assert page.texts(f"{ANSWER} p") == ["Grüße, 世界 🎉", "second line"]
    assert page.texts(".answer em") == ["line"]
    body = desk.asked[-1]
    assert asked(desk) == [("user", "Hello")]
    assert (body["model"], body["stream"]) == ("smol", True)
    assert body["stream_options"] == {"include_usage": True}
    assert "temperature" not in body


def test_text_is_shown_while_it_comes_and_figures_after_it(page, desk):
    hold = threading.Event()
    whole = [event(delta(content="First")), words(" and last")]
    desk.replies.append(Reply(whole, hold=hold))
    say(page, "Hello")
    page.wait("document.querySelector('.answer').innerText.includes('First')")
    assert page.run("return document.querySelector('.answer').ariaBusy") == "true"
    assert not page.run("return document.querySelector('#stop').hidden")
    page.run("await new Promise((done) => setTimeout(done, 60))")
    hold.set()
    page.wait(ENDED)
    assert page.texts(ANSWER) == ["First and last"]
    (figures,) = page.texts(".figures")
    assert figures.startswith("34 tokens · ")
    assert "tokens/s · first after " in figures
    assert page.run("return document.querySelector('.answer').ariaBusy") == "false"
    page.wait("document.querySelector('#server-facts').innerText.includes('2 waiting')")
    assert page.texts("#server-facts") == ["312 MB · 3 running · 2 waiting"]


@pytest.mark.parametrize("way", ["Escape", "button"])
def test_stopping_ends_the_request_and_keeps_the_text(page, desk, way):
    pieces = [event(delta(content="word ")) for _ in range(2000)]
    desk.replies.append(Reply(pieces, pause=0.01))
    say(page, "Count")
    page.wait("document.querySelector('.answer').innerText.includes('word')")
    if way == "Escape":
        page.press("Escape")
    else:
        page.click("#stop")
    page.wait(ENDED)
    assert desk.aborted.wait(10)
    assert page.texts(ANSWER)[0].startswith("word")
    assert "Stopped." in page.texts(".figures")[0]
    assert page.run("return document.activeElement.id") == "message"
    ask(page, "Go on")
    assert [role for role, _ in asked(desk)] == ["user", "assistant", "user"]


def test_an_answer_is_made_again_beside_the_first(page, desk):
    desk.replies += [Reply([words("One")]), Reply([words("Two")])]
    ask(page, "A number")
    page.click("[aria-label='Answer again']")
    page.wait(f"{ENDED} && document.querySelector('.answer').innerText.includes('Two')")
    assert asked(desk) == [("user", "A number")]
    assert page.texts(".versions") == ["2/2"]
    page.click("[aria-label='The version before']")
    assert page.texts(ANSWER) == ["One"]
    ask(page, "Another")
    told = [("user", "A number"), ("assistant", "One"), ("user", "Another")]
    assert asked(desk) == told


def test_an_earlier_message_is_edited_and_the_talk_goes_on_from_there(page, desk):
    desk.replies += [Reply([words(text)]) for text in ("One", "Two", "Three")]
    ask(page, "First")
    ask(page, "Second")
    page.click("[aria-label='Edit this message']")
    page.wait("document.activeElement.ariaLabel === 'Your message'")
    assert page.run("return document.activeElement.value") == "First"
    page.run("document.activeElement.select()")
    page.type("Changed")
    page.press("Enter")
    page.wait(
        f"{ENDED} && document.querySelector('.answer').innerText.includes('Three')"
    )
    assert asked(desk) == [("user", "Changed")]
    assert page.texts(".bubble") == ["Changed"]
    page.click("[aria-label='The version before']")
    assert page.texts(".bubble") == ["First", "Second"]
    assert page.texts(ANSWER) == ["One", "Two"]


def test_shift_enter_begins_a_line_and_an_empty_message_is_not_sent(page, desk):
    say(page, " ")
    page.run("document.getElementById('message').value = ''")
    page.type("one")
    page.press("Enter", SHIFT)
    page.type("two")
    page.press("Enter")
    page.wait(f"document.querySelector('.answer') && {ENDED}")
    assert [asked(desk), len(desk.asked)] == [[("user", "one\ntwo")], 1]


def test_the_servers_sentence_is_shown_and_the_request_sent_again(page, desk):
    told = json.dumps(
        {"error": {"message": "The prompt is too long: 9 of 8."}}
    ).encode()
    late = [
        event(delta(content="Part")),
        event({"error": {"message": "Out of memory."}}),
    ]
    cut = [event(delta(content="Cut"))]
    desk.replies += [Reply([told], status=400), Reply(late), Reply(cut)]
    ask(page, "Hello")
    assert page.texts(".error p") == ["The prompt is too long: 9 of 8."]
    page.click(".error button")
    page.wait(
        f"{ENDED} && document.querySelector('.error').innerText.includes('memory')"
    )
    assert page.texts(".error p") == ["Out of memory."]
    assert page.texts(ANSWER) == ["Part"]
    page.click(".error button")
    page.wait(f"{ENDED} && document.querySelector('.answer').innerText.includes('Cut')")
    assert page.texts(".error p") == ["The connection ended before the answer did."]
    page.click(".error button")
    page.wait(f"{ENDED} && document.querySelector('.error').hidden")
    assert page.texts(ANSWER) == ["As you like."]
    assert {json.dumps(one["messages"]) for one in desk.asked} == {
        json.dumps([{"role": "user", "content": "Hello"}])
    }


def test_a_key_is_asked_for_when_the_server_wants_one(browser, server, desk):
    desk.key = "secret"
    page = browser.open(server.url)
    page.wait("document.getElementById('key').open")
    assert "Authorization: Bearer" in page.texts("#key-sentence")[0]
    page.type("wrong")
    page.press("Enter")
    page.wait("document.getElementById('key').open && !document.activeElement.value")
    page.type("secret")
    page.press("Enter")
    page.wait("document.getElementById('model').value === 'smol'")
    ask(page, "Hello")
    assert page.texts(ANSWER) == ["As you like."]
    assert (
        page.run("return Object.values(localStorage).join().includes('secret')")
        is False
    )
    desk.key = "other"
    say(page, "Again")
    page.wait("document.getElementById('key').open")
    page.press("Escape")
    page.wait(ENDED)
    assert "A key is needed." in page.texts(".error p")[-1]
    page.close()


def test_chats_are_kept_and_deleted_and_brought_back(page, desk, server):
    desk.replies += [Reply([words("An *answer*")]), Reply([words("Other")])]
    ask(page, "First chat")
    page.click("#new")
    assert page.texts(".answer") == []
    ask(page, "Second chat")
    assert page.texts("#chats .chat") == ["Second chat", "First chat"]
    page.go(server.url + "?again")
    page.run("document.querySelectorAll('#chats .chat')[1].click()")
    assert page.texts(ANSWER) == ["An answer"]
    page.click("[aria-label='Delete the chat First chat']")
    assert page.texts("#chats .chat") == ["Second chat"]
    page.click("#notice button")
    assert page.texts("#chats .chat") == ["Second chat", "First chat"]
    page.click("#delete-all")
    assert page.texts("#chats .chat") == []
    assert page.run("return Object.keys(localStorage).filter("
                    "(key) => key.startsWith('kvc.chat.')).length") == 0  # fmt: skip


def test_a_chat_that_is_deleted_while_it_is_answered_stays_deleted(page, desk):
    desk.replies.append(Reply([event(delta(content="word "))] * 2000, pause=0.01))
    say(page, "Count")
    page.wait("document.querySelector('.answer').innerText.includes('word')")
    page.click("[aria-label='Delete the chat Count']")
    assert desk.aborted.wait(10)
    page.wait(ENDED)
    page.run("await new Promise((done) => setTimeout(done, 50))")
    assert page.texts("#chats .chat") == []
    page.click("#notice button")
    page.click("#chats .chat")
    assert page.texts(ANSWER)[0].startswith("word")


def test_an_answer_that_a_reload_cuts_is_kept(page, desk, server):
    desk.replies.append(Reply([event(delta(content="word "))] * 2000, pause=0.01))
    say(page, "Count")
    page.wait("document.querySelector('.answer').innerText.includes('word')")
    page.go(server.url + "?again")
    page.click("#chats .chat")
    assert page.texts(ANSWER)[0].startswith("word")
    assert "Stopped." in page.texts(".figures")[0]


def test_answers_of_two_models_are_told_apart(page, desk, server):
    desk.models += [{"id": "other"}]
    page.go(server.url + "?again")
    page.wait("document.getElementById('model').options.length === 2")
    ask(page, "Hello")
    page.run(
        "const model = document.getElementById('model');"
        "model.value = 'other'; model.dispatchEvent(new Event('change'))"
    )
    page.click("[aria-label='Answer again']")
    page.wait(f"document.querySelector('.versions') && {ENDED}")
    assert [one["model"] for one in desk.asked] == ["smol", "other"]
    assert page.texts(".figures")[0].startswith("other: 34 tokens")
    page.go(server.url)
    page.wait("document.getElementById('model').value === 'other'")


def test_settings_go_into_the_request_and_wrong_ones_do_not(page, desk):
    page.click("#settings-open")
    given = {
        "system": "Be brief.", "temperature": "0.5", "top_p": "7", "top_k": "40",
        "max_tokens": "64", "seed": "x", "schema": '{"type": "object"}',
        "tools": '[{"type": "function", "function": {"name": "f"}}]',
        "arguments": '{"enable_thinking": false}',
    }  # fmt: skip
    page.run(
        f"for (const [name, value] of Object.entries({json.dumps(given)})) {{"
        "  const field = document.querySelector(`#settings [name=${name}]`);"
        "  field.value = value;"
        "  field.dispatchEvent(new Event('input')); }"
    )
    told = [text for text in page.texts(".wrong") if text]
    assert told == ["more than 1", "not a number"]
    page.press("Escape")
    desk.replies.append(Reply([words('{"a": [1]}')]))
    ask(page, "Hello")
    assert page.texts(".answer pre") == ['{\n  "a": [\n    1\n  ]\n}']
    body = desk.asked[-1]
    assert asked(desk) == [("system", "Be brief."), ("user", "Hello")]
    assert (body["temperature"], body["top_k"], body["max_tokens"]) == (0.5, 40, 64)
    assert "top_p" not in body
    assert "seed" not in body
    schema = {"name": "answer", "strict": True, "schema": {"type": "object"}}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_calls_of_tools_are_shown_and_answered(page, desk):
    call = {
        "index": 0,
        "id": "c1",
        "function": {"name": "weather", "arguments": '{"ci'},
    }
    rest = {"index": 0, "function": {"arguments": 'ty": "Oslo"}'}}
    chunks = [delta(tool_calls=[call]), delta(tool_calls=[rest])]
    desk.replies += [Reply([stream(chunks, "tool_calls")]), Reply([words("Cold.")])]
    ask(page, "Weather?")
    assert page.texts(".call") == ['weather\n\n{\n  "city": "Oslo"\n}']
    page.run("document.querySelector('.results textarea').value = '-4'")
    page.click(".results button")
    page.wait(f"{ENDED} && document.querySelectorAll('.answer').length === 2")
    _, answer, tool = desk.asked[-1]["messages"]
    assert answer["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        }
    ]
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "-4"}


def test_reasoning_is_folded_and_not_sent_back(page, desk):
    chunks = [delta(reasoning_content="Hm *so*."), delta(content="Yes.")]
    desk.replies.append(Reply([stream(chunks)]))
    ask(page, "Well?")
    assert page.run("return document.querySelector('.reasoning').open") is False
    page.click(".reasoning summary")
    page.wait("document.querySelector('.reasoning em')")
    assert page.texts(".reasoning .text") == ["Hm so."]
    ask(page, "And?")
    assert asked(desk)[1] == ("assistant", "Yes.")


PICTURE = """const canvas = document.createElement("canvas");
canvas.width = 4000; canvas.height = 1000;
const blob = await new Promise((done) => canvas.toBlob(done));
const given = new DataTransfer();
given.items.add(new File([blob], "a.png", { type: "image/png" }));
"""


@pytest.mark.parametrize(
    ("event", "place", "carrier"),
    [("drop", "main", "dataTransfer"), ("paste", "message", "clipboardData")],
)
def test_pictures_go_to_models_that_take_them(
    page, desk, server, event, place, carrier
):
    kind = {"drop": "DragEvent", "paste": "ClipboardEvent"}[event]
    give = (
        f"{PICTURE} document.getElementById('{place}').dispatchEvent("
        f"new {kind}('{event}', {{ {carrier}: given, cancelable: true }}))"
    )
    page.run(give)
    assert page.texts("#notice") == ["This model takes no pictures"]
    desk.models[0]["input_modalities"] = ["text", "image"]
    page.go(server.url + "?again")
    page.wait("!document.getElementById('attach').hidden")
    page.run(give)
    page.wait("document.querySelector('#pictures img')")
    ask(page, "What is it?")
    picture, text = desk.asked[-1]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    url = picture["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    size = page.run(
        f"const one = new Image(); one.src = {json.dumps(url)}; await one.decode();"
        "return [one.naturalWidth, one.naturalHeight]"
    )
    assert size == [1536, 384]
    assert page.run("return document.querySelector('#pictures').hidden")


LINES = "\n\n".join(f"Line {i}" for i in range(100))
SCROLL = "const scroll = document.getElementById('scroll');"
TO_END = f"{SCROLL} return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight"


def test_the_end_is_followed_only_by_a_reader_who_is_there(page, desk):
    hold = threading.Event()
    pieces = [event(delta(content=LINES)), stream([delta(content=f"\n\n{LINES}")])]
    desk.replies += [Reply(pieces, hold=hold), Reply([words(LINES)])]
    say(page, "Long")
    page.wait("document.querySelector('.answer').innerText.includes('Line 99')")
    assert page.run(TO_END) < 2
    page.run(f"{SCROLL} scroll.scrollTop = 100")
    page.wait("!document.getElementById('to-end').hidden")
    hold.set()
    page.wait(ENDED)
    assert page.run(f"{SCROLL} return scroll.scrollTop") == 100
    page.click("#to-end")
    assert page.run(TO_END) < 2
    page.resize(700, 500)
    page.run("await new Promise((done) => setTimeout(done, 100))")
    assert page.run(TO_END) < 2
    page.click("[aria-label='Answer again']")
    page.wait(f"document.querySelector('.versions') && {ENDED}")
    page.run(f"{SCROLL} scroll.scrollTop = 100")
    page.click("[aria-label='The version before']")
    assert page.run(f"{SCROLL} return scroll.scrollTop") == 100
