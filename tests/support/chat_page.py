"""What readers of the chat page do, for tests in a browser."""

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
