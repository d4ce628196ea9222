"""Small tokenizers of each common kind, most trained on a few lines of text."""

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "Once upon a time there was a small compiler. It didn't copy its cache, did it?",
    "Füße, Straße, naïve café; größer als 100 € und völlig übertrieben!",
    "def decode(tokens):\n    return ' '.join(tokens)  # spaces   and\ttabs\n",
    "日本語の文章、 中文句子。 한국어 문장",
    "emoji 👍🏽 👩‍👩‍👧 and more 🎉🎉",
]


def byte_level() -> Tokenizer:
    """Return a tokenizer as of GPT-2 and Llama 3: BPE over bytes.

    A special token begins each text.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=special
    )
    made.train_from_iterator(TEXTS, trainer)
    for added in ("<think>", "<思>"):  # the second has letters that stand for no byte
        made.add_tokens([AddedToken(added, special=False, normalized=False)])
    made.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return made


def byte_fallback() -> Tokenizer:
    """Return a tokenizer as of Llama 2 and Gemma.

    Spaces are written as ▁, and unknown characters become byte tokens.
    """
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    seen = sorted({letter for text in TEXTS[:3] for letter in text if letter.isascii()})
    pieces += ["▁", *(letter for letter in seen if letter != " ")]
    pieces += ["▁a", "▁t", "is", "on", "▁▁", "ti", "me", "▁time", "▁€", "ü"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "t"), ("i", "s"), ("o", "n"), ("▁", "▁"), ("t", "i")]
    made = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(marks)
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    joined = [spaces, decoders.ByteFallback(), decoders.Fuse(), strip]
    made.decoder = decoders.Sequence(joined)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def unigram() -> Tokenizer:
    """Return a tokenizer as of T5: Unigram pieces beginning with ▁, byte tokens."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token="<unk>"
    )
    made.train_from_iterator(TEXTS, trainer)
    # The trainer knows no byte tokens: they are added to what it has made.
    settings = json.loads(made.to_str())
    model = settings["model"]
    model["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    model["byte_fallback"] = True
    made = Tokenizer.from_str(json.dumps(settings))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return made


def word_piece() -> Tokenizer:
    """Return a tokenizer as of BERT: ## marks pieces that continue a word.

    Decoding removes spaces before punctuation.
    """
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=True)
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=250, special_tokens=special)
    made.train_from_iterator(TEXTS, trainer)
    return made


def word_ends() -> Tokenizer:
    """Return a tokenizer as of GPT-1: BPE whose pieces mark the end of a word."""
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>"], end_of_word_suffix="</w>"
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def no_decoder() -> Tokenizer:
    """Return a tokenizer of whole words without a decoder: spaces join the words."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=["[UNK]"]))
    return made


def other_decoders() -> Tokenizer:
    """Return a tokenizer whose decoder is a sequence that no known model has.

    Some of its parts work on the joined text.
    """
    made = word_piece()
    first = decoders.Strip("e", 1, 0), decoders.WordPiece(cleanup=False)
    then = decoders.Fuse(), decoders.Strip("a", 2, 0), decoders.Replace("i", "o")
    made.decoder = decoders.Sequence([*first, *then])
    return made


def ctc() -> Tokenizer:
    """Return a tokenizer with a decoder for speech: CTC, which drops repetitions."""
    made = word_piece()
    made.decoder = decoders.CTC(pad_token="[UNK]")
    return made


_WORDS = (word_piece, word_ends, no_decoder, other_decoders, ctc)
KINDS = {make.__name__: make for make in (byte_level, byte_fallback, unigram, *_WORDS)}
