"""Text from a Llama of transformers with a static KV cache: one graph for the prompt, one for every further token.

The weights are random; with those of a checkpoint (`LlamaForCausalLM.from_pretrained`) nothing else changes.
"""

import copy

import torch
from side_by_side import side_by_side
from transformers import LlamaConfig, LlamaForCausalLM

import kiln

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256,
)
model = LlamaForCausalLM(config).eval()
fast = copy.deepcopy(model)
fast.forward = torch.compile(fast.forward, backend="kiln")

prompt = torch.randint(0, 1000, (1, 7))
options = dict(max_new_tokens=16, do_sample=False, cache_implementation="static", pad_token_id=0, disable_compile=True)

want = model.generate(prompt, **options)
got = fast.generate(prompt, **options)
assert got.tolist() == want.tolist(), "Kiln chose other tokens than eager"
print("tokens:", got[0, prompt.shape[1] :].tolist())

side_by_side(lambda: model.generate(prompt, **options), lambda: fast.generate(prompt, **options), rounds=5)
print(kiln.report())
