import json

RECIPES = [
    "bf16",
    "cpu_bf16",
    "cpu_fp32",
    "cpu_q4",
    "cpu_q8",
    "ethosu_a8w8",
    "fp32",
    "vulkan_fp32",
    "vulkan_q8",
    "xnnpack_fp32",
    "xnnpack_q4",
    "xnnpack_q8",
]


def test_every_recipe_is_listed_with_what_it_is_for(kvc):
    lines = kvc("recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == RECIPES
    assert "float32 throughout" in lines[2]
    assert list(json.loads(kvc("recipes", "--json").stdout)["recipes"]) == RECIPES
