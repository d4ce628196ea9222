"""MODEL factories for tests of the command line: a tiny decoder, and broken ones."""

import json
import sys

import torch

from kvc.compiler import ModelSpec
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods

CONFIG = DecoderConfig(
    vocab=256, dim=32, layers=1, heads=2, kv_heads=1, ffn=48, capacity=24
)


def factory() -> ModelSpec:
    """A byte-level decoder with random weights and a cache of 24."""
    torch.manual_seed(0)
    methods = decoder_methods(CONFIG, max_chunk=16)
    return ModelSpec(Decoder(CONFIG).eval(), methods, metadata={"tokenizer": "bytes"})


def untold() -> ModelSpec:
    """The same without a tokenizer."""
    torch.manual_seed(0)
    return ModelSpec(Decoder(CONFIG).eval(), decoder_methods(CONFIG, max_chunk=16))


def failing() -> ModelSpec:
    """Fails as a user's code does."""
    raise RuntimeError("no such checkpoint")


def failing_within() -> ModelSpec:
    """Fails in a library that it calls."""
    json.loads("no JSON")
    raise AssertionError


class Unsaid(BaseException):
    """Cannot say what it is, and is no Exception."""

    def __str__(self) -> str:
        raise RuntimeError


def unsaid() -> ModelSpec:
    """Fails with an error that has no words."""
    raise Unsaid


def leaving() -> ModelSpec:
    """Ends the process."""
    sys.exit(3)


def no_spec() -> int:
    """Returns something else."""
    return 3


NUMBER = 3
