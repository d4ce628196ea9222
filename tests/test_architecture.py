"""The rules of ARCHITECTURE.md; the reasons are in decisions/."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {folder: name for name, folder in SETTINGS["package-dir"].items()}
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if "dev" not in path.relative_to(ROOT).parts
)
# What of a backend's name no other code says; "cpu" alone is torch's device as well.
BACKENDS = {
    "coreai": ("coreai",),
    "coreml": ("coreml",),
    "cpu": ("backends.cpu", "delegates.cpu"),
    "ethosu": ("ethosu",),
    "mlx": ("mlx",),
    "qnn": ("qnn",),
    "vulkan": ("vulkan",),
    "xnnpack": ("xnnpack",),
}


@cache
def tree_of(path):
    return ast.parse((ROOT / path).read_text(), str(path))


@cache
def imports_of(path):
    """All modules that a file imports, `from a import b` as `a` and `a.b`."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def breaks(rule):
    """The (file, module) pairs for which a rule is true."""
    return [
        f"{path} imports {module}"
        for path in SOURCES
        for module in sorted(imports_of(path))
        if rule(path, module)
    ]


def within(module, package):
    return module == package or module.startswith(package + ".")


ALLOWED = {
    "package": set(),  # it finds names in other parts when they are used
    "schema": {"kvc.schema"},
    "recipes": {"kvc.schema", "kvc.recipes"},
    "compiler": {"kvc.schema", "kvc.recipes", "kvc.compiler"},
    "runtime_py": {"kvc.schema", "kvc.runtime"},
    "in_transformers": {
        f"kvc.{name}"
        for name in ("schema", "recipes", "compiler", "runtime", "transformers")
    },
    "serving": {"kvc.schema", "kvc.runtime", "kvc.serving"},
    "in_ray": {"kvc.schema", "kvc.runtime", "kvc.serving", "kvc.ray"},
    "tools": set(FOLDERS.values()) - {"kvc.transformers"},
}


def test_every_folder_has_rules():
    assert ALLOWED.keys() == FOLDERS.keys()


def test_each_part_imports_only_the_parts_below_it():
    def rule(path, module):
        allowed = ALLOWED[path.parts[0]]
        return within(module, "kvc") and not any(within(module, a) for a in allowed)

    assert breaks(rule) == []


# Folders and modules of a part, from the ground up: each imports those before it. What
# stands together in braces imports neither of the others.
LAYERS = {
    "schema": "{_generated closing dtypes errors frozen garbage interrupts "
    "pictures stacks text two_threads version} {digests provenance records "
    "rings setting_checks torch_package types} {calibration generation_config graph "
    "ops roles torch_ops trees} bounds model {control uses} {accesses left adapters} "
    "verify {buckets checkpoints codec row_products} {backends identity} container",
    "compiler": "request weights checkpoints decompose functional trace ir ingest "
    "place analysis passes emit backends lower adapters pipeline models hugging_face "
    "compiling",
    "compiler/hugging_face": "reading encoder caches {attention recurrent} pictures "
    "{text folder} gguf_model opened replacing export_encoders export",
    "in_transformers": "{config interface token_calls pixels} rows cache description "
    "forward_program exporter opening generator models runner",
    "serving": "scheduling models openai {http batch}",
    "runtime_py": "threads memory {native kernels} data adapters states execution "
    "{delegates calls} sessions tokenizers embedding generation {scoring speech} "
    "{calibration bound_lists}",
}


def ranks(order):
    """The rank of each name: those in braces have one."""
    found, rank, together = {}, 0, False
    for word in order.split():
        together = together or word.startswith("{")
        found[word.strip("{}")] = rank
        together = together and not word.endswith("}")
        rank += not together
    return found


@pytest.mark.parametrize("part", LAYERS)
def test_imports_of_a_folder_run_down_its_layers(part):
    rank = ranks(LAYERS[part])
    top = Path(part).parts[0]
    package = FOLDERS[top] + part[len(top) :].replace("/", ".")

    def place(name):
        """The layer that a module of this part lies in, by its name in the part."""
        return name.split(".")[0]

    here = [path for path in SOURCES if path.is_relative_to(part)]
    names = {
        place(path.relative_to(part).with_suffix("").as_posix().replace("/", "."))
        for path in here
    }
    assert names - {"__init__", *rank} == set(), "a folder without a layer"

    def up(path, module):
        if not path.is_relative_to(part) or not within(module, package):
            return False
        mine = place(
            path.relative_to(part).with_suffix("").as_posix().replace("/", ".")
        )
        other = place(module[len(package) + 1 :])
        if mine == "__init__" or other not in rank or mine == other:
            return False
        return rank[other] >= rank[mine]

    assert breaks(up) == []


def test_no_module_imports_itself_through_others():
    """Imports within functions and for types alone are imports too."""
    modules = {module_of(path): path for path in SOURCES}
    edges = {
        name: {other for other in imports_of(path) if other in modules} - {name}
        for name, path in modules.items()
    }
    # A package and a name in it are both noted: the package counts if the name is none.
    for name, path in modules.items():
        edges[name] -= {
            node.module
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom)
            and all(f"{node.module}.{a.name}" in modules for a in node.names)
        }
    while True:
        ends = {name for name, others in edges.items() if not others & edges.keys()}
        if not ends:
            break
        edges = {name: others for name, others in edges.items() if name not in ends}
    assert not edges, f"a circle is among these: {sorted(edges)}"


def module_of(path):
    """The name that a file is imported by."""
    name = FOLDERS[path.parts[0]] + "." + ".".join(path.with_suffix("").parts[1:])
    return name.removesuffix(".__init__")


def test_folders_are_never_imported_by_their_own_names():
    bare = FOLDERS.keys() - {"package"}
    assert breaks(lambda path, module: module.split(".")[0] in bare) == []


def test_frozen_classes_of_schema_and_runtime_are_quick_to_make():
    """`@frozen`, since each start makes all of them."""
    here = [path for path in SOURCES if path.parts[0] in {"schema", "runtime_py"}]
    slow = [
        path
        for path in here
        if "@dataclass(frozen=True, slots=True)" in (ROOT / path).read_text()
    ]
    assert slow == [Path("schema/frozen.py")]  # which names it


def test_only_torch_ops_of_schema_and_recipes_know_torch():
    def rule(path, module):
        exempt = path.parts[:2] == ("schema", "torch_ops")
        return (
            path.parts[0] in {"schema", "recipes"}
            and not exempt
            and (within(module, "torch") or within(module, "kvc.schema.torch_ops"))
        )

    assert breaks(rule) == []


def test_the_tools_leave_torch_to_the_compiler_and_the_runtime():
    rule = lambda path, module: path.parts[0] == "tools" and within(module, "torch")  # noqa: E731
    assert breaks(rule) == []


def test_only_the_codec_and_its_checks_know_the_generated_layout():
    homes = [Path("schema/codec"), Path("schema/verify/structure.py")]

    def rule(path, module):
        at_home = any(path.is_relative_to(home) for home in homes)
        return within(module, "kvc.schema._generated") and not at_home

    assert breaks(rule) == []


def test_only_what_traces_and_reads_traces_knows_export_and_fx():
    homes = [
        Path("compiler") / name
        for name in ("decompose", "functional", "trace", "ingest")
    ]

    def rule(path, module):
        at_home = any(path.is_relative_to(home) for home in homes)
        graphs = any(within(module, m) for m in ("torch.export", "torch.fx"))
        return graphs and not at_home

    assert breaks(rule) == []


def test_only_the_kinds_of_states_ask_what_kind_a_state_is():
    home = Path("runtime_py/states")

    def rule(path, module):
        outside = path.parts[0] == "runtime_py" and not path.is_relative_to(home)
        return outside and module == "kvc.schema.model.StateKind"

    assert breaks(rule) == []


@cache
def names_and_texts(path):
    """Identifiers, attributes, imports and texts of a file, docstrings left out."""
    return frozenset(_names_and_texts(path))


def _names_and_texts(path):
    tree = tree_of(path)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.alias)):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_only_a_backends_own_files_and_tables_know_its_name(backend):
    ahead = [path for path in SOURCES if path.parent == Path("compiler/backends")]
    homes = {
        *(path for path in ahead if path.stem.partition("_")[0] == backend),
        *(path for path in SOURCES if path.parent.name == backend),
        # MLX is a format of checkpoints, too.
        *(path for path in SOURCES if path.parent.name == "checkpoints"),
        *(path for path in SOURCES if path.parent == Path("schema/backends")),
        Path("compiler/backends/__init__.py"),
        Path("runtime_py/delegates/table.py"),
        Path("recipes/recipe.py"),
        Path("recipes/loader.py"),
    }
    found = {
        path
        for path in SOURCES
        for text in names_and_texts(path)
        if any(word in text.lower() for word in BACKENDS[backend])
    }
    assert found - homes == set()
    assert found, "the search finds nothing at all"


def test_every_package_folder_is_shipped():
    on_disk = set()
    for folder, name in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.parent.relative_to(ROOT / folder).parts
            if parts[:1] != ("dev",):
                on_disk.add(".".join((name, *parts)))
    assert on_disk == set(SETTINGS["packages"])


def test_every_package_folder_is_a_package():
    folders = {(ROOT / path).parent for path in SOURCES}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []


def test_the_package_itself_has_a_version_and_imports_nothing():
    check = "assert not sys.modules.keys() & {'torch', 'numpy', 'kvc.schema'}"
    code = f"import sys, kvc\n{check}\nprint(kvc.__version__)\n{check}\nkvc.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{version('kvc')}\n"
    assert "AttributeError: module 'kvc' has no attribute 'nothing'" in done.stderr


LIGHT = [
    "from kvc.runtime import *",
    "import kvc.schema.container",
    "import kvc.recipes",
    "import kvc.tools.cli",
    "from kvc.tools.cli import main; main(['recipes'], standalone_mode=False)",
]


@pytest.mark.parametrize("code", LIGHT)
def test_torch_stays_out(code):
    check = "import sys; sys.exit('torch' in sys.modules and 'torch was imported')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
