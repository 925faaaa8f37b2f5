"""Layers that PyTorch has as one op each."""

import pytest
import torch
from conftest import check
from torch import nn


def _encoder(norm_first, activation, layers=1):
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=norm_first, activation=activation)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_fast_path_of_an_encoder(norm_first, activation):
    check(_encoder(norm_first, activation), torch.randn(2, 5, 32), tolerance=1e-4)


_KEYS = torch.tensor([[False] * 5, [False, False, True, False, True]])


@torch.no_grad()
@pytest.mark.parametrize("given", [dict(src_key_padding_mask=_KEYS), dict(mask=torch.ones(5, 5).triu(1).bool()), dict(is_causal=True)])
def test_masks_of_an_encoder(given):
    # In 2.15 PyTorch reads an element of the graph to see whether a mask is causal, unless that is said.
    native = "mask" not in given
    if "is_causal" in given:
        given = dict(given, mask=nn.Transformer.generate_square_subsequent_mask(5))
    encoder, x = _encoder(False, "relu"), torch.randn(2, 5, 32)
    check(lambda x: encoder(x, **given), x, native=native, tolerance=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", [None, 0, 1, 2])
def test_attention_of_one_op(weights, kind):
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    nn.init.normal_(attention.in_proj_bias)
    # In the second row no key is left.
    masks = [torch.rand(5, 5) > 0.7, torch.tensor([[False, True, False, False, True], [True] * 5]), torch.rand(2, 2, 5, 5) > 0.7]
    mask = None if kind is None else masks[kind]

    def function(x, y):
        parts = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
        one = torch._native_multi_head_attention(x, x, x, 16, 2, *parts, mask, weights, True, kind)
        other = torch._native_multi_head_attention(x, y, y, 16, 2, *parts, mask, weights, False, kind)
        return (*one, *other) if weights else (one[0], other[0])

    check(function, torch.randn(2, 5, 16), torch.randn(2, 5, 16), tolerance=1e-4)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("batch", [(2, 3), (3,)])
def test_pools_at_drawn_places(axes, batch):
    pool = getattr(nn.functional, f"fractional_max_pool{axes}d")
    samples = torch.rand(batch[0] if len(batch) == 2 else 1, 3, axes)
    for window, count in ((2, 4), (3, 1), (1, 7)):
        x = torch.randn(*batch, *(8, 9, 10)[:axes], requires_grad=True)

        def function(x, samples, window=window, count=count):
            return pool(x, window, output_size=(count,) * axes, return_indices=True, _random_samples=samples)

        torch._dynamo.reset()
        check(function, x.detach(), samples)
        compiled = torch.compile(function, backend="kiln")
        ahead = torch.randn(*batch, *(count,) * axes)
        want, got = (torch.autograd.grad(run(x, samples)[0], x, ahead)[0] for run in (function, compiled))
        torch.testing.assert_close(got, want)
