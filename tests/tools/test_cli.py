import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvc.schema.errors import MissingLibrary
from kvc.tools.__main__ import start
from kvc.tools.cli import main

KVC = Path(sys.executable).parent / "kvc"


def run(*arguments, **options):
    return subprocess.run(
        [KVC, *arguments], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize("name", main.commands)
def test_help_of_a_command_has_an_example(kvc, name):
    text = " ".join(kvc(name, "--help").stdout.split())
    assert "Example: kvc " in text


def test_help_lists_the_commands_in_the_order_of_use(kvc):
    listed = kvc("--help").stdout.partition("Commands:")[2]
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    assert names == [
        "compile",
        "dump",
        "diff",
        "generate",
        "batch",
        "transcribe",
        "embed",
        "classify",
        "chat",
        "serve",
        "eval",
        "bench",
        "profile",
        "run",
        "verify",
        "check",
        "adapter",
        "split",
        "join",
        "export",
        "gc",
        "recipes",
        "devices",
        "completion",
    ]


def test_the_version_is_the_packages(kvc):
    assert kvc("--version").stdout.startswith("kvc 0.")


def test_the_version_says_why_there_are_no_kernels(kvc, monkeypatch):
    def missing():
        reason, install = "it was not built", "pip install ."
        raise MissingLibrary(library="kernels", reason=reason, install=install)

    monkeypatch.setattr("kvc.runtime.native.library.find_library", missing)
    told = kvc("--version").stdout.splitlines()[1]
    assert told == (
        "kernels of the backend cpu: none, since their library cannot be used: it was "
        "not built; get it with `pip install .`"
    )


def test_an_error_is_one_paragraph_and_exit_code_1(tmp_path):
    done = run("dump", tmp_path / "none.kvc")
    assert done.returncode == 1
    assert done.stdout == ""
    expected = f"Error: cannot read {tmp_path}/none.kvc: No such file or directory\n"
    assert done.stderr == expected


def test_an_error_shows_no_control_characters(kvc):
    result = kvc("dump", "\x1b[31mred.kvc")
    assert "\\x1b[31mred.kvc" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_closed_pipe_is_quiet(sample):
    reader, writer = os.pipe()
    os.close(reader)
    command = [KVC, "dump", sample, "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


# Says when it is traced, and goes on until it is interrupted.
ENDLESS = """
import os, time, torch
from kvc.compiler import (Method, ModelSpec)

class Endless(torch.nn.Module):
    def forward(self, x):
        os.write(1, b"traced")
        time.sleep(300)

def factory():
    return ModelSpec(Endless(), [Method("forward", args=(torch.ones(2),))])
"""


def test_an_interrupted_compilation_leaves_no_file(tmp_path):
    (tmp_path / "out.kvc").write_bytes(b"older")
    (tmp_path / "endless.py").write_text(ENDLESS)
    started = subprocess.Popen(
        [KVC, "compile", "endless:factory", "-o", "out.kvc"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout.read(6) == b"traced"
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=300)
    assert started.returncode == 130
    assert b"Traceback" not in errors
    assert {path.name for path in tmp_path.iterdir()} == {"out.kvc", "endless.py"}
    assert (tmp_path / "out.kvc").read_bytes() == b"older"


WAITING = """
import sys, tempfile, time
from kvc.tools import (__main__, cli)

def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("made", flush=True)
        time.sleep(300)

cli.main = main
__main__.start()
"""


def test_a_command_that_is_told_to_end_leaves_no_temporary_folder(tmp_path):
    command = [sys.executable, "-c", WAITING, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        assert started.stdout.readline() == b"made\n"
        assert len([*tmp_path.iterdir()]) == 1
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 128 + signal.SIGTERM
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_looking_at_a_bundle_does_not_import_torch(sample, command):
    code = (
        "import sys; from kvc.tools.cli import main; "
        f"main([{command!r}, {str(sample)!r}], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("command", [["--help"], ["dump", "--help"]])
def test_what_needs_no_bundle_does_not_import_numpy(command):
    code = (
        "import sys; from kvc.tools.cli import main; "
        f"main({command!r}, standalone_mode=False); "
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("arguments", ["--help", "--version", "dump --help", "dump"])
def test_a_full_output_is_one_line(sample, arguments):
    command = [KVC, *arguments.split()] + ([sample] if arguments == "dump" else [])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    expected = b"Error: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_generating_into_a_full_output_is_one_line(tiny):
    command = [KVC, "generate", tiny, "a", "-n", "3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    expected = b"Error: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("command", ["dump", "verify", "generate"])
def test_a_closed_output_is_one_line(sample, command):
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'"{KVC}" {command} "{sample}" {"a" * (command == "generate")} >&-',
        ],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: stdout is closed;")
    assert done.stderr.count(b"\n") == 1


def test_ctrl_c_while_the_command_line_is_imported_is_quiet(monkeypatch):
    class Interrupting(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "kvc.tools.cli", Interrupting("kvc.tools.cli"))
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130


@pytest.mark.parametrize("command", ["dump", "verify", "generate", "compile"])
def test_an_empty_name_is_said_so(kvc, command):
    done = kvc(command, "", *(["hello"] if command == "generate" else []))
    assert done.exit_code != 0
    said = "MODEL is empty" if command == "compile" else "cannot read a file without a"
    assert said in done.output


def test_warnings_of_kvc_are_one_line_and_others_as_usual():
    code = (
        "import warnings\n"
        "from kvc.runtime import SoftwareDevice\n"
        "from kvc.tools.cli import main\n"
        "@main.command('warn')\n"
        "def warn():\n"
        "    warnings.warn('it is slow', SoftwareDevice)\n"
        "    warnings.warn('of another', UserWarning)\n"
        "main(['warn'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    first, *others = done.stderr.splitlines()
    assert first == "warning: it is slow"
    assert "UserWarning: of another" in "".join(others)
