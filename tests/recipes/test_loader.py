import re
import subprocess
import sys
from dataclasses import replace

import pytest

from kvc.recipes import (
    BadRecipe,
    Recipe,
    UnknownRecipe,
    known_recipes,
    load_recipe,
    load_recipes,
)
from kvc.recipes.loader import FOLDER, target_of
from kvc.recipes.recipe import SETTINGS
from kvc.schema.errors import RecipesApart, TargetMissing


def bad(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadRecipe) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


RECIPES = (
    "bf16",
    "coreai_fp16",
    "coreai_fp32",
    "coreml_fp16",
    "coreml_q8",
    "cpu_bf16",
    "cpu_fp32",
    "cpu_q4",
    "cpu_q8",
    "ethosu_a16w8",
    "ethosu_a8w8",
    "fp32",
    "mlx_q8",
    "qnn_a16w8",
    "qnn_fp16",
    "vulkan_fp32",
    "vulkan_q8",
    "xnnpack_fp32",
    "xnnpack_q4",
    "xnnpack_q8",
)


def test_the_shipped_recipes_say_what_they_are_for():
    assert known_recipes() == RECIPES
    described = {name: load_recipe(name).description for name in known_recipes()}
    assert all(described.values())
    assert "bfloat16" in described["bf16"]


def settings(name):
    recipe = load_recipe(name)
    return recipe.weights, recipe.linear, recipe.embedding, recipe.backend


def test_the_settings_of_the_shipped_recipes():
    assert settings("fp32") == ("float32", "float32", "float32", "")
    assert settings("bf16") == ("bfloat16", "float32", "float32", "")
    assert settings("cpu_bf16") == ("bfloat16", "float32", "float32", "cpu")
    assert settings("cpu_fp32") == ("float32", "float32", "float32", "cpu")
    assert settings("cpu_q8") == ("float32", "q8", "int8", "cpu")
    assert settings("cpu_q4") == ("float32", "q4", "int8", "cpu")
    assert settings("xnnpack_fp32") == ("float32", "float32", "float32", "xnnpack")
    assert settings("xnnpack_q8") == ("float32", "qd8", "int8", "xnnpack")
    assert settings("xnnpack_q4") == ("float32", "qb4", "int8", "xnnpack")
    assert settings("qnn_a16w8") == ("float32", "w8", "int8", "qnn")
    options = {name: load_recipe(name).backend_options for name in RECIPES}
    given = {name: dict(some) for name, some in options.items() if some}
    assert given == {
        "coreai_fp16": {"precision": "float16"},
        "ethosu_a16w8": {"activations": "int16", "npu": "u85"},
        "ethosu_a8w8": {"activations": "int8", "npu": "u85"},
        "qnn_a16w8": {"activations": "uint16"},
    }


def test_what_a_file_says_to_its_backend_is_kept_for_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[backend]\nname = "fast"\n[backend.options]\nlevel = 3\nmode = "a"\nx = true'
    )
    recipe = load_recipe(path)
    assert recipe.backend == "fast"
    assert recipe.backend_options == {"level": 3, "mode": "a", "x": True}


def test_parts_that_are_kept_may_be_named_whole_or_in_tables(tmp_path):
    path = tmp_path / "mine.toml"
    linear = '[linear]\nscheme = "qd8"\n'
    path.write_text(
        f'{linear}[keep]\n"mlp.experts" = "float32"\nlm_head = "float32"\n'
        '[keep.layers]\n"0.*" = "float32"'
    )
    assert load_recipe(path).keep == ("mlp.experts", "lm_head", "layers.0.*")
    assert bad(tmp_path, f'{linear}[keep]\na.b = "int8"') == (
        'keep.a.b must be "float32", not "int8"'
    )
    assert bad(tmp_path, f'{linear}[keep]\n"a..b" = "float32"') == (
        "keep: 'a..b' is no path, such as mlp.experts"
    )
    assert bad(tmp_path, "keep = 3") == "keep must be a section [keep], not 3"
    assert bad(tmp_path, '[keep]\na = "float32"') == (
        "[keep] in a recipe that stores all weights as float32"
    )


def test_weights_of_convolutions_have_a_scheme_of_their_own(tmp_path):
    schemes = {name: load_recipe(name).convolution for name in RECIPES}
    int8 = {name for name, scheme in schemes.items() if scheme == "w8"}
    assert int8 == {"cpu_q8", "cpu_q4"}
    path, int8 = tmp_path / "mine.toml", '[convolution]\nscheme = "w8"\n'
    path.write_text(f'{int8}[keep]\nm1 = "float32"')
    assert (load_recipe(path).convolution, load_recipe(path).keep) == ("w8", ("m1",))
    assert bad(tmp_path, '[convolution]\nscheme = "q8"').startswith(
        'convolution.scheme must be "float32" or "w8", '
    )
    path.write_text(f'{int8}[backend]\nname = "cpu"')
    with pytest.raises(RecipesApart, match="convolution is w8 in one and float32 in"):
        load_recipes([path, "xnnpack_fp32"])


def test_a_backend_of_any_name_is_for_the_compiler_to_find(tmp_path):
    (tmp_path / "mine.toml").write_text('[backend]\nname = "of my own"')
    assert load_recipe(tmp_path / "mine.toml").backend == "of my own"
    assert bad(tmp_path, "[backend]\nname = 3") == "backend.name must be a text, not 3"


def test_options_are_a_section_of_plain_values_for_a_named_backend(tmp_path):
    assert bad(tmp_path, "[backend.options]\nlevel = 3") == (
        "backend.options without a backend.name"
    )
    assert bad(tmp_path, '[backend]\nname = "fast"\noptions = 3') == (
        "backend.options must be a section, not 3"
    )
    assert bad(tmp_path, '[backend]\nname = "fast"\n[backend.options]\na = []') == (
        "backend.options.a must be a text, a number, true or false, not a list"
    )
    assert bad(tmp_path, "[backend]\nlevel = 3") == (
        "unknown key 'level' in [backend]; allowed there: name, rest, sizes, options"
    )


def test_what_a_backend_leaves_may_be_for_another_one(tmp_path):
    shared = ("coreai", "coreml", "ethosu", "mlx", "qnn", "vulkan", "xnnpack")
    with_rest = [name for name in RECIPES if load_recipe(name).rest]
    assert with_rest == [name for name in RECIPES if name.startswith(shared)]
    path = tmp_path / "mine.toml"
    path.write_text('[backend]\nname = "fast"\nrest = "faster"')
    assert load_recipe(path).rest == "faster"
    wrong = bad(tmp_path, '[backend]\nrest = "fast"')
    assert wrong == "backend.rest without a backend.name"


def test_a_recipe_of_ones_own_is_a_path_and_keeps_its_text(tmp_path):
    path = tmp_path / "mine.toml"
    text = 'description = "mine"\n[embedding]\nscheme = "int8"\n'
    path.write_text(text)
    expected = Recipe("mine", "mine", text, "float32", "float32", "int8", "")
    assert load_recipe(path) == expected
    assert load_recipe(str(path)) == expected


def test_an_empty_file_is_the_default_recipe(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    recipe = load_recipe(tmp_path / "empty.toml")
    assert (recipe.weights, recipe.linear, recipe.backend) == ("float32", "float32", "")


@pytest.mark.parametrize("name", ["q4", "", "../fp32", "fp32\n", "FP32"])
def test_an_unknown_name_lists_the_recipes_that_exist(name):
    with pytest.raises(UnknownRecipe) as caught:
        load_recipe(name)
    assert ", ".join(RECIPES) in str(caught.value)
    assert ".toml" in str(caught.value)


def test_the_page_has_every_setting_and_a_recipe_that_loads(tmp_path):
    page = (FOLDER / "README.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    example, kept, fixed = blocks
    (tmp_path / "my.toml").write_text(example)
    recipe = load_recipe(tmp_path / "my.toml")
    assert (recipe.linear, recipe.cache, recipe.backend) == ("q8", "int8", "cpu")
    (tmp_path / "my.toml").write_text(example + kept)
    assert load_recipe(tmp_path / "my.toml").keep[:2] == ("mlp.experts", "layers.0")
    (tmp_path / "my.toml").write_text(fixed)
    assert load_recipe(tmp_path / "my.toml").buckets["seq"] == (1, 16, 64)
    for setting in SETTINGS:
        named = ", ".join(f"`{value}`" for value in setting.values if value)
        assert f"| `[{setting.section}] {setting.key}` | {named}" in page


def test_what_is_no_recipe_is_refused():
    with pytest.raises(BadRecipe, match="None: not a recipe, its name or its path"):
        load_recipe(None)


def test_a_wrong_key_names_the_key_and_the_allowed_ones(tmp_path):
    assert bad(tmp_path, '[linear]\nschema = "qd8"') == (
        "unknown key 'schema' (did you mean 'scheme'?) in [linear]; "
        "allowed there: scheme, basis"
    )
    assert bad(tmp_path, '[linera]\nscheme = "qd8"') == (
        "unknown section [linera] (did you mean 'linear'?); "
        "allowed: description, [weights], [linear], [convolution], [embedding], "
        "[cache], [backend], [keep], [buckets]"
    )
    assert bad(tmp_path, 'linera = "qd8"').startswith("unknown key 'linera' (")


def test_a_wrong_value_names_the_key_and_the_allowed_ones(tmp_path):
    assert bad(tmp_path, '[linear]\nscheme = "int4"') == (
        'linear.scheme must be "float32" or "qd8" or "qb4" or "w8" or "q8" or "q4", '
        'not "int4"'
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("8", "8"),
        ("true", "true"),
        ("1.5", "1.5"),
        ("[]", "a list"),
        ("{}", "a section"),
        ("2026-01-01", "a date"),
    ],
)
def test_a_wrong_type_names_the_key_and_the_value(tmp_path, value, shown):
    message = bad(tmp_path, f"[weights]\ndtype = {value}")
    assert message == f'weights.dtype must be "float32" or "bfloat16", not {shown}'
    assert bad(tmp_path, f"description = {value}").endswith(f"a text, not {shown}")


def test_a_value_where_a_section_belongs(tmp_path):
    message = bad(tmp_path, 'linear = "qd8"')
    assert message == 'linear must be a section [linear], not "qd8"'


def test_broken_toml_names_the_line(tmp_path):
    message = bad(tmp_path, '[linear]\nscheme = "qd8')
    assert message.startswith("not valid TOML: ")
    assert "line 2" in message


def test_a_file_that_is_no_text_names_the_line(tmp_path):
    message = bad(tmp_path, b'[linear]\nscheme = "\xff"')
    assert message == "not UTF-8 text: byte 0xff in line 2"


def test_deep_nesting_and_huge_files_are_refused(tmp_path):
    assert "not valid TOML" in bad(tmp_path, "a = " + "[" * 20_000)
    assert bad(tmp_path, "#" * 100_000) == "more than 65536 bytes, not a recipe"


def test_missing_files_and_folders_say_why(tmp_path):
    with pytest.raises(BadRecipe, match="cannot be read: No such file"):
        load_recipe(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BadRecipe, match="not a file"):
        load_recipe(tmp_path / "folder.toml")
    with pytest.raises(BadRecipe, match="cannot be read"):
        load_recipe("a\0b.toml")


def test_no_shipped_recipe_quantizes_caches():
    assert {load_recipe(name).cache for name in RECIPES} == {"float32"}


def test_a_file_says_how_caches_are_stored(tmp_path):
    (tmp_path / "mine.toml").write_text('[cache]\ndtype = "int8"')
    assert load_recipe(tmp_path / "mine.toml").cache == "int8"
    assert bad(tmp_path, '[cache]\ndtype = "int4"') == (
        'cache.dtype must be "float32" or "float16" or "int8", not "int4"'
    )


@pytest.mark.parametrize("name", RECIPES)
def test_the_caller_may_say_it_of_any_recipe_and_the_text_says_so_too(name, tmp_path):
    plain, recipe = load_recipe(name), load_recipe(name, cache="int8")
    assert recipe.cache == "int8"
    (tmp_path / f"{name}.toml").write_text(recipe.text)
    assert load_recipe(tmp_path / f"{name}.toml") == recipe
    assert replace(recipe, cache="float32", text=plain.text) == plain
    assert load_recipe(name, cache="float32") == plain


def test_the_caller_has_the_last_word_on_caches(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[cache]\ndtype = "int8"\n')
    assert load_recipe(path, cache="int8") == load_recipe(path)
    recipe = load_recipe(path, cache="float32")
    assert recipe.cache == "float32"
    assert recipe.text.endswith('# overrides [cache] above: dtype = "float32"\n')


def test_a_wrong_dtype_of_caches_is_refused():
    with pytest.raises(BadRecipe, match=r'cache\.dtype must be "float32" or "float16"'):
        load_recipe("fp32", cache="int4")


def test_recipes_do_not_need_torch():
    code = "import sys, kvc.recipes; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("recipe", "state"),
    [
        ("mps_fp32", "not planned: ExecuTorch"),
        ("cuda_q8", "planned"),
        ("openvino_q8", "not planned"),
    ],
)
def test_a_target_without_a_backend_is_refused_with_what_to_use(
    recipe: str, state: str
):
    with pytest.raises(TargetMissing, match=f"{recipe}.*{state}.*use .*cpu_q8") as told:
        load_recipe(recipe)
    assert told.value.recipe == recipe


def test_no_shipped_recipe_is_for_a_target_without_a_backend():
    assert not [name for name in known_recipes() if target_of(name) is not None]


def together(*names):
    return [recipe.name for recipe in load_recipes(*names)]


def test_recipes_that_differ_in_their_backends_share_a_bundle():
    assert together("cpu_q8") == ["cpu_q8"]
    assert together("xnnpack_q8,vulkan_q8") == ["xnnpack_q8", "vulkan_q8"]
    assert together("vulkan_fp32, xnnpack_fp32, cpu_fp32") == [
        *("vulkan_fp32", "xnnpack_fp32", "cpu_fp32")
    ]
    one, two = load_recipes(["xnnpack_q8", load_recipe("vulkan_q8")], "float16")
    assert (one.cache, two.cache) == ("float16", "float16")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ("cpu_q8,vulkan_fp32", "linear is q8 in one and float32 in the other"),
        ("xnnpack_q8,cpu_q8", "linear is qd8 in one and q8 in the other"),
        ("cpu_q4,xnnpack_q4", "linear is q4 in one and qb4 in the other"),
        ("cpu_q8,cpu_q8", "each needs a backend of its own"),
        ("cpu_fp32,fp32", "each needs a backend of its own"),
        ("cpu_bf16,cpu_fp32", "weights is bfloat16 in one and float32 in the other"),
    ],
)
def test_recipes_of_other_numbers_or_of_one_backend_do_not(names, what):
    with pytest.raises(RecipesApart, match=what) as caught:
        load_recipes(names)
    assert str(caught.value).startswith(f"recipes {names.replace(',', ', ')} cannot")
    assert "compile a bundle of each" in str(caught.value)


def test_what_recipes_keep_and_cache_must_be_the_same():
    one, vulkan = load_recipe("xnnpack_q8"), load_recipe("vulkan_q8")
    with pytest.raises(RecipesApart, match=r"keep is nothing in one and lm_head in"):
        load_recipes([one, replace(vulkan, keep=("lm_head",))])
    with pytest.raises(RecipesApart, match="basis is rotated in one and model in"):
        load_recipes([one, replace(vulkan, basis="model")])
    with pytest.raises(RecipesApart, match="cache is float32 in one and int8 in"):
        load_recipes([one, replace(vulkan, cache="int8")])


def test_an_unknown_one_among_several_is_said():
    with pytest.raises(UnknownRecipe, match="no recipe 'vulcan_q8'"):
        load_recipes("cpu_q8,vulcan_q8")
    with pytest.raises(UnknownRecipe, match="no recipe ''"):
        load_recipes("cpu_q8,")
    with pytest.raises(BadRecipe, match="no recipe"):
        load_recipes([])


def test_a_file_may_have_a_comma_in_its_name(tmp_path):
    path = tmp_path / "a,b.toml"
    path.write_text('[backend]\nname = "cpu"\n')
    assert together(str(path)) == ["a,b"]


def test_buckets_are_ascending_sizes(tmp_path):
    path = tmp_path / "npu.toml"
    path.write_text("[buckets]\nseq = [1, 16]\ncapacity = [256]\n")
    assert load_recipe(path).buckets == {"capacity": (256,), "seq": (1, 16)}
    assert load_recipe("cpu_q8").buckets == {}
    for wrong in ("[]", "[2, 1]", "[1, 1]", "[1.0]", "[true]", "4", '"4"'):
        what = bad(tmp_path, f"[buckets]\nseq = {wrong}")
        assert what.startswith("buckets.seq must be a list of ascending sizes, such")
    assert bad(tmp_path, "buckets = 1") == "buckets must be a section [buckets], not 1"
