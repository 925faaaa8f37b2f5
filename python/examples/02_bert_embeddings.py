"""Sentence embeddings of a BERT of transformers: texts of unequal length in one batch, the mean over each text's tokens."""

import torch
from side_by_side import side_by_side
from transformers import BertConfig, BertModel

import kiln

torch.manual_seed(0)
config = BertConfig(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
bert = BertModel(config, add_pooling_layer=False).eval()


def embed(ids, mask):
    states = bert(ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(states.dtype)
    means = (states * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(means, dim=-1)


fast = torch.compile(embed, backend="kiln")
ids = torch.randint(0, 1000, (4, 32))
lengths = torch.tensor([32, 20, 9, 3])
mask = (torch.arange(32) < lengths[:, None]).long()

with torch.no_grad():
    torch.testing.assert_close(fast(ids, mask), embed(ids, mask), rtol=1e-4, atol=1e-5)
    print("embeddings:", tuple(fast(ids, mask).shape))
    side_by_side(lambda: embed(ids, mask), lambda: fast(ids, mask))
print(kiln.report())
