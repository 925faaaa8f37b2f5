"""Masks of attention that no input decides."""

import pytest
import torch
import torch.nn.functional as F

from kiln.masks import simplify_masks

ROWS = 12


def _places():
    rows, columns = torch.arange(ROWS)[:, None], torch.arange(ROWS)[None, :]
    return rows, columns


def _whole(x):
    rows, columns = _places()
    return (rows + columns >= 0).expand(x.shape[0], 1, ROWS, ROWS)


def _hides_nothing(x):
    return (torch.arange(ROWS)[None, None, :, None] >= 0).expand(x.shape[0], 1, ROWS, ROWS)


def _causal(x):
    rows, columns = _places()
    return (columns <= rows)[None, None].expand(x.shape[0], -1, -1, -1)


def _window(x):
    rows, columns = _places()
    return ((columns <= rows) & (columns > rows - 4))[None, None]


def _of_data(x):
    return (x[:, :1, :, :1] > -10).expand(-1, -1, -1, ROWS)


def _random(x):
    return torch.rand(ROWS, ROWS) > -1.0


# Each with the mask and the word that attention is called with afterwards.
CASES = [(_whole, None, False), (_hides_nothing, None, False), (_causal, None, True), (_window, "mask", False), (_of_data, "mask", False)]


def _attention(make):
    def function(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=make(x))

    return function


def _captured(function, x):
    """What Dynamo captures of a function, after the masks were looked at."""
    found = []

    def backend(module, _inputs):
        changed = simplify_masks(module)
        calls = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        found.append((changed, [call.kwargs for call in calls]))
        return module

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend, fullgraph=True)(x)
    return result, found[0]


@pytest.mark.parametrize("make,mask,is_causal", CASES, ids=lambda case: getattr(case, "__name__", None))
def test_words_for_masks(make, mask, is_causal):
    x = torch.randn(2, 3, ROWS, 8)
    result, (_, [given]) = _captured(_attention(make), x)
    torch.testing.assert_close(result, _attention(make)(x))
    assert (given.get("attn_mask") is not None) == (mask is not None)
    assert bool(given.get("is_causal")) == is_causal


def _written(x):
    mask = torch.ones(ROWS, ROWS, dtype=torch.bool)
    mask[:, 3] = False
    return mask


def _written_through_a_view(x):
    mask = torch.ones(ROWS, ROWS, dtype=torch.bool)
    mask[2:4].logical_and_(torch.arange(ROWS) != 3)
    return mask


@pytest.mark.parametrize("make", [_written, _written_through_a_view], ids=lambda make: make.__name__)
def test_masks_that_are_written_stay(make):
    x = torch.randn(2, 3, ROWS, 8)
    result, (_, [given]) = _captured(_attention(make), x)
    torch.testing.assert_close(result, _attention(make)(x))
    assert given["attn_mask"] is not None


def test_random_masks_stay():
    _, (changed, [given]) = _captured(_attention(_random), torch.randn(2, 3, ROWS, 8))
    assert changed == 0 and given["attn_mask"] is not None


def test_repeated_elements_are_copied():
    """PyTorch has no fast attention for a mask whose last axis is a view of one element."""
    _, (changed, [given]) = _captured(_attention(_of_data), torch.randn(2, 3, ROWS, 8))
    assert changed == 1 and given["attn_mask"].target == "contiguous"


def test_no_copy_where_a_mask_is_left_out():
    """The mask is not computed any more."""
    seen = []

    def backend(module, _inputs):
        simplify_masks(module)
        seen.extend(node for node in module.graph.nodes if "arange" in str(node.target))
        return module

    torch._dynamo.reset()
    torch.compile(_attention(_causal), backend=backend, fullgraph=True)(torch.randn(2, 3, ROWS, 8))
    assert not seen


@pytest.mark.parametrize("make", [_hides_nothing, _causal, _window, _of_data], ids=lambda make: make.__name__)
def test_gradients(make):
    """Under the backend, with gradients."""
    x = torch.randn(2, 3, ROWS, 8, requires_grad=True)
    torch._dynamo.reset()
    want, got = _attention(make)(x), torch.compile(_attention(make), backend="kiln")(x)
    torch.testing.assert_close(got, want)
    (wanted,) = torch.autograd.grad(want.square().sum(), x)
    (gotten,) = torch.autograd.grad(got.square().sum(), x)
    torch.testing.assert_close(gotten, wanted)


def test_packed_sequences_of_hugging_face():
    """A mask as transformers builds it for positions that it counts itself."""
    def make(x):
        places = (torch.arange(ROWS) + 0).unsqueeze(0).expand(x.shape[0], -1)
        packed = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        batch, rows, columns = torch.arange(x.shape[0])[:, None, None, None], torch.arange(ROWS)[None, None, :, None], torch.arange(ROWS)[None, None, None]
        return (columns <= rows) & packed[batch, rows].eq(packed[batch, columns])

    def function(x):
        # What else is computed of its parts, and written into, is no matter.
        embedded = x + torch.arange(ROWS)[:, None]
        embedded.mul_(0.1)
        return F.scaled_dot_product_attention(embedded, embedded, x, attn_mask=make(x))

    x = torch.randn(2, 3, ROWS, 8)
    result, (changed, [given]) = _captured(function, x)
    torch.testing.assert_close(result, function(x))
    assert changed == 1 and given["is_causal"] and given["attn_mask"] is None
