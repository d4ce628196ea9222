"""The page of `kvc serve` in Chromium: kept chats, settings, tools, pictures."""

import json

import pytest
from chat_page import ANSWER, ENDED, ask, asked, say
from chat_server import Reply, delta, event, stream, words


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


FILL = """const left = %d;
let size = 1 << 23;
for (let number = 0; size > 16; size >>= 1) {
  try {
    localStorage.setItem(`fill ${number}`, "x".repeat(size));
    number += 1;
    size <<= 1;
  } catch { /* it is too much */ }
}
const last = Object.keys(localStorage).filter((key) => key.startsWith("fill"))
  .find((key) => localStorage.getItem(key).length >= left);
localStorage.setItem(last, "x".repeat(localStorage.getItem(last).length - left));"""


@pytest.mark.parametrize(("left", "lost"), [(3000, "the pictures of"), (20, "")])
def test_a_full_storage_loses_pictures_first(page, desk, server, left, lost):
    desk.models[0]["input_modalities"] = ["text", "image"]
    page.go(server.url + "?again")
    page.wait("!document.getElementById('attach').hidden")
    page.run(FILL % left)
    drop = "new DragEvent('drop', { dataTransfer: given, cancelable: true })"
    page.run(f"{PICTURE} document.getElementById('main').dispatchEvent({drop})")
    page.wait("document.querySelector('#pictures img')")
    ask(page, "Look")
    told = f"The browser has no room to keep {lost} this chat. Delete some chats."
    assert page.texts("#notice") == [told.replace("  ", " ")]
    assert page.texts(ANSWER) == ["As you like."]
    page.go(server.url)
    assert page.texts("#chats .chat") == (["Look"] if lost else [])
    if lost:
        page.click("#chats .chat")
        assert "no room to keep the pictures" in page.texts(".user")[0]
