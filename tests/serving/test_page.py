"""The examples of the page, run against a server."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from running_servers import running

from kvc.tools.cli import main
from kvc.tools.serving_options import bundles_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "serving/SERVING.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


PYTHON, SHELL = blocks("python"), blocks("sh")


@pytest.fixture(scope="module")
def server(chat_bundle, embedding_bundle):
    adapters = [("poet", chat_bundle.parent / "poet.kva")]
    bundles = {"chat": chat_bundle, "embed": embedding_bundle}
    with running(bundles, adapters=adapters) as found:
        yield found


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_examples_in_python_run(server, number):
    example = PYTHON[number].replace(":8080/", f":{server.port}/")
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    wanted = {1: "['chat', 'chat:poet', 'embed']", 2: '"city"', 3: "weather"}
    assert wanted.get(number, "") in done.stdout
    assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_first_request_of_curl_is_answered(server):
    (command,) = [block for block in SHELL if "chat/completions" in block]
    told = shlex.split(command.replace(":8080/", f":{server.port}/"))
    done = subprocess.run([*told, "-s"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_commands_name_options_that_are_there():
    known = CliRunner().invoke(main, ["serve", "--help"]).output
    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        assert option in known or option == "--max-batch", option
    commands = [line for block in SHELL for line in block.splitlines()]
    for line in commands:
        if line.startswith("kvc serve"):
            words = shlex.split(line)[2:]
            adapters = [words[-1]] if "--adapter" in words else []
            bundles = words[: words.index("--adapter")] if adapters else words
            assert bundles_of(bundles, adapters)


def test_the_page_tells_the_defaults():
    known = CliRunner().invoke(main, ["serve", "--help"]).output
    for option, default in re.findall(r"^\| `(--[\w-]+) \w+` \| (\w+) \|", PAGE, re.M):
        text = known[known.index(option) :]
        found = re.search(r"\[default:\s+(\w+)", text)
        if default not in ("none", "as"):
            assert found[1] == default, option
