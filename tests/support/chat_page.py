"""What readers of the chat page do, for tests in a browser."""

from chat_server import Desk
from chromium import Page

ENDED = "document.querySelector('#stop').hidden"
ANSWER = ".answer .text:not(.reasoning *)"


def say(page: Page, text: str) -> None:
    """Send a message."""
    page.run("document.getElementById('message').focus()")
    page.type(text)
    page.press("Enter")


def ask(page: Page, text: str) -> None:
    """Send a message and wait for the end of its answer."""
    before = page.run("return document.querySelectorAll('.answer').length")
    say(page, text)
    page.wait(f"document.querySelectorAll('.answer').length > {before} && {ENDED}")


def asked(desk: Desk) -> list[tuple[str, object]]:
    """Return the roles and contents of the messages of the last request."""
    return [(one["role"], one["content"]) for one in desk.asked[-1]["messages"]]
