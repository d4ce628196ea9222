import torch
from golden import FOLDER

from kvc.compiler.trace.sources import source_of


def test_the_innermost_line_of_the_users_code_is_named():
    trace = (
        f'  File "{__file__}", line 3, in step\n    y\n'
        f'  File "{__file__}", line 7, in helper\n    x\n'
        f'  File "{torch.nn.functional.__file__}", line 90, in linear\n'
    )
    assert source_of({"stack_trace": trace}) == f"{__name__}:7"


def test_torchs_own_line_stands_where_there_is_no_other():
    trace = f'  File "{torch.nn.functional.__file__}", line 90, in linear\n'
    assert source_of({"stack_trace": trace}) == "torch.nn.functional:90"


def test_a_file_that_is_no_module_gives_its_bare_name():
    trace = f'  File "{FOLDER}/script.py", line 4, in step\n'
    assert source_of({"stack_trace": trace}) == "script:4"


def test_the_module_path_follows_the_line():
    trace = f'  File "{FOLDER}/script.py", line 4, in step\n'
    stack = {"a": ("", "Model"), "b": ("layers.0.attn", "Attention")}
    meta = {"stack_trace": trace, "nn_module_stack": stack}
    assert source_of(meta) == "script:4 (layers.0.attn)"


def test_nothing_known_is_the_empty_text():
    assert source_of({}) == ""
