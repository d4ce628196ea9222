import hashlib

import pytest

from kvc.schema.digests import BlobHasher, blob_digest

MIB = 1 << 20


def pattern(nbytes):
    return (b"kvc" * (nbytes // 3 + 1))[:nbytes]


@pytest.mark.parametrize("nbytes", [0, 1, MIB - 1, MIB])
def test_up_to_a_mebibyte_it_is_plain_sha256(nbytes):
    assert blob_digest(pattern(nbytes)) == hashlib.sha256(pattern(nbytes)).digest()


def test_beyond_it_is_the_digest_of_the_prefixed_leaves():
    content = pattern(2 * MIB + 5)
    parts = (content[:MIB], content[MIB : 2 * MIB], content[2 * MIB :])
    leaves = b"".join(hashlib.sha256(part).digest() for part in parts)
    assert blob_digest(content) == hashlib.sha256(b"kvc-tree" + leaves).digest()


@pytest.mark.parametrize("nbytes", [0, 7, MIB, MIB + 1, 2 * MIB, 9 * MIB + 3])
@pytest.mark.parametrize("step", [100_003, MIB, 3 * MIB])
def test_pieces_give_the_digest_of_the_whole(nbytes, step):
    content, hasher = pattern(nbytes), BlobHasher()
    for start in range(0, nbytes, step):
        hasher.update(memoryview(content)[start : start + step])
    assert hasher.digest() == blob_digest(content)
