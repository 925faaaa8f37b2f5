"""Models of transformers with random weights."""

import copy

import pytest
import torch
from conftest import assert_close

import kiln

transformers = pytest.importorskip("transformers")


def llama():
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


def bert():
    config = transformers.BertConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64,
    )
    return transformers.BertModel(config).eval()


@torch.no_grad()
def test_llama_logits():
    model, ids = llama(), torch.randint(0, 128, (2, 9))
    want = model(ids, use_cache=False).logits
    got = torch.compile(copy.deepcopy(model), backend="kiln")(ids, use_cache=False).logits
    assert_close(got, want, 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
def test_bert_embeddings_with_a_mask():
    model, ids = bert(), torch.randint(0, 128, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    want = model(ids, attention_mask=mask).last_hidden_state
    got = torch.compile(model, backend="kiln")(ids, attention_mask=mask).last_hidden_state
    assert_close(got, want, 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
def test_generate_with_a_static_cache():
    model, ids = llama(), torch.randint(0, 128, (1, 5))
    options = dict(max_new_tokens=12, do_sample=False, cache_implementation="static", pad_token_id=0)
    options["disable_compile"] = True
    want = model.generate(ids, **options)
    compiled = copy.deepcopy(model)
    compiled.forward = torch.compile(compiled.forward, backend="kiln")
    got = compiled.generate(ids, **options)
    assert got.tolist() == want.tolist()
    assert not kiln.report().fallbacks and not kiln.report().refused, str(kiln.report())


def test_llama_loss_and_gradients():
    model, ids = llama().train(), torch.randint(0, 128, (2, 9))
    mine = copy.deepcopy(model)
    want = model(ids, labels=ids, use_cache=False).loss
    want.backward()
    got = torch.compile(mine, backend="kiln")(ids, labels=ids, use_cache=False).loss
    got.backward()
    assert_close(got.detach(), want.detach(), 1e-4)
    assert_close([p.grad for p in mine.parameters()], [p.grad for p in model.parameters()], 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())
