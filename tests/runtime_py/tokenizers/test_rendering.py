"""Chat templates in a process of their own: what they may take, and what ends them."""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from resident_memory import LINUX

from kvc.runtime import BadChatTemplate, BadSetting, TemplateLimit
from kvc.runtime.tokenizers.rendering import Limits, Renderer

ENDLESS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
)
DOUBLING = (
    "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
)


def renderer(text, **limits):
    return Renderer("t.jinja", text, Limits(**limits))


@pytest.mark.parametrize(
    "text",
    [
        ENDLESS,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
        "{% endmacro %}{{ f(60) }}",
        DOUBLING + "{{ 1 if ns.x == ns.x | list }}{% set y = ns.x | tojson %}",
        "{% set x = 7 ** (10 ** 8 + (messages | length)) %}",
        "{{ range(99999) | sum(start=0) }}" * 9999,
    ],
)
def test_a_template_that_computes_for_ever_is_ended(text):
    with pytest.raises(TemplateLimit) as caught:
        renderer(text, max_seconds=0.3).render({"messages": []})
    assert caught.value.setting == "max_seconds"
    assert str(caught.value) == (
        "the chat template t.jinja takes more than 0.3 s of a processor, the most that "
        "chat_template_of(max_seconds=) allows"
    )


@LINUX
@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 'x' * (10 ** 9 + n) }}",
        "{{ '%*d' % (10 ** 9, n) }}",
        "{{ 'x'.rjust(10 ** 9) }}",
        "{{ [n] | batch(10 ** 9, 'x') | list }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'xxxxxxxxx' | replace('', 'y' * 10 ** 8) }}",
    ],
)
def test_a_template_that_takes_memory_is_refused(text):
    with pytest.raises(TemplateLimit, match="536,870,912 bytes of memory") as caught:
        renderer(text, max_seconds=60).render({"n": 1})
    assert caught.value.setting == "max_nbytes"


def test_a_text_has_as_many_characters_as_it_may():
    text = "{% for i in range(n) %}{{ 'äb' }}{% endfor %}"
    made = renderer(text, max_characters=10)
    assert made.render({"n": 5}) == "äb" * 5
    with pytest.raises(TemplateLimit, match=r"10 characters.*\(max_characters=\)"):
        made.render({"n": 6})
    assert made.render({"n": 4}) == "äb" * 4


def test_a_template_goes_on_after_it_was_ended():
    made = renderer("{% if endless %}" + ENDLESS + "{% endif %}text", max_seconds=0.3)
    for _ in range(2):
        with pytest.raises(TemplateLimit):
            made.render({"endless": True})
        assert made.render({"endless": False}) == "text"


def test_time_is_that_of_one_text():
    made = renderer("{% set x = range(9999) | sum %}x", max_seconds=0.5)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:  # each takes far less than that, all take more
        assert made.render({}) == "x"


def test_ctrl_c_ends_what_runs():
    def interrupt(*_):
        raise KeyboardInterrupt

    def render():
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        made.render({"endless": True})

    made = renderer("{% if endless %}" + ENDLESS + "{% endif %}text", max_seconds=300)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            render()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert made.render({}) == "text"


@LINUX
def test_the_process_ends_with_the_template():
    made = renderer("text")
    number = made._process._process.pid
    assert Path(f"/proc/{number}").exists()
    del made
    gc.collect()
    assert not Path(f"/proc/{number}").exists()


def test_a_process_that_something_ended_is_named_and_replaced():
    made = renderer("text")
    made._process._process.kill()
    made._process._process.wait()
    with pytest.raises(BadChatTemplate, match="its process ended with code -9"):
        made.render({})
    assert made.render({}) == "text"


def test_a_forked_process_has_one_of_its_own():
    made = renderer("{{ x }}")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if made.render({"x": "child"}) == "child" else 1
        finally:  # whatever happens, no copy of the tests goes on
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made.render({"x": "parent"}) == "parent"


def test_a_fork_while_another_thread_renders_waits_for_nobody():
    made = renderer("{% if endless %}" + ENDLESS + "{% endif %}text", max_seconds=300)

    def render():
        with pytest.raises(BadChatTemplate):
            made.render({"endless": True})

    busy = threading.Thread(target=render, daemon=True)
    busy.start()
    while not made._lock.locked():
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)  # rather than wait for ever
            code = 0 if made.render({"endless": False}) == "text" else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made._process._process.kill()
    busy.join()


@pytest.mark.parametrize(
    ("executable", "reason"),
    [
        ("/no/python", "No such file"),
        ("", "sys.executable names no Python"),
        (None, "sys.executable names no Python"),
    ],
)
def test_without_an_interpreter_the_message_says_so(monkeypatch, executable, reason):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(BadChatTemplate, match=f"cannot be started: {reason}"):
        renderer("text")


def test_what_is_no_text_in_the_path_of_packages_is_left_out(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/no/packages")])
    assert renderer("text").render({}) == "text"


def test_texts_of_any_characters_come_through():
    made = renderer("{{ x }}|{{ x | length }}")
    for x in ("", "\0\n", "日本\U0001f600", "\ud800"):
        assert made.render({"x": x}) == f"{x}|{len(x)}"


@pytest.mark.parametrize("found", [object(), {1: {2}}, b"x"])
def test_messages_that_are_no_texts_are_refused(found):
    with pytest.raises(BadSetting, match="messages: expected texts"):
        renderer("text").render({"messages": found})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("max_seconds", 0),
        ("max_seconds", "1"),
        ("max_seconds", float("inf")),
        ("max_seconds", 1e12),
        ("max_characters", -1),
        ("max_nbytes", 1.5),
    ],
)
def test_limits_are_numbers(name, found):
    with pytest.raises(BadSetting, match=name):
        Limits(**{name: found}).checked()
