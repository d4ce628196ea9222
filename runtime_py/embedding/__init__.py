"""Embeddings and labels of texts and pictures, from models without a cache.

texts --Tokenizer.encode--> rows of tokens, padded --embed, classify--> vectors, labels
pictures --read_picture, Preparation.pixels--> pixels --embed_image--> vectors
"""

from kvc.runtime.embedding.labels import Label, classify, classify_images
from kvc.runtime.embedding.pictures import Preparation, preparation_of, read_picture
from kvc.runtime.embedding.vectors import embed, embed_images, similarity

__all__ = [
    "Label",
    "Preparation",
    "classify",
    "classify_images",
    "embed",
    "embed_images",
    "preparation_of",
    "read_picture",
    "similarity",
]
