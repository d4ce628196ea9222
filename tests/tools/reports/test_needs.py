"""What a bundle needs at run time beside kvc's runtime, and how to get it."""

import json
from dataclasses import replace

import pytest
import torch
from small_models import Sorting
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime.delegates import table
from kvc.runtime.execution.delegate import Delegate, NeededLibrary
from kvc.schema.model import Program
from kvc.tools.reports.needs import describe_needs, needs_text

NOTHING = "nothing beside kvc's runtime and numpy"
XNNPACK = "XNNPACK (`pip install --no-deps executorch==1.5.1`)"
PYTORCH = "PyTorch (`pip install 'kvc[compile]'`)"
X = torch.arange(8.0).reshape(2, 4)


def compiled(recipe: str, *methods: str) -> Program:
    asked = [Method(name, (X,)) for name in methods]
    return compile_program(Sorting(), asked, recipe).program


def said(program: Program) -> str:
    return needs_text(describe_needs(program))


@pytest.mark.parametrize(
    ("recipe", "method", "wanted"),
    [
        ("cpu_fp32", "plain", NOTHING),
        ("cpu_q8", "plain", NOTHING),
        ("xnnpack_fp32", "plain", XNNPACK),
        ("vulkan_fp32", "plain", "Vulkan (`apt install libvulkan1 mesa-"),
        ("mlx_q8", "plain", "mlx 0.32.4 (`pip install 'kvc[mlx]'`)"),
        ("coreai_fp32", "plain", "Core AI of Apple (`pip install 'kvc[coreai]'`)"),
        ("qnn_fp16", "plain", "QNN of Qualcomm (`pip install 'kvc[qnn]'`)"),
        ("coreml_fp16", "plain", PYTORCH),
        ("cpu_fp32", "ordered", f"{PYTORCH} for 1 instruction (aten::sort)"),
        (
            "xnnpack_fp32",
            "ordered",
            f"{XNNPACK}; {PYTORCH} for 1 instruction (aten::sort)",
        ),
        (
            "coreml_fp16",
            "ordered",
            f"{PYTORCH} for the backend coreml and 1 instruction (aten::sort)",
        ),
        (
            "fp32",
            "ordered",
            f"{PYTORCH} for 4 instructions (aten::_to_copy, aten::linear, aten::sort)",
        ),
    ],
)
def test_a_recipe_needs_a_library_pytorch_or_nothing(recipe, method, wanted):
    assert said(compiled(recipe, method)).startswith(wanted)


def test_instructions_of_all_methods_count_and_the_most_frequent_come_first():
    (need,) = describe_needs(compiled("fp32", "plain", "ordered"))
    counts = {"aten::linear": 2, "aten::_to_copy": 2, "aten::sort": 1}
    assert [*need.left.items()] == [*counts.items()]
    many = replace(need, left=dict.fromkeys("abcd", 1))
    assert needs_text([many]).endswith("for 4 instructions (a, b, c, ...)")


def test_a_method_without_operators_needs_nothing():
    bundle = compile_program(nn.Identity(), [Method("forward", (X,))], "fp32")
    assert said(bundle.program) == NOTHING


def by_another(name: str) -> Program:
    program = compiled("cpu_fp32", "plain")
    partitions = (replace(one, backend=name) for one in program.delegates)
    return replace(program, delegates=tuple(partitions))


def test_a_backend_of_another_package_is_what_is_needed(monkeypatch):
    monkeypatch.setattr(table, "DELEGATES", dict(table.DELEGATES))
    program, wanted = by_another("toy"), "the backend toy of another package"
    assert said(program) == wanted
    table.register_delegate("toy", type("Toy", (Delegate,), {}))
    assert said(program) == wanted
    needed = {"needs": NeededLibrary("libtoy", "apt install libtoy")}
    table.DELEGATES["toy"] = type("Toy", (Delegate,), needed)
    assert said(program) == "libtoy (`apt install libtoy`)"


def test_of_libraries_that_two_backends_need_one_is_told(monkeypatch):
    monkeypatch.setattr(table, "DELEGATES", dict(table.DELEGATES))
    made = type("Toy", (Delegate,), {"needs": table.library_of("xnnpack")})
    table.register_delegate("toy", made)
    one, *_ = by_another("toy").delegates
    program = compiled("xnnpack_fp32", "plain")
    (need,) = describe_needs(replace(program, delegates=(*program.delegates, one)))
    assert (need.name, need.backends) == ("XNNPACK", ("xnnpack", "toy"))


def test_the_kernels_of_kvc_are_of_its_runtime():
    assert table.library_of("cpu") is None
    assert table.library_of("ethosu") is None


def test_compile_and_dump_say_the_same_of_each_recipe(kvc, tmp_path):
    path = tmp_path / "a.kvc"
    made = kvc("compile", "demo", "--recipe", "xnnpack_fp32,cpu_fp32", "-o", path)
    rows = [line.split(maxsplit=1) for line in made.stderr.splitlines()]
    told = [rest for first, *rest in filter(None, rows) if first == "needs"]
    assert told == [[XNNPACK], [NOTHING]]
    lines = kvc("dump", path).stdout.splitlines()
    assert lines[2:4] == [f"xnnpack_fp32 needs {XNNPACK}", f"cpu_fp32 needs {NOTHING}"]
    xnnpack, own = json.loads(kvc("dump", path, "--json").stdout)["recipes"]
    install = "pip install --no-deps executorch==1.5.1"
    wanted = {"name": "XNNPACK", "install": install, "backends": ["xnnpack"]}
    assert xnnpack["needs"] == [wanted | {"left": {}}]
    assert own["needs"] == []


def test_of_one_recipe_dump_says_it_in_one_line(kvc, tmp_path):
    compile_program(Sorting(), [Method("plain", (X,))]).save(tmp_path / "a.kvc")
    lines = kvc("dump", tmp_path / "a.kvc").stdout.splitlines()
    assert lines[2] == f"needs {NOTHING}"
