"""Prompts that are read once."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hand_built import cache_program, write_bundle
from tiny_decoder import factory

from kvc.compiler import compile_program
from kvc.runtime import (
    BadSetting,
    Closed,
    Forked,
    InputMismatch,
    Program,
    PromptTooLong,
    UnknownName,
    generate,
    load,
)

TOKENS = [7, 200, 3, 3, 91, 14, 255, 0, 66, 5, 9, 120, 17, 45, 2, 77, 31, 8, 4]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    spec = factory()
    path = tmp_path_factory.mktemp("prefix") / "tiny.kvc"
    compile_program(spec.model, spec.methods, metadata=spec.metadata).save(path)
    with load(path) as opened:
        yield opened


def test_sessions_of_a_prefix_have_read_its_tokens(program):
    with program.session() as session:
        session.prefill(np.array([TOKENS[:10]]))
        plain = session.prefill(np.array([TOKENS[10:]]))
        expected = session.decode(np.array([[1]]))
    with program.prefix(TOKENS) as prefix:
        # The same tokens, perhaps in other chunks.
        np.testing.assert_allclose(prefix.logits, plain, rtol=1e-4, atol=1e-5)
        for _ in range(2):
            with prefix.session() as session:
                assert session.position == len(TOKENS)
                found = session.decode(np.array([[1]]))
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_generation_goes_on_from_a_prefix(program):
    with program.session() as session:
        whole = list(generate(session, TOKENS, max_tokens=4, do_sample=False))
    with program.prefix(TOKENS[:15]) as prefix, prefix.session() as session:
        rest = list(generate(session, TOKENS[15:], max_tokens=4, do_sample=False))
    assert rest == whole


@pytest.mark.parametrize(
    "tokens", [np.array(TOKENS), np.array([TOKENS]), torch.tensor(TOKENS)]
)
def test_tokens_come_in_many_forms(program, tokens):
    with program.prefix(tokens) as prefix:
        assert prefix.tokens.tolist() == [TOKENS]


@pytest.mark.parametrize("tokens", [[], [[]], "text", [1.5], [[1], [2, 3]], 3])
def test_what_are_no_tokens_is_refused(program, tokens):
    with pytest.raises(BadSetting, match="tokens: expected at least one token"):
        program.prefix(tokens)


def test_tokens_that_the_model_lacks_or_that_do_not_fit_are_refused(program):
    with pytest.raises(InputMismatch):
        program.prefix([256])
    with pytest.raises(PromptTooLong, match=r"has 25 tokens, .* has room for 24"):
        program.prefix(list(range(25)))


def test_a_program_without_the_roles_is_refused(tmp_path: Path):
    with (
        load(write_bundle(tmp_path / "c.kvc", cache_program())) as opened,
        pytest.raises(UnknownName, match="no method of the role 'prefill'"),
    ):
        opened.prefix([1])


def test_sessions_outlive_their_prefix(program):
    prefix = program.prefix(TOKENS)
    session = prefix.session(transactional=True)
    prefix.close()
    prefix.close()
    with pytest.raises(Closed, match="the prefix has been closed"):
        prefix.session()
    assert session.position == len(TOKENS)
    session.decode(np.array([[1]]))
    session.close()


def test_a_child_of_the_process_is_refused_and_does_not_wait(program, monkeypatch):
    prefix = program.prefix(TOKENS)
    with prefix._lock:  # as another thread may have it when a process is forked
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(Forked, match="the prefix was opened in process"):
            prefix.session()
        prefix.close()


def test_a_prefix_serves_many_threads(program):
    def talk(token):
        with prefix.session() as session:
            return session.decode(np.array([[token]]))

    with program.prefix(TOKENS) as prefix, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(talk, [1, 2] * 16))
    for i, logits in enumerate(found):
        np.testing.assert_array_equal(logits, found[i % 2])
    assert not np.array_equal(found[0], found[1])
