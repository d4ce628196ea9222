"""Layers that keep a window and the first positions, as the caller of the export asks.

What is compared is the model of transformers in eager attention on the whole text,
under a mask of the window and the first positions, at the same positions.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY, only
from hf_models import WINDOW, build
from hf_parity import NOTICED, TOLERANCE, eager_logits, text, zero_row
from transformers import PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Conversation, NotRewindable, Program, generate, load
from kvc.runtime.tokenizers import ChatTemplate, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadSetting
from kvc.schema.model import StateKind
from kvc.schema.rings import Window

pytestmark = pytest.mark.filterwarnings(
    "ignore::kvc.compiler.hugging_face.FirstPositionsFar"
)
SIZE, KEEP, CHUNK, SLACK, LENGTH = 12, 3, 6, 2, 160
ASKED, NARROW = Window(SIZE, KEEP), Window(WINDOW)
SLOTS = SIZE + KEEP + CHUNK - 1 + SLACK
NEAR = 1e-5  # of the spread of logits
# The window of each layer that attends, and how long a text may be.
MODELS = {
    "llama": ([ASKED, ASKED], None),
    "qwen3": ([ASKED, ASKED], None),
    "gemma3_text": ([NARROW, ASKED], None),
    "gemma3n_text": ([ASKED, ASKED], None),
    "lfm2": ([None, ASKED], None),
    "bloom": ([ASKED, ASKED], None),
    "gpt2": ([ASKED, ASKED], 128),
    "gptj": ([ASKED, ASKED], 128),
}
DAILY = ("llama", "gemma3_text")


def under_sinks(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Return logits [seq, vocab] under a mask of the window and the first positions.

    Layers with a narrower window of their own have the mask of that.
    """
    query, key = torch.arange(tokens.shape[1])[:, None], torch.arange(tokens.shape[1])
    seen = (key <= query) & ((query - key < SIZE) | (key < KEEP))
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with pytest.MonkeyPatch.context() as patch:
        code = importlib.import_module(type(model).__module__)
        patch.setattr(code, "create_causal_mask", lambda *_, **__: mask[None, None])
        if getattr(model.config, "sliding_window", None) == 512:  # a wider one
            own = "create_sliding_window_causal_mask"
            patch.setattr(code, own, code.create_causal_mask)
        return eager_logits(model, tokens)


def compiled(
    model: PreTrainedModel, folder: Path, recipe: str = "cpu_fp32", **given: object
) -> Program:
    settings = {"window": SIZE, "keep": KEEP, "slack": SLACK} | given
    path, caches = folder / "model.kvc", CacheConfig(**settings)
    export_hf(
        model, recipe=recipe, cache=caches, prefill_chunk=CHUNK, all_logits=True
    ).save(path)
    return load(path)


@pytest.fixture(scope="module")
def program_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Program]]:
    with ExitStack() as stack:

        @cache
        def made(name: str) -> Program:
            folder = tmp_path_factory.mktemp("sinks")
            return stack.enter_context(compiled(build(name), folder))

        yield made


@pytest.fixture(scope="module")
def llama(program_of: Callable[[str], Program]) -> Program:
    return program_of("llama")


@only(name=DAILY)
@pytest.mark.parametrize("name", MODELS)
def test_a_text_of_many_windows_gives_the_logits_of_the_mask(name, program_of):
    windows, limit = MODELS[name]
    program, tokens = program_of(name), text(min(limit or LENGTH, LENGTH))
    for layer, window in enumerate(windows):
        if window is not None:
            state = program.states[f"kvc_cache.{layer}.keys"]
            assert (state.kind, state.window) == (StateKind.RING, window)
            extra = CHUNK - 1 + SLACK
            assert state.type.dims[2] == window.size + window.keep + extra
    wanted = under_sinks(build(name), tokens)
    assert np.abs(wanted - eager_logits(build(name), tokens))[-1].max() > NOTICED
    with program.session() as session:
        assert (session.capacity, session.longest_call) == (limit, CHUNK + SLACK)
        found = [session.prefill(tokens[:, :50])[0]]  # in pieces
        found += [
            session.decode(tokens[:, place : place + 1])[0]
            for place in range(50, tokens.shape[1])
        ]
    assert np.abs(np.stack(found) - wanted[49:]).max() < NEAR * wanted.std()


def test_a_prefill_is_as_its_pieces_and_near_to_its_tokens(llama):
    tokens = text(61)
    with llama.session() as whole, llama.session() as pieces, llama.session() as steps:
        found = whole.prefill(tokens)
        most = whole.longest_call
        for start in range(0, 61, CHUNK):
            last = pieces.prefill(tokens[:, start : min(start + CHUNK, 61)])
        for place in range(61):
            step = steps.decode(tokens[:, place : place + 1])
        assert most == CHUNK + SLACK
        assert np.array_equal(found, last)
        assert np.abs(found - step).max() < TOLERANCE * found.std()


def test_first_positions_are_kept_and_others_forgotten(llama):
    tokens, found = text(61), []
    behind = KEEP + (60 - SIZE - KEEP) % (SLOTS - KEEP)  # position 60 - SIZE
    for slot in (None, behind, KEEP - 1):
        with llama.session() as session:
            session.prefill(tokens[:, :60])
            for layer in (0, 1) if slot is not None else ():
                zero_row(session.state[f"kvc_cache.{layer}.keys"], slot)
                zero_row(session.state[f"kvc_cache.{layer}.values"], slot)
            found.append(session.decode(tokens[:, 60:61]))
    assert np.array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > NOTICED * found[0].std()


def test_a_session_goes_back_as_far_as_its_slack_or_to_the_first_positions(llama):
    tokens = text(100)
    wanted = under_sinks(build("llama"), tokens)
    back = CHUNK + SLACK - 1
    with llama.session() as session:
        session.prefill(tokens[:, :90])
        session.rewind(back)
        found = session.prefill_all(tokens[:, 90 - back : 92 - back])[0]
        assert np.abs(found - wanted[90 - back : 92 - back]).max() < NEAR * 9
        with pytest.raises(NotRewindable, match="12 and the first 3"):
            session.rewind(60)
        session.rewind(int(session.position[0]) - 2)
        found = session.prefill(tokens[:, 2:70])[0]
        assert np.abs(found - wanted[69]).max() < NEAR * wanted.std()


def test_forks_and_saved_sessions_go_on(llama, tmp_path):
    tokens = text(100)
    with llama.session() as session:
        session.prefill(tokens[:, :70])
        session.save(tmp_path / "session")
        with session.fork() as fork, llama.restore(tmp_path / "session") as restored:
            session.prefill(tokens[:, 70:98])
            for other in (fork, restored):
                other.prefill(tokens[:, 70:98])
            last = session.decode(tokens[:, 98:99])
            assert np.array_equal(last, fork.decode(tokens[:, 98:99]))
            assert np.array_equal(last, restored.decode(tokens[:, 98:99]))


def test_rows_of_different_lengths(tmp_path):
    model, tokens = build("llama", shallow=True), text(LENGTH)
    rows = np.concatenate([tokens, tokens[:, ::-1]])
    wanted = [under_sinks(model, row[None]) for row in rows]
    near = NEAR * wanted[0].std()
    with (
        compiled(model, tmp_path, batch=2) as program,
        program.session(batch=2) as session,
    ):
        found = session.prefill(rows[:, :60], np.array([60, 35]))
        assert np.abs(found[0] - wanted[0][59]).max() < near
        assert np.abs(found[1] - wanted[1][34]).max() < near
        ends = [60, 35]
        for step in range(40):
            active = np.array([True, step % 2 == 0])
            given = [rows[row, end : end + 1] for row, end in enumerate(ends)]
            found = session.decode(np.stack(given), active)
            for row in active.nonzero()[0]:
                assert np.abs(found[row] - wanted[row][ends[row]]).max() < near
                ends[row] += 1


def test_a_generation_goes_on_beyond_the_model_s_own_limit(llama):
    tokens = text(30)
    with llama.session() as session:
        run = generate(session, tokens[0].tolist(), max_tokens=150, stop_tokens=[])
        whole = np.concatenate([tokens, [list(run)]], 1)
        assert run.reason == "max_tokens"
    wanted = under_sinks(build("llama"), whole)
    assert wanted[29:-1].argmax(1).tolist() == whole[0, 30:].tolist()


@RARELY
def test_a_draft_s_guesses_are_undone_in_a_ring(llama, program_of):
    prompt, given = text(40)[0].tolist(), {"max_tokens": 90, "stop_tokens": []}
    with llama.session() as alone, llama.session() as target:
        wanted = list(generate(alone, prompt, **given))
        with program_of("qwen3").session() as draft:
            run = generate(target, prompt, draft=draft, draft_tokens=4, **given)
            assert list(run) == wanted
        target.reset()
        run = generate(target, prompt, draft="prompt", **given)
        assert list(run) == wanted


@only(recipe=("cpu_q8",), dtype=("int8",))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("recipe", ["fp32", "cpu_q8", "cpu_q4", "xnnpack_q8"])
def test_recipes_and_dtypes_of_caches_see_the_same(recipe, dtype, tmp_path):
    model, tokens = build("llama", shallow=True), text(100)
    wanted = under_sinks(model, tokens)
    without = eager_logits(model, tokens)
    with compiled(model, tmp_path, recipe, dtype=dtype) as program:
        assert ASKED in {state.window for state in program.states.values()}
        with program.session() as session:
            session.prefill(tokens[:, :40])
            session.rewind(3)
            found = np.concatenate(
                [
                    session.prefill_all(tokens[:, start : start + CHUNK])[0]
                    for start in range(37, 97, CHUNK)
                ]
            )
    likeness = [
        np.corrcoef(found.ravel(), other[37:97].ravel())[0, 1]
        for other in (wanted, without)
    ]
    assert likeness[0] > {"cpu_q4": 0.9}.get(recipe, 0.99)
    assert likeness[0] > likeness[1] + 0.05


# Tokens are written as numbers; of earlier answers all comes back, or the end alone.
WHOLE = "{% for m in messages %}{{ m.content }} 2 {% endfor %}"
ENDS = WHOLE.replace("m.content", "m.content.split(' ')[-6:] | join(' ')")


@pytest.mark.parametrize("text_of", [WHOLE, ENDS], ids=["whole", "ends"])
def test_a_chat_is_never_full(llama, text_of):
    template = ChatTemplate("t", Renderer("t", text_of, Limits()), {})
    tokenizer, given = tokenizer_of(llama), {"max_tokens": 30, "stop_tokens": []}
    with llama.session() as session, llama.session() as fresh:
        chat = Conversation(session, tokenizer, template, on_full="sinks", **given)
        for turn in range(6):
            made = "".join(chat.say(f"{turn + 5} 6 7")).strip()
            fresh.reset()
            run = generate(
                fresh, template.render(chat.messages[:-1]), tokenizer=tokenizer, **given
            )
            assert "".join(run.text()).strip() == made
        assert (chat.dropped, chat.answer.reason) == (0, "max_tokens")
        if text_of is WHOLE:
            assert chat.used > 128  # the model's own limit


def test_a_session_with_a_limit_has_no_sinks(llama):
    template = ChatTemplate("t", Renderer("t", WHOLE, Limits()), {})
    with (
        llama.session(capacity=40) as session,
        pytest.raises(BadSetting, match=r"full at 40 tokens.*--window N --keep K"),
    ):
        Conversation(session, tokenizer_of(llama), template, on_full="sinks")
