"""``flex_attention``: its scores and masks in Kiln, forward and backward."""

import sys

import kiln
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SLOPES = torch.tensor([0.5, 0.25])
TABLE = torch.randn(40, generator=torch.Generator().manual_seed(3))


def softcapped(score, batch, head, query, key):
    return 20 * torch.tanh(score / 20)


def linear_bias(score, batch, head, query, key):
    return score + SLOPES[head] * (key - query)


def causal(batch, head, query, key):
    return query >= key


def window(batch, head, query, key):
    return (query >= key) & (query - key < 5)


def inputs(queries=24, keys=24, heads=2, shared=1, dtype=torch.float32, grad=False):
    torch.manual_seed(0)
    shapes = [(2, heads, queries, 8), (2, heads // shared, keys, 8), (2, heads // shared, keys, 8)]
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


def native(f):
    torch._dynamo.reset()
    return torch.compile(f, backend="kiln", options={"fullgraph_native": True}, fullgraph=True)


def reference(scores, allowed, q, k, v):
    """What the function means, with all scores in memory."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    all_scores = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    places = torch.meshgrid(*(torch.arange(n) for n in all_scores.shape), indexing="ij")
    changed = scores(all_scores, *places) if scores is not None else all_scores
    if allowed is not None:
        changed = changed.masked_fill(~allowed(*places), float("-inf"))
    return torch.softmax(changed, -1).nan_to_num(0) @ v.double()


@pytest.mark.parametrize("scores", [None, softcapped, linear_bias])
@pytest.mark.parametrize("allowed", [None, causal, window])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_masks(scores, allowed, dtype):
    q, k, v = inputs(dtype=dtype)
    mask = create_block_mask(allowed, None, None, 24, 24, device="cpu") if allowed is not None else None
    got = native(lambda q, k, v: flex_attention(q, k, v, score_mod=scores, block_mask=mask))(q, k, v)
    want = reference(scores, allowed, q, k, v)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_shared_heads_and_logsumexp():
    q, k, v = inputs(queries=10, keys=17, heads=4, shared=2)
    got, logsumexp = native(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, return_lse=True))(q, k, v)
    torch.testing.assert_close(got.double(), reference(None, None, q, k, v), rtol=1e-5, atol=1e-5)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    torch.testing.assert_close(logsumexp.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_rows_without_keys_are_zero():
    q, k, v = inputs()
    mask = create_block_mask(lambda b, h, i, j: i - 3 > j, None, None, 24, 24, device="cpu")
    got = native(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v)
    assert (got[:, :, :4] == 0).all() and got.isfinite().all()


@pytest.mark.parametrize("allowed", [None, causal])
def test_gradients(allowed, monkeypatch):
    # PyTorch has gradients of it for GPUs alone, and says so before a backend is asked.
    monkeypatch.setattr(sys.modules[flex_attention.__module__], "_validate_device", lambda *_: None)
    table = TABLE.clone().requires_grad_(True)

    def relative(score, batch, head, query, key):
        return score + table[query - key + 12]

    mask = create_block_mask(allowed, None, None, 12, 12, device="cpu") if allowed is not None else None
    q, k, v = inputs(12, 12, grad=True)
    native(lambda q, k, v: flex_attention(q, k, v, score_mod=relative, block_mask=mask))(q, k, v).square().sum().backward()
    got = [x.grad.clone() for x in (q, k, v, table)]
    for x in (q, k, v, table):
        x.grad = None
    reference(relative, allowed, q, k, v).square().sum().backward()
    for mine, x in zip(got, (q, k, v, table)):
        torch.testing.assert_close(mine, x.grad, rtol=1e-4, atol=1e-4)


def test_lengths_are_symbols():
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=linear_bias), backend="kiln", dynamic=True)
    before = kiln.report().graphs
    for length in (9, 12, 31):
        q, k, v = inputs(length, length)
        torch.testing.assert_close(compiled(q, k, v).double(), reference(linear_bias, None, q, k, v), rtol=1e-5, atol=1e-5)
    assert kiln.report().graphs - before == 1


def test_queries_in_another_order_of_axes():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs())
    got = native(lambda q, k, v: flex_attention(q, k, v, score_mod=softcapped))(q, k, v)
    assert got.stride() == q.stride()
    torch.testing.assert_close(got.double(), reference(softcapped, None, q, k, v), rtol=1e-5, atol=1e-5)


def test_constants_of_two_attentions():
    def twice(q, k, v):
        first = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * torch.tensor(0.5))
        return first, flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * torch.tensor(4.0))

    q, k, v = inputs()
    for got, factor in zip(native(twice)(q, k, v), (0.5, 4.0)):
        want = reference(lambda score, b, h, i, j: score * factor, None, q, k, v)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
