import json


def test_a_whole_bundle_passes(kvc, sample):
    result = kvc("verify", sample)
    assert result.exit_code == 0
    assert ": whole (2 methods, 2 states, 3 blobs, " in result.stdout
    facts = json.loads(kvc("verify", sample, "--json").stdout)
    assert facts["ok"]
    assert facts["nbytes"] == sample.stat().st_size


def test_a_flipped_bit_in_a_weight_names_it(kvc, sample):
    content = bytearray(sample.read_bytes())
    content[130] ^= 1
    sample.write_bytes(content)
    result = kvc("verify", sample)
    assert result.exit_code == 1
    assert "weight is damaged" in result.stderr
