"""kvc-run, built from its sources: the text of Python, files of sessions, mistakes."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_templates import CHATML
from hf_folders import save_folder, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import kvc.runtime.native
from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import generate, load
from kvc.runtime.bound_lists import bind_program
from kvc.runtime.native.library import find_library
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

NATIVE = Path(kvc.runtime.native.__file__).parent
EXAMPLES = NATIVE / "libkvc/examples"
TEXTS = ["the quick brown fox jumps over the lazy dog, café 12 times"] * 9
VOCABULARY = 320
STOP = 2


def byte_tokenizer():
    """Return a byte-level tokenizer whose first tokens are special."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|im_start|>", "<s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build kvc-run against the kernels' library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    find_library()
    (shared,) = NATIVE.glob("_kernels*.so")
    made = tmp_path_factory.mktemp("run") / "kvc-run"
    sources = sorted(map(str, EXAMPLES.glob("*.c")))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-lm"]
    linked = [str(shared), f"-Wl,-rpath,{NATIVE}"]
    command = [compiler, *sources, *flags, *linked, "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Compile a small model with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    save_folder(folder, tiny_llama(vocab_size=VOCABULARY))
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(CHATML)
    settings = {"eos_token_id": [STOP, 3], "repetition_penalty": 1.05}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    made = export_hf(folder, recipe="cpu_fp32", cache=CacheConfig(max_length=128))
    bounds, refused = bind_program(made.program)
    assert not refused
    path = folder / "model.kvc"
    made.with_bounds(bounds).save(path)
    turns = f"{path}.turns.json"
    command = [sys.executable, "-m", "kvc.tools", "chat", path, "--turns", turns]
    subprocess.run(command, check=True)
    assert json.loads(Path(turns).read_text())["stop_tokens"] == [STOP, 3]
    return path


@pytest.fixture
def run(program, bundle):
    """Return a function that runs kvc-run with the bundle."""

    def run(*arguments, said=None):
        done = subprocess.run(
            [program, *arguments[:-1], bundle, *arguments[-1:]],
            input=said,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run


SETTINGS = {
    "greedy": {"max_tokens": 30},
    "sampled": {"max_tokens": 40, "temperature": 1.2, "seed": 9},
    "top_p": {"max_tokens": 40, "top_p": 0.8, "top_k": 30, "seed": 2**40},
    "penalties": {"max_tokens": 40, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    "least": {"max_tokens": 40, "temperature": 2.0, "min_p": 0.01, "seed": 4},
    "typical": {"max_tokens": 40, "typical_p": 0.5, "seed": 5},
}


def options_of(settings):
    """Return options of kvc-run for settings."""
    return [
        part
        for name, value in settings.items()
        for part in ("--" + name.replace("_", "-"), str(value))
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_text_and_ids_are_those_of_python(name, run, bundle):
    settings = SETTINGS[name]
    with load(bundle) as opened:
        wanted = generate(opened.session(), "the quick café", **settings)
        text = "".join(wanted.text())
        prompt = tokenizer_of(opened).encode("the quick café")
    assert run(*options_of(settings), "the quick café") == (0, text + "\n", "")
    ids = " ".join(map(str, prompt))
    made = " ".join(map(str, wanted.tokens))
    assert run("--ids", *options_of(settings), ids) == (0, made + "\n", "")


def test_a_text_ends_before_a_stop_string(run, bundle):
    settings = {"max_tokens": 40, "temperature": 1.2, "seed": 9}
    with load(bundle) as opened:
        text = "".join(generate(opened.session(), "the dog", **settings).text())
        stop = text[10:12]
        stopped = generate(opened.session(), "the dog", stop_strings=[stop], **settings)
        expected = "".join(stopped.text())
    options = options_of(settings)
    found = run(*options, "--stop", "\u2603", "--stop", stop, "the dog")
    assert found == (0, expected + "\n", "")
    assert len(expected) <= 10


def test_a_session_is_saved_and_restored(run, bundle, tmp_path):
    file = str(tmp_path / "a.kvs")
    with load(bundle) as opened:
        session = opened.session()
        first = generate(session, "the quick", max_tokens=5, repetition_penalty=1.0)
        texts = ["".join(first.text())]
        more = [*first.pending, *tokenizer_of(opened).encode(" dog", False)]
        second = generate(session, more, max_tokens=5, repetition_penalty=1.0)
        texts.append("".join(second.text()))
    plain = "--max-tokens", "5", "--repetition-penalty", "1"
    assert run(*plain, "--save", file, "the quick") == (0, texts[0] + "\n", "")
    assert run(*plain, "--restore", file, " dog") == (0, texts[1] + "\n", "")
    with load(bundle) as opened:
        restored = opened.restore(file)
        assert restored.pending == (tuple(first.pending),)


def test_a_chat_is_that_of_python(program, bundle):
    said = ["the quick", "brown fox"]
    settings = {"max_tokens": 12, "temperature": 0.8, "seed": 3}
    messages = [{"role": "system", "content": "Be brief."}]
    expected, history, pending = [], [], ()
    with load(bundle) as opened:
        tokenizer, template = tokenizer_of(opened), chat_template_of(opened)
        session = opened.session()
        for one in said:
            messages.append({"role": "user", "content": one})
            text = template.render(messages).rpartition("ANSWER")[2]
            messages.append({"role": "assistant", "content": "ANSWER"})
            prompt = [*pending, *tokenizer.encode(text, False)]
            made = generate(session, prompt, history=history, **settings)
            expected.append("".join(made.text()))
            pending = () if made.reason == "stop" else made.pending
            history += [*prompt, *made.tokens]
            history = history[: session.position[0]]
    options = ["--chat", "--system", "Be brief.", *options_of(settings)]
    done = subprocess.run(
        [program, *options, bundle],
        input="\n".join(said),
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert done.stdout == "".join(one + "\n" for one in expected)


def test_a_prompt_is_read_from_stdin(run):
    expected = run("--max-tokens", "4", "the dog")
    assert run("--max-tokens", "4", "-", said="the dog\n") == expected


def test_a_full_cache_is_told(run):
    code, text, said = run("--capacity", "32", "the quick brown fox jumps")
    assert (code, said) == (0, "kvc-run: the answer ended since the cache is full\n")
    assert text


def test_a_prompt_without_room_is_refused(run):
    code, text, said = run("--capacity", "32", "the quick é " * 20)
    assert (code, text) == (1, "")
    assert "but the session has room for 32: it holds 0 of 32" in said


def test_speeds_are_told(run):
    code, _, said = run("--max-tokens", "3", "--verbose", "the dog")
    assert code == 0
    lines = [line.split(":")[0] for line in said.splitlines()]
    assert lines == ["open", "prompt", "answer", "ended by"]
    assert said.endswith("ended by: the limit of tokens\n")


def test_ctrl_c_ends_an_answer(program, bundle):
    # Of a text that has no end, since no token is a stop token.
    with subprocess.Popen(
        [program, "--chat", bundle],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as running:
        time.sleep(0.3)  # it waits for a line
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=20) == 130


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--foo", "1", "x"], "--foo: no such option"),
        (["--temperature", "warm", "x"], "--temperature: expected a number"),
        (["--max-tokens", "-1", "x"], "--max-tokens: expected a whole number"),
        (["--threads", "0", "x"], "--threads: expected a whole number, 1 or more"),
        (["--stop", "", "x"], "--stop: expected a text that is not empty"),
        (["--system", "x", "y"], "--system: it goes with --chat"),
        (["--chat", "x"], "--chat: messages come from stdin"),
        (["--ids", "--stop", "a", "x"], "--stop: it goes without --ids"),
    ],
)
def test_a_mistake_in_the_options_is_told(run, options, problem):
    code, text, said = run(*options)
    assert (code, text) == (2, "")
    assert said.startswith(f"kvc-run: {problem}")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--temperature", "-1", "x"], "temperature: expected a number, 0 or more"),
        (["--ids", "1 x"], 'expected token ids, such as "1 15 8", got x'),
        (["--restore", "/nowhere", "x"], "/nowhere"),
        (["--top-p", "2", "x"], "top_p: expected a number from 0 to 1"),
    ],
)
def test_a_failure_is_told(run, options, problem):
    code, text, said = run(*options)
    assert (code, text) == (1, "")
    assert said.startswith(f"kvc-run: {problem}")


def test_chats_without_turns_are_refused(program, bundle, tmp_path):
    other = shutil.copy(bundle, tmp_path / "other.kvc")
    done = subprocess.run(
        [program, "--chat", other], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 1
    assert f"write it with kvc chat {other} --turns {other}.turns.json" in done.stderr
