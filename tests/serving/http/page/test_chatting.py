"""The page of `kvc serve` in Chromium: what readers do, and what the server is asked.

They are skipped where there is no Chromium (`apt install chromium`).
"""

import json
import re
import threading
from itertools import pairwise

import pytest
from chat_page import ANSWER, ENDED, ask, asked, say
from chat_server import Reply, delta, event, stream, words
from chromium import SHIFT


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
    each = {"include_usage": True, "continuous_usage_stats": True}
    assert body["stream_options"] == each
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
