"""Rows of a model with an encoder: where their padding stands."""

import torch
from seq2seq_models import build

from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.text.separate_positions import rows_apart


def test_padding_stands_at_its_rows_last_place_where_positions_begin_at_2():
    model = build("vit and roberta")
    table = model.decoder.roberta.embeddings
    lengths = torch.tensor([3, 1])
    call = ModelCall(torch.zeros(2, dtype=torch.int64), lengths, lengths, first=2)
    tokens = torch.tensor([[5, 6, 7], [8, 0, 0]])
    given, wanted = torch.tensor([[2, 3, 4]] * 2), torch.tensor([[2, 3, 4], [2, 2, 2]])
    with rows_apart(model), attending(call), torch.no_grad():
        found = table(input_ids=tokens, position_ids=given)
    with torch.no_grad():
        assert torch.equal(found, table(input_ids=tokens, position_ids=wanted))
