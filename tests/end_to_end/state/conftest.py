"""Programs that several of these modules run: each is compiled once, when asked for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from zlib import crc32

import coreml_checker
import library_here
import pytest
import vulkan_here
from library_sample import one_of_each
from ragged_models import opened_ragged
from state_backends import FIXED, MANY, RECIPES, WAYS, compiling_with

from kvc.runtime import Program


@pytest.fixture(scope="session")
def ragged(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Callable[[str], Program]]:
    """Return what gives the program of a kind of `ragged_models.RAGGED`."""
    with ExitStack() as stack:

        @cache
        def program(kind: str) -> Program:
            folder = tmp_path_factory.mktemp("ragged")
            return stack.enter_context(opened_ragged(kind, folder))

        yield program


# They look at the steps, verdicts or bytes of a method that nobody takes parts of.
_OF_NO_BACKEND = (
    "test_recipes.py",
    "test_failures.py",
    "test_rivals_defects.py",
    "test_nothing_is_copied_to_write_them",
    "test_caches_are_written_in_place",
    "test_a_spelling_does_in_each_call_what_eager_does",
    "test_a_write_outside_is_refused_and_changes_nothing",
)
# They look at what only the host's memory has: its addresses and its pages.
_OF_THE_HOST = (
    "test_memory_appears_with_tokens_and_goes_when_they_do",
    "test_a_look_at_a_state_follows_it",
)
# They compare with the reference bit for bit, or break one of its kernels.
_OF_THE_REFERENCE = (
    "test_a_bundle_gives_the_bits_of_eager",
    "test_a_failed_piece_puts_back_each_state_at_its_own_cursor",
)
# They tell what float32 computes from what is a little off, or expect bounds of sizes
# in messages, where a device of fixed shapes has a list.
_OF_ANY_SIZE_IN_FLOAT32 = (
    "test_int8_rings_equal_the_model_over_rounded_rows",
    "test_what_has_no_role_is_not_parted",
    "test_a_width_that_a_method_lacks_is_no_call_too_long",
)
# A cache of the caller's that begins without an element is a tensor of none.
_OF_SIZE_0 = ("test_caches_that_grow_apart_have_positions_apart",)
_OF_AN_EMPTY_ARGUMENT = ("test_an_argument_may_be_empty_at_one_call_only",)
# States that are products of tensors, here on grids for numbers up to 64: the library
# is off by 0.3, where on grids for 8 it is as near as the integers on the host.
_OF_NARROW_GRIDS = ("a16w8-recurrent",)
# They compare caches with eager's bit for bit.
_OF_FLOAT32_CACHES = (
    "test_a_rewind_forgets_tokens_of_the_decoder_alone",
    "test_an_encoder_begins_the_session_anew",
)
_OF_BACKENDS = ("test_failing_steps.py", "test_whoever_runs.py")
_NOT_WITH = {
    "opaque": _OF_THE_HOST,
    **dict.fromkeys(RECIPES, _OF_THE_REFERENCE),
    "vulkan_fp32": _OF_THE_HOST + _OF_THE_REFERENCE,
    "mlx": _OF_THE_HOST + _OF_THE_REFERENCE,
    "lowered": _OF_THE_REFERENCE + _OF_ANY_SIZE_IN_FLOAT32 + _OF_SIZE_0,
    "qnn_fp16": _OF_THE_REFERENCE + _OF_ANY_SIZE_IN_FLOAT32,
    "qnn_a16w8": _OF_THE_REFERENCE + _OF_ANY_SIZE_IN_FLOAT32 + _OF_NARROW_GRIDS,
    **dict.fromkeys(
        ("coreai_fp32", "coreai_fp16"),
        _OF_THE_REFERENCE + _OF_ANY_SIZE_IN_FLOAT32 + _OF_SIZE_0,
    ),
    "coreml_fp16": _OF_THE_REFERENCE
    + _OF_ANY_SIZE_IN_FLOAT32
    + _OF_SIZE_0
    + _OF_AN_EMPTY_ARGUMENT
    + _OF_FLOAT32_CACHES,
}
_ALWAYS = {
    "cpu_fp32": (
        "test_whoever_runs.py",
        "test_branches_of_turns_write",
        "test_an_index_outside",
    ),
    "greedy": ("test_whoever_runs.py", "test_cursors.py", "test_an_index_outside"),
    "opaque": ("test_whoever_runs.py",),
    "vulkan_fp32": ("test_whoever_runs.py", "test_an_index_outside"),
}
_HERE = Path(__file__).parent
# With each way one of so many tests runs every day; the rest on request.
_DAILY = dict.fromkeys(WAYS, 24) | {"xnnpack_fp32": 72, "vulkan_fp32": 48}
_NAMES = ["", *WAYS]
# They try random cases, of which such a way tries one of `MANY`, each way others.
_RANDOM = ("test_two_functions_over_the_same_buffers",)
# All of them on request: libraries that few have, and float16 by steps. A sample of
# them is marked `libraries`.
_ON_REQUEST = (*FIXED, "mlx")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose which tests run in which way: the same ones each day, never in two."""
    kept = []
    on_request: dict[str, tuple[pytest.Item, str, bool]] = {}
    for item in items:
        name = next((n for n in WAYS if f"[{n}" in item.nodeid), "")
        if not name or _HERE not in item.path.parents:
            if item.path.name not in _OF_BACKENDS or name:
                kept.append(item)
            continue
        left_out = _OF_NO_BACKEND + _NOT_WITH.get(name, ())
        if any(text in item.nodeid for text in left_out):
            continue
        always = any(text in item.nodeid for text in _ALWAYS.get(name, ()))
        own = crc32(item.nodeid.replace(f"[{name}", "[").encode())
        chosen = own % _DAILY[name] == _NAMES.index(name)
        random = any(text in item.nodeid for text in _RANDOM)
        if random and own % MANY != _NAMES.index(name):
            continue
        if name in _ON_REQUEST:
            rarely = item.get_closest_marker("exhaustive") is not None
            on_request[item.nodeid] = item, name, rarely
        if name in _ON_REQUEST or not (always or chosen):
            item.add_marker(pytest.mark.exhaustive)
        kept.append(item)
    cases = ((case, name, rarely) for case, (_, name, rarely) in on_request.items())
    for case in one_of_each(cases):
        on_request[case][0].add_marker(pytest.mark.libraries)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try each way; in a daily run, leave out those of which it has no case."""
    daily = "not exhaustive" in metafunc.config.getoption("markexpr")
    names = [name for name in _NAMES if not daily or name not in _ON_REQUEST]
    metafunc.parametrize("backend", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """Give every test each way to run its methods; see `state_backends`.

    Of the session, so that a module's own fixtures are made once for each of them.
    """
    name: str = request.param
    if name == "vulkan_fp32":
        vulkan_here.device()
    if name == "mlx":
        library_here.need("mlx")
    if name.startswith("qnn"):
        library_here.need("qnn")
    if name.startswith("coreai"):
        library_here.need("coreai")
    return name


@pytest.fixture(scope="session", autouse=True)
def _checking(backend: str) -> Iterator[None]:
    """Let coremltools, where it is here, build what is for Core ML."""
    if backend.startswith("coreml") and library_here.is_here("coreml"):
        with coreml_checker.checking():
            yield
    else:
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what coremltools has built."""
    if counts := coreml_checker.COUNTS:
        what = f"{counts['built']} functions, {counts['not whole']} are not whole"
        terminalreporter.write_line(f"built by coremltools: {what}")
    asked = terminalreporter.config.option.markexpr == "libraries"
    if asked and not library_here.is_here("coreml"):
        terminalreporter.write_line("coremltools is not here, and has built nothing")


@pytest.fixture(scope="module", autouse=True)
def _compiling(backend: str) -> Iterator[None]:
    """Let the backend be that of these modules, and of no other test."""
    with compiling_with(backend):
        yield
