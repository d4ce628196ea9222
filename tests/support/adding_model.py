"""A language model whose every token depends exactly on all tokens before it.

The sum of all tokens determines the most likely next token, so that a conversation
continues differently if its cache has any wrong content. Logits of different tokens
differ widely, so that results do not depend on the machine.
"""

import json
from pathlib import Path

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program

VOCAB, CAPACITY, CHUNK = 256, 160, 16
FIRST, KINDS = 33, 90  # it makes the tokens "!" to "z", and "!" ends what it says
END = "!"

TEMPLATE = """\
{%- for message in messages -%}
[{{ message.role[0] }}]{{ message.content }}
{%- if message.role == 'assistant' %}{{ eos_token }}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}[a]{% endif -%}
"""


class Adding(Buffers, rows=torch.zeros(1, 1, CAPACITY, 1), position=ZERO):
    """Model that stores all tokens in a cache [1, 1, CAPACITY, 1], with a position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(9 * torch.eye(VOCAB))

    def forward(self, tokens: Tensor) -> Tensor:
        new = tokens.reshape(1, 1, -1, 1).float()
        rows = torch.ops.kvc.cache_update(self.rows, new, self.position)
        self.rows.copy_(rows)
        self.position.add_(tokens.shape[1])
        return self.best(rows.sum([1, 2, 3]).long())

    def best(self, total: Tensor) -> Tensor:
        """Return logits [1, VOCAB], largest for the token of the sum `total`."""
        token = torch.remainder(total, KINDS) + FIRST
        return nn.functional.embedding(token, self.table)


class Totaling(Adding, total=ZERO):
    """Model that stores only the sum of tokens, without a position or rewinding."""

    def __init__(self) -> None:
        super().__init__()
        del self.rows, self.position

    def forward(self, tokens: Tensor) -> Tensor:
        self.total.add_(tokens.sum(1))
        return self.best(self.total)


def write_chat(path, model=Adding, template=TEMPLATE, **config) -> Path:
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    seq = {"tokens": {1: Dim("seq", 1, CHUNK)}}
    files = {"tokenizer_config.json": json.dumps({"eos_token": END}).encode()}
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    made = model()
    made.prefill = made.decode = made.forward
    methods = [
        Method("prefill", args=(tokens,), dynamic=seq, role="prefill"),
        Method("decode", args=(tokens[:, :1],), role="decode"),
    ]
    metadata = {"tokenizer": "bytes", "generation_config": config}
    told = {"metadata": metadata, "files": files}
    compile_program(made, methods, "fp32", **told).save(path)
    return path
