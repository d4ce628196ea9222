"""The texts around the tables that `hf_table.py` writes.

`hf_table.py` replaces the names in braces.
"""

from typing import Final

HEAD: Final = """\
# Architectures of transformers

Written by `python tools/dev/hf_table.py` with transformers {version}; do not edit.

Each line is a model of two layers (Gemma 3n: four) with random weights (see
`tests/support/hf_models.py`), large enough that a wrong row of a cache shows. Its
bundle is compared with the model itself, which runs on the whole text with eager
attention and no cache. Figures are differences of logits divided by the standard
deviation of the logits.

- *prefill*: the largest difference after prefills of {lengths} tokens, and of 12 in
  chunks of {chunks}.
- *decode*: the largest difference in {steps} steps after that, past every sliding
  window (of {window} tokens).
- *best*: how many of these steps have the same best token.
- *control*: the same comparison with one row of one layer's cache set to zero: the
  smallest of the layers' differences. It must be far larger than the other two.
- *noticed*: whether *control* is above {noticed:g}, which the tests require.
- *states*: what its layers keep: all positions (linear), a ring of the last ones,
  latents of all positions, the state of a recurrence, the last inputs of a convolution.
- *a token*: bytes that these take for each token of the text, in float32.
- *fixed*: bytes however long the text is, in float32.
- *int8*: how many of {positions} positions have the same best token with the recipe
  `cpu_q8`. [QUALITY.md](QUALITY.md) has the other recipes.

A dash is what has not been measured; the command with `--new` measures it.
"""
WITH_ENCODER: Final = """\
In the next table a decoder attends to what an encoder made. Its logits are compared
after encodings of {heard} tokens, or three of features or pictures, chunks of {chunks},
and {steps} steps (`tests/support/seq2seq_models.py`). *own* is the control with a wrong
row of the decoder's own caches, *cross* that with one of the cross caches; both must be
{noticed:g} times the differences.

"""
WITHOUT_CACHE: Final = """\
In the next two tables a model has no cache. Its embeddings (the mean of a text's
states, or the features or first state of a picture) are compared with those of the
model in eager attention, in standard deviations of what the model makes
(`tests/support/encoder_models.py`).

- *far*: the largest difference, of {calls} calls with rows of {lengths} tokens, or of
  three pictures.
- *padded*: the control: the smallest difference of such a call from the model that sees
  padding, too; a causal model never does.
- *changed*: the control: the smallest difference of a call from the model with another
  first token in each row, or with the pictures in another order.
- *left*: how many operators of all methods `cpu_fp32`, `cpu_q8` and `xnnpack_q8` leave
  to PyTorch.

Controls must be above {noticed:g}.

"""
SEEING: Final = """\
In the next table a model reads texts with pictures. A text with two pictures is fed as
embeddings with the recipe `cpu_fp32`, and compared with the model itself, which is
given the whole text and both pictures at once (`tests/support/seeing_models.py`).

- *prefill*: the largest difference after chunks of {chunks} positions, whose ends are
  within pictures; those of Gemma 3 begin and end with pictures, too.
- *decode*: the largest difference in {steps} steps after them.
- *control*: the same with one row of a picture's embeddings replaced. It must be above
  {noticed:g}.
- *left*: how many operators of all methods are left to PyTorch.

"""
SIZED: Final = """\
In the next table pictures have sizes of their own, and positions axes. A text with
three pictures is fed in chunks of {chunk} at the most, {steps} steps follow, and the
first of them once more after a rewind. The control is the least of three: a zeroed row
of keys, of values, and of the numbers that follow tokens.

"""
REMARKS: Final = """\
## Remarks

- Mixtures of experts run as `kvc::expert_linear`, which reads only the matrices of the
  chosen experts. Recipes with int8 or int4 linear layers store them as int8, with
  scales as the matrices of other layers; `bf16` as bfloat16. They run in the
  backend `cpu` or on PyTorch, not in XNNPACK.
- With `cpu_fp32`, `cpu_bf16` and `cpu_q8` each architecture runs whole in the backend
  `cpu`, without PyTorch: `pytest -m exhaustive
  tests/end_to_end/hugging_face/test_native.py` tests this. Two leave a few operators
  to PyTorch: DBRX a norm in each layer, Gemma 3n the cutoff of its sparse layers.
- A layer with a sliding window keeps its cache in a ring, if that has fewer slots than
  the cache has positions. It has the sum of the window, the longest prefill less one,
  and `CacheConfig(slack=)`.
- In a batch with rows of different lengths, each row gives what the model gives for it
  alone, in rings too: `pytest -m exhaustive
  tests/end_to_end/hugging_face/test_batches.py` tests this for each architecture.
- Recurrent layers and short convolutions have states of one size, however long the
  text: the state of a recurrence is written in place, the last inputs of a convolution
  are copied. A prompt is computed in chunks of 64 tokens (Mamba, Zamba, RecurrentGemma
  and Kimi Linear: token by token). Such a state is rewound by the snapshots that a
  session was asked for, `session(snapshots=n)`.
- LongCat has two caches in each layer. A token that goes to an expert that returns what
  it is given costs as much as one that goes to another: the product counts 0 times.
- The gates of RecurrentGemma's recurrence and the projections of a Zamba mixer are
  products for each head; recipes leave these matrices float32.
- Latent attention caches a latent and one rotary key of each token, as the paper of
  DeepSeek-V2 says, and attends in the space of latents: see "Latents" in
  [README.md](README.md). The cache of these models has 24 numbers for each token and
  layer, where all heads' keys and values have 144.
- BLOOM, Falcon, MPT, GPT-J, CodeGen, GPT-Neo, GPT-NeoX Japanese, XGLM, DiffLlama, Doge
  and JetMoE have attention code of their own; while they are compiled, kvc's function
  replaces it. So are the experts of DBRX, JetMoE, Llama 4 and LongCat, of which only
  chosen ones are then computed. Those of DBRX lie in one matrix; recipes store them as
  other experts, with scales for the output channels of each.
- JetMoE's experts of attention make queries for the same keys, which are stored once.
- A value of Doge says how much more its key counts. That number is computed once and
  lies in the cache as the last one of the key; in an int8 cache it shares the key's
  scale. Its values also choose which keys count at all, in texts longer than
  `keep_window_size` (2048): such a length is refused.
- Llama 4's layers that see chunks of the text keep all positions, and attend with a
  mask [batch, 1, seq, capacity] that hides those before the chunk. A batch of rows of
  different lengths is refused: other layers scale queries by one position for all rows.
- The last layers of Gemma 3n and Gemma 4 attend over caches of earlier ones, which are
  stored once.
- RoBERTa and its relatives also run as decoders, with `is_decoder=True`. Their first
  position is their padding token's number + 1, so a text has that many fewer positions;
  a padding token in a text counts as any other. Each architecture is compared with
  itself with and without what kvc passes to it: see "With and without" in
  [README.md](README.md).
- Falcon with ALiBi is compared with `sdpa`, since transformers' eager attention adds
  the slopes twice. transformers rounds slope times position to bfloat16, kvc does not:
  the two differ more and more from position 256 on, or if the number of heads is not 1,
  2, 4 or 8.
- Falcon's keys are stored once for each key head, not once for each query head.
- Rotary scaling `default`, `linear`, `llama3` and `yarn` run at any length.
  `dynamic` and `longrope` have other frequencies for longer texts, and keys in a cache
  keep those that they had: a bundle of `longrope` has those of short texts, or with a
  longer `CacheConfig(max_length=)` those of long texts throughout; `dynamic` runs up to
  the length at which they change.
"""
QUALITY: Final = """\
# What recipes cost

Its first section is written by `python tests/benchmarks/real_models.py --page`, the
others by `python tools/dev/hf_table.py` with transformers {version}; do not edit.

## Trained models

Each model is compared with itself by `cpu_fp32`. Of a language model it is the mean
Kullback-Leibler divergence of the next token's distribution, in nats with its standard
error, how often the likeliest token is the same, and the perplexity; on the first
tokens of two texts, the topics of pydoc and Debian's `fortunes`, in windows of 1,024,
of which the first half is context, where nothing else is said. *weights* are all that
methods read, *file* is the bundle, with its tokenizer and methods that give all logits.
A line *NAME+samples* is with `--calibrate`: the last 20,000 letters of each of the two
texts, of Whisper five other sentences; *+105M* is with `--fit 105M`.

Lines of llama.cpp (0.3.36 of llama-cpp-python) are the same float32 weights, by its own
quantizer as it is set by default, on the same tokens; its cache is float32, as kvc's.
By float32 its logits are those of `cpu_fp32` to 2e-4 (SmolLM2, the demo model) or 0.03
(Gemma 3, since it looks GELU up in a table of float16; a divergence of 4e-7). Q4_K_M
stores rows that 256 does not divide in other types: of the bytes of SmolLM2 52% are
Q5_0, 31% Q8_0, 10% Q6_K and 8% Q4_K, of the demo model 64% are Q4_K
(`real_models_llama.py quantize`, read by gguf). The command, where `PYTHON` is the
interpreter of an environment with `pip install llama-cpp-python==0.3.36 gguf==0.19.0`;
with names of models and `--recipes` it measures these lines alone, and others stay:

    python tests/benchmarks/real_models.py --llama PYTHON --page
"""
TRAINED: Final = "<!-- by tests/benchmarks/real_models.py -->\n"
RANDOM: Final = """\
## Random weights of each architecture

The models of the next tables are those of [MODELS.md](MODELS.md): two layers of random
weights, whose heads look at few positions. Their figures compare one recipe with
another, and one architecture with another; they do not tell what a trained model loses.

The first of them compares with the model in float32: the mean cosine of logits, and at
how many of {positions} positions of a text, in prefills and steps, the best token is
the same. Caches are float32, but in the last two columns; "none" is a model that has no
cache of keys and values. `hf_table.py` with `--new` measures architectures that have no
line yet.

Columns of `xnnpack_q8`, `xnnpack_q4`, `cpu_q8` and `cpu_q4` in both tables are older
than activations in blocks, rotated streams and int4 by least squares, and are to be
measured anew.
"""
ROUNDED: Final = """\
In the second table the model runs in its own attention and in float32, but rounds what
the recipe says: weights, the rows that linear layers multiply, keys and values as they
are cached (`tests/support/hf_rounded.py`). A recipe that rotates
streams is compiled for it without that. The first number is the largest difference of
logits from it, over the largest logit. It must be below {exact:g}, with float16
caches below {float16:g}. The texts are chosen such that no value lies near the middle
between two steps, where the order of a sum would decide; for float16 caches such texts
are too rare, and of qwen3_next by cpu_bf16 none was found: there short texts are
compared bit for bit (`equal_texts` in `tests/support/hf_quality.py`), most of which are
equal.

The second number is the control, the same difference when one row of one layer's cache
is one step off (a recurrent layer's states by 1/127 of their largest number): the
smallest of the layers'. Such a row hides in the first table.
"""
