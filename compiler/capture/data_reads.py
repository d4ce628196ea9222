"""`x.data` in a traced method, which torch's tracing loses.

What the attribute gives is a tensor that no trace knows. Here it is `x.detach()`, which
shares memory in the same way and is traced, so that writes through it are those of `x`.
Giving it another tensor, `x.data = y`, is refused elsewhere.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class TraceableData(TorchFunctionMode):
    """Reads `x.data` as `x.detach()`."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        # Dynamo, which traces bodies of control flow, knows the attribute itself.
        if not torch.compiler.is_dynamo_compiling() and func == _GET:
            (tensor,) = args
            assert isinstance(tensor, Tensor)
            return tensor.detach()
        return func(*args, **(kwargs or {}))


_GET = Tensor.data.__get__  # type: ignore[attr-defined]
