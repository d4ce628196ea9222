"""Trace the bodies of branches and loops under the same modes as their caller.

torch first reads the bytecode of a body, and would read the code of active modes too.
In: the modes of the trace. Out: a context that removes the modes while torch reads a
body, and restores them when torch calls the branch or loop operator with the captured
tensors. Function calls in the body are replaced as in the method (`rephrase_bodies`).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from torch import fx
from torch._dynamo import config as dynamo_settings
from torch._higher_order_ops import utils
from torch.fx.experimental.proxy_tensor import (
    TorchFunctionMetadataMode,
    _make_temp_remove_mode_context_manager,
)
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _pop_mode_temporarily

from kvc.compiler.decompose.replacements import rephrase_bodies
from kvc.compiler.trace.aliases import AliasMode
from kvc.compiler.trace.guard import Guard

Compiler = Callable[..., Callable[..., object]]

_without_aliases = _make_temp_remove_mode_context_manager(AliasMode)


@contextmanager
def outside_of_bodies(aliases: AliasMode, guard: Guard) -> Iterator[None]:
    """Enter the modes, and suspend them whenever torch reads a body."""
    set_up = utils.setup_compilation_env

    @contextmanager
    def set_up_without() -> Iterator[Compiler]:
        # If a size is dynamic, torch cannot compute the strides of results: Max(1, n -
        # 1).
        known = dynamo_settings.patch(assume_static_by_default=True)
        # Clear the record of function calls with which torch names nodes. torch would
        # read that record with each body, each function as a variable; this is slow,
        # and for some functions torch finds no value.
        for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            if isinstance(mode, TorchFunctionMetadataMode):
                mode.tracer.torch_fn_metadata = None
                mode.tracer.torch_fn_counts = {}
        with _without_aliases(), _pop_mode_temporarily(), set_up() as compiler, known:
            yield _within(compiler, aliases, guard)

    patched = patch.object(utils, "setup_compilation_env", set_up_without)
    with patched, aliases, guard:
        yield


def _within(compiler: Compiler, aliases: AliasMode, guard: Guard) -> Compiler:
    """Return a compiler like `compiler`, whose compiled code runs under the modes."""

    def compiled(
        module: fx.GraphModule, *args: object, **kwargs: object
    ) -> Callable[..., object]:
        rephrase_bodies(module)
        run = compiler(module, *args, **kwargs)

        def within(*inputs: object) -> object:
            with ExitStack() as stack:
                stack.enter_context(aliases)
                stack.enter_context(guard)
                return run(*inputs)

        return within

    return compiled
