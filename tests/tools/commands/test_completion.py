"""What shells offer after Tab, as their scripts ask for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KVC = Path(sys.executable).parent / "kvc"


def offered(*words):
    """What bash is told to offer for the last word."""
    asked = {
        "_KVC_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["kvc", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [KVC], env=os.environ | asked, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("di",), ["plain,diff"]),
        (("dump", "--st"), ["plain,--states"]),
        (("dump", "mod"), ["file,mod"]),
        (("diff", "old.kvc", "ne"), ["file,ne"]),
        (("gc", "fold"), ["dir,fold"]),
        (("transcribe", "a.kvc", "b.wav", "c"), ["file,c"]),
        (("compile", "demo", "--recipe", "cpu_q"), ["plain,cpu_q4", "plain,cpu_q8"]),
        (("compile", "demo", "--recipe", "./my"), ["file,./my"]),
        (("completion", "f"), ["plain,fish"]),
        (("generate", "a.kvc", "text"), []),
    ],
)
def test_what_is_offered(words, expected):
    assert offered(*words) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="asks bash")
def test_the_script_lets_bash_complete(kvc, tmp_path):
    script = tmp_path / "rc"
    script.write_text(kvc("completion", "bash").stdout)
    ask = f"""
        source {script}
        COMP_WORDS=(kvc dump --mem) COMP_CWORD=2
        _kvc_completion kvc
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{KVC.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("--memory\n", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_ask_kvc(kvc, shell):
    text = kvc("completion", shell).stdout
    assert f"_KVC_COMPLETE={shell}_complete" in text
