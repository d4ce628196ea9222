"""The first example of a Hugging Face model in README.md says what the page says."""

import re
import shlex
import shutil
from pathlib import Path

from click.testing import CliRunner

from kvc.tools.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text()
(EXAMPLE,) = re.findall(
    r"^```sh\n(hf download .*?)^```$.*?^    (.*?)$", README, re.DOTALL | re.MULTILINE
)


def test_the_model_answers_as_the_page_says(folder, tmp_path, monkeypatch):
    commands, answer = EXAMPLE
    # The package's copy stands for what the first line downloads.
    downloading, compiling, asking = commands.splitlines()
    local = downloading.split()[-1]
    shutil.copytree(folder("smollm2"), tmp_path / local)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, shlex.split(compiling)[1:])
    assert done.exit_code == 0, done.output
    echo, question, pipe, kvc, *chatting = shlex.split(asking)
    assert (echo, pipe, kvc) == ("echo", "|", "kvc")
    done = CliRunner().invoke(main, chatting, input=f"{question}\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == answer
