"""Embeddings and labels of texts and pictures, from models without a cache.

texts --Tokenizer.encode--> padded rows of tokens
rows of tokens --embed--> vectors, or --classify--> labels
pictures --read_picture, Preparation.pixels--> pixels
pixels --embed_images--> vectors, or --classify_images--> labels
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
