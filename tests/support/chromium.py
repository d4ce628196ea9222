"""Chromium without a window, driven through two pipes by its DevTools protocol.

In: scripts, key presses, sizes of the window. Out: what scripts return, pictures. The
protocol is JSON with a zero byte after each message, and needs no package.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
    "--no-first-run", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip
# Chromium reads commands from file 3 and writes answers to file 4.
START = """import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])"""
ENTER = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
KEYS = {
    "Enter": ENTER,
    "Escape": {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27},
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
}
SHIFT = 8


class ScriptError(AssertionError):
    """A script in the page threw."""


class Chromium:
    """A running browser; `open` makes pages in it."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        command_out, self._commands = os.pipe()
        answers, answers_in = os.pipe()
        pipes = (str(command_out), str(answers_in))
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *pipes, BROWSER, *OPTIONS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(command_out, answers_in),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_out)
        os.close(answers_in)
        self._answers = os.fdopen(answers, "rb")
        self._rest = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            os.close(self._commands)
        self._process.terminate()
        self._process.wait()
        self._answers.close()

    def call(self, method: str, session: str = "", **options: Any) -> Any:
        """Give a command; return its result."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": options}
        if session:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") != self._last:
                self.events.append(answer)
            elif "error" in answer:
                raise ScriptError(f"{method}: {answer['error']}")
            else:
                return answer["result"]
        raise ScriptError(f"{method}: the browser has ended")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            message, zero, rest = self._rest.partition(b"\0")
            if zero:
                self._rest = rest
                yield json.loads(message)
            elif more := os.read(self._answers.fileno(), 1 << 20):
                self._rest += more
            else:
                return

    def open(self, url: str, width: int = 1280, height: int = 800) -> "Page":
        """Open a page that shares nothing with earlier pages, and wait for it."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call(
            "Target.createTarget", url="about:blank", browserContextId=context
        )["targetId"]
        page = Page(self, context, self._attached(target))
        page.resize(width, height)
        page.go(url)
        return page

    def _attached(self, target: str) -> str:
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable", session)
        return session


class Page:
    """A page of a browser."""

    def __init__(self, browser: Chromium, context: str, session: str) -> None:
        self._browser, self._context, self._session = browser, context, session

    def call(self, method: str, **options: Any) -> Any:
        """Give a command to this page; return its result."""
        return self._browser.call(method, self._session, **options)

    def go(self, url: str) -> None:
        """Load an address, or the same again, and wait until it has run."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && "
                  "document.readyState === 'complete'")  # fmt: skip

    def run(self, script: str) -> Any:
        """Return what the body of an asynchronous function returns.

        Raises:
            ScriptError: the script threw.
        """
        done = self.call(
            "Runtime.evaluate",
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if problem := done.get("exceptionDetails"):
            told = problem.get("exception", {}).get("description", problem["text"])
            raise ScriptError(f"{told}\nin\n{script}")
        return done["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true.

        Raises:
            ScriptError: it did not become true in time.
        """
        passed = self.run(
            f"const end = performance.now() + {seconds * 1000};"
            "while (performance.now() < end) {"
            f"  if ({condition}) return true;"
            "  await new Promise((done) => setTimeout(done, 15)); }"
            "return false;"
        )
        if not passed:
            text = self.run("return document.body.innerText")
            raise ScriptError(f"not true: {condition}\nThe page shows:\n{text[:2000]}")

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key and release it."""
        event = {"modifiers": modifiers, **KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Write a text where the focus is."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click on the first element of a selector."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def texts(self, selector: str) -> list[str]:
        """Return the visible texts of the elements of a selector."""
        script = f"[...document.querySelectorAll({json.dumps(selector)})]"
        told: list[str] = self.run(
            f"return {script}.map((one) => one.innerText.trim())"
        )
        return told

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """Give the window a size; below 600 pixels it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip

    def prefer(self, features: Mapping[str, str]) -> None:
        """Set what the user prefers, such as `prefers-color-scheme`."""
        told = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=told)

    def picture(self, path: Path) -> None:
        """Write what the window shows, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def problems(self) -> list[str]:
        """Return what was thrown, or refused by the content policy, until now."""
        self.run("return 0")  # events before this have come
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event["method"] == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["source"] in ("security", "javascript"):
                    found.append(entry["text"])
        return found

    def close(self) -> None:
        """Close the page and forget what it kept."""
        self._browser.call(
            "Target.disposeBrowserContext", browserContextId=self._context
        )
