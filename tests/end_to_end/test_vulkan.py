"""Bundles of the backend `vulkan`: whole methods, with their states, on a device."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import vulkan_here
from hf_models import VOCAB, build
from hf_parity import CAPACITY

from kvc.compiler import CacheConfig, compile_program, export_hf
from kvc.compiler.models.demo import demo
from kvc.recipes import load_recipe
from kvc.runtime import Program, Session, SoftwareDevice, load
from kvc.runtime.delegates.vulkan import backend
from kvc.runtime.delegates.vulkan.binding import Bound
from kvc.runtime.delegates.vulkan.found import Kind
from kvc.runtime.delegates.vulkan.states import DeviceOwner
from kvc.runtime.execution.delegate import Options
from kvc.schema.errors import (
    BadProgram,
    BadSetting,
    CacheOverflow,
    DeviceLost,
    MissingLibrary,
    OutOfMemory,
)
from kvc.schema.ops import DELEGATE, OPS, Aliasing

TOKENS = np.arange(3, 20)[None]
NEAR = 1e-5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_decoder.factory()
    path = tmp_path_factory.mktemp("vulkan") / "tiny.kvc"
    made = compile_program(
        spec.model, spec.methods, recipe="vulkan_fp32", metadata=spec.metadata
    )
    made.save(path)
    return path


@pytest.fixture(params=["shared", "apart"])
def separate(request: pytest.FixtureRequest) -> Iterator[bool]:
    apart = request.param == "apart"
    with vulkan_here.memory(separate=apart):
        yield apart


def answers(session: Session, tokens: np.ndarray = TOKENS) -> np.ndarray:
    found = [session.prefill(tokens[:, :5]), session.prefill(tokens[:, 5:9])]
    found += [session.decode(tokens[:, i : i + 1]) for i in range(9, 14)]
    return np.stack(found)


def by_reference(path: Path) -> np.ndarray:
    with load(path, reference=True) as program, program.session() as session:
        return answers(session)


def is_near(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() <= NEAR * np.abs(wanted).max())


def count_runs(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[Bound]:
    runs: list[Bound] = []
    call = Bound.__call__

    def counted(self: Bound) -> None:
        runs.append(self)
        call(self)

    monkeypatch.setattr(Bound, "__call__", counted)
    return runs


def test_a_method_is_one_partition_and_a_token_one_submission(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vulkan_here.device()
    with load(path, reference=False) as program, program.session() as session:
        for method in program._engine.program.methods:
            ops = [each.op for each in method.graph.instructions]
            assert ops.count(DELEGATE) == 1
            others = {OPS[op].aliasing for op in ops if op != DELEGATE}
            assert others <= {Aliasing.VIEW}
        session.prefill(TOKENS[:, :5])
        session.decode(TOKENS[:, 5:6])
        runs = count_runs(program, monkeypatch)
        for i in range(6, 9):
            session.decode(TOKENS[:, i : i + 1])
        assert len(runs) == 3
        assert len(set(map(id, runs))) == 1  # recorded once
        assert runs[0].dispatches < 40
        mirrors = runs[0].mirrors
        # A token and where it stands go in, logits come out, nothing else.
        assert mirrors.read_nbytes <= 64
        assert mirrors.written_nbytes == 4 * 256


def test_states_are_the_device_s_and_answers_the_reference_s(
    path: Path, separate: bool
) -> None:
    with load(path, reference=False) as program, program.session() as session:
        assert is_near(answers(session), by_reference(path))
        owners = [owner for owner, _ in session._states.owner._parts]
        assert sum(isinstance(owner, DeviceOwner) for owner in owners) == 1
        stores = [s for o in owners if isinstance(o, DeviceOwner) for s in o.stores]
        assert {store.memory.shared for store in stores} == {not separate}


def test_sessions_rewind_fork_save_and_restore(
    path: Path, separate: bool, tmp_path: Path
) -> None:
    with load(path, reference=False) as program, program.session() as session:
        wanted = answers(session)
        with program.session() as other:
            other.prefill(TOKENS[:, :9])
            fork = other.fork()
            other.decode(TOKENS[:, 3:4])
            other.rewind(1)
            other.save(tmp_path / "session.kvcs")
            with fork, program.restore(tmp_path / "session.kvcs") as restored:
                for one in (other, fork, restored):
                    again = [one.decode(TOKENS[:, i : i + 1]) for i in range(9, 14)]
                    assert is_near(np.stack(again), wanted[2:])
        session.reset()
        assert is_near(answers(session), wanted)


def test_two_programs_and_two_sessions_share_a_device(path: Path) -> None:
    vulkan_here.device()
    wanted = by_reference(path)
    with load(path, reference=False) as one, load(path, reference=False) as two:
        sessions = [one.session(), one.session(), two.session()]
        for i in range(5):
            for session in sessions:
                session.prefill(TOKENS[:, i : i + 1])
        for session in sessions:
            found = session.prefill(TOKENS[:, 5:9])
            assert is_near(found, wanted[1])
            session.close()


def test_a_full_cache_leaves_the_session_as_it_was(path: Path) -> None:
    vulkan_here.device()
    with load(path, reference=False) as program, program.session(capacity=10) as one:
        one.prefill(TOKENS[:, :8])
        with pytest.raises(CacheOverflow):
            one.prefill(TOKENS[:, 8:12])
        wanted = by_reference(path)
        one.rewind(3)
        assert is_near(one.prefill(TOKENS[:, 5:9]), wanted[1])


def test_states_that_do_not_fit_are_refused(path: Path) -> None:
    device = vulkan_here.device()
    was, device.largest = device.largest, 1000
    try:
        with (
            load(path, reference=False) as program,
            pytest.raises(OutOfMemory, match="Vulkan"),
        ):
            program.session()
    finally:
        device.largest = was


def test_a_lost_device_is_named_and_sessions_close(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = vulkan_here.device()
    with load(path, reference=False) as program, program.session() as session:
        session.prefill(TOKENS[:, :5])
        with monkeypatch.context() as patch:
            library = device.functions._library
            patch.setattr(library, "vkQueueSubmit", lambda *_: -4)
            with pytest.raises(DeviceLost, match="vulkan"):
                session.decode(TOKENS[:, 5:6])
        device._lost = ""


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_an_architecture_equals_the_reference(name: str, tmp_path: Path) -> None:
    vulkan_here.device()
    path = tmp_path / "model.kvc"
    cache = CacheConfig(CAPACITY)
    model = build(name, shallow=True)
    made = export_hf(model, recipe="vulkan_fp32", cache=cache, prefill_chunk=12)
    made.save(path)
    assert {each.backend for each in made.program.delegates} == {"vulkan"}
    tokens = np.random.default_rng(7).integers(3, VOCAB, (1, 23))
    found = []
    for reference in (False, True):
        with load(path, reference=reference) as program, program.session() as session:
            found.append(answers(session, tokens))
    assert is_near(*found)


@pytest.mark.parametrize("cache", ["float32", "int8"])
def test_int8_weights_are_those_of_the_recipe(cache: str, tmp_path: Path) -> None:
    vulkan_here.device()
    spec, path = tiny_decoder.factory(), tmp_path / "tiny.kvc"
    recipe = load_recipe("vulkan_q8", cache)
    made = compile_program(spec.model, spec.methods, recipe=recipe)
    made.save(path)
    assert {each.backend for each in made.program.delegates} == {"vulkan"}
    with load(path, reference=False) as program, program.session() as session:
        found, wanted = answers(session), by_reference(path)
    # A value near the middle of two steps may be on the other side.
    assert np.abs(found - wanted).max() <= 0.01 * np.abs(wanted).max()


def test_the_demo_equals_the_reference(tmp_path: Path) -> None:
    vulkan_here.device()
    spec, path = demo(), tmp_path / "demo.kvc"
    compile_program(spec.model, spec.methods, recipe="vulkan_fp32").save(path)
    with load(path, reference=False) as program, program.session() as session:
        assert is_near(answers(session), by_reference(path))


def test_a_device_is_chosen_by_name(path: Path) -> None:
    name = f"vulkan:{vulkan_here.device().found.number}"
    with load(path, device=name) as program, program.session() as session:
        assert is_near(answers(session), by_reference(path))


@pytest.mark.parametrize("name", ["vulkan:99", "vulkan", "cpu:0", 3])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    path: Path, name: str
) -> None:
    here = vulkan_here.device().found
    with pytest.raises(BadSetting, match=f"here.*vulkan:{here.number}|a device of"):
        load(path, device=name)


def test_a_device_that_was_asked_for_is_not_replaced_by_the_reference(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingLibrary(library="Vulkan", reason="gone", install="apt")

    monkeypatch.setattr(backend, "find_devices", missing)
    with pytest.raises(MissingLibrary, match="gone"):
        load(path, device="vulkan:0")


def test_software_says_so_once_unless_it_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = vulkan_here.device()
    found = replace(device.found, kind=Kind.SOFTWARE)
    monkeypatch.setattr(device, "found", found)
    monkeypatch.setattr(backend, "_told", [])
    with load(path, device=f"vulkan:{found.number}") as program:
        program.pack()
    with load(path) as program, pytest.warns(SoftwareDevice, match=found.name[:8]):
        program.pack()
    with load(path) as program:
        program.pack()


@pytest.mark.parametrize("change", ["payload", "op"])
def test_what_is_not_for_the_backend_is_refused_before_a_device_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def opened() -> None:
        raise AssertionError("a device was opened")

    with load(path, reference=True) as program:
        held = program._engine.program
    if change == "payload":
        first, *others = held.delegates
        hostile = replace(held, delegates=(replace(first, payload=b"\x03"), *others))
        expected = "a payload of 1 bytes"
    else:
        (one, *others) = held.methods
        graph = one.blocks[0].graph
        step = next(i for i in graph.instructions if i.op == "aten::linear")
        steps = [
            replace(i, op="aten::topk") if i is step else i for i in graph.instructions
        ]
        block = replace(one.blocks[0], graph=replace(graph, instructions=tuple(steps)))
        changed = replace(one, blocks=(block, *one.blocks[1:]))
        hostile = replace(held, methods=(changed, *others))
        expected = "does not take aten::topk"
    monkeypatch.setattr(backend, "open_device", opened)
    with pytest.raises(BadProgram, match=expected):
        backend.Vulkan(Options(path=str(path), program=hostile))


def test_nothing_of_vulkan_is_loaded_unless_a_bundle_needs_it(tmp_path: Path) -> None:
    spec, path = tiny_decoder.factory(), tmp_path / "tiny.kvc"
    compile_program(spec.model, spec.methods, recipe="cpu_fp32").save(path)
    code = textwrap.dedent("""
        import sys
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1]) as program, program.session() as session:
            session.prefill(np.arange(5)[None])
        maps = open("/proc/self/maps").read()
        assert "libvulkan" not in maps and "lvp" not in maps
        assert not [name for name in sys.modules if "vulkan" in name]
    """)
    subprocess.run([sys.executable, "-c", code, path], check=True)


def test_the_validation_layer_is_silent(path: Path) -> None:
    vulkan_here.device()
    layer = "VK_LAYER_KHRONOS_validation"
    code = textwrap.dedent("""
        import sys
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1], reference=False, device="vulkan:0") as program:
            with program.session() as session:
                session.prefill(np.arange(5)[None])
                fork = session.fork()
                session.decode(np.array([[7]]))
                session.rewind(2)
                fork.close()
        maps = open("/proc/self/maps").read()
        print("loaded" if "khronos_validation" in maps else "")
    """)
    environment = os.environ | {"VK_INSTANCE_LAYERS": layer}
    command = [sys.executable, "-c", code, path]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    if "loaded" not in told.stdout:
        assert not vulkan_here.REQUIRED, "apt install vulkan-validationlayers"
        pytest.skip("no validation layer: apt install vulkan-validationlayers")
    assert told.stdout.strip() == "loaded", told.stdout
    assert "VUID" not in told.stderr


def test_a_bundle_runs_without_torch(path: Path) -> None:
    vulkan_here.device()
    code = textwrap.dedent("""
        import sys
        sys.modules["torch"] = None
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1], reference=False) as program:
            with program.session() as session:
                session.prefill(np.arange(5)[None])
                session.decode(np.array([[7]]))
    """)
    subprocess.run([sys.executable, "-c", code, path], check=True)
