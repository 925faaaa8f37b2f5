"""Rules for layers that PyTorch has as one op each: attention, the encoder of a transformer, and pools at places that are drawn."""

import math

import torch

aten = torch.ops.aten


def layer_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten._native_multi_head_attention.default: _multi_head_attention,
        aten.fractional_max_pool2d.default: _fractional_max_pool,
        aten.fractional_max_pool3d.default: _fractional_max_pool,
    }


# What a mask is for: all rows and heads, the keys of each row, or everything apart.
_OF_PAIRS, _OF_KEYS, _OF_SCORES = 0, 1, 2


def _hidden(mask, kind, rows):
    """Which scores a mask hides, with axes for rows, heads, queries and keys. Masks of other dtypes are taken for bools."""
    mask = mask.to(torch.bool)
    if kind == _OF_KEYS:
        return mask.reshape(rows, 1, 1, mask.shape[-1])
    return mask.reshape(1, 1, *mask.shape) if kind == _OF_PAIRS else mask


def _bias(hidden, dtype):
    """Masks as numbers that are added to scores. Where all keys are hidden there is no mean of them."""
    bias = torch.where(hidden, -math.inf, torch.zeros((), dtype=dtype, device=hidden.device))
    return torch.where(hidden.all(-1, keepdim=True), math.nan, bias)


def _multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None, need_weights=True,
    average_attn_weights=True, mask_type=None,
):  # fmt: skip
    if query.is_nested or query.ndim != 3 or 0 in query.shape or (mask is not None and mask_type not in (_OF_PAIRS, _OF_KEYS, _OF_SCORES)):
        return NotImplemented
    rows, width = query.shape[0], embed_dim // num_head
    if query is key and key is value:
        parts = aten.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights = zip(qkv_weight.chunk(3), qkv_bias.chunk(3))
        parts = [aten.linear(x, weight, bias) for x, (weight, bias) in zip((query, key, value), weights)]
    q, k, v = (part.reshape(rows, -1, num_head, width).transpose(1, 2) for part in parts)
    bias = None if mask is None else _bias(_hidden(mask, mask_type, rows), query.dtype)
    if need_weights:
        scores = q @ k.transpose(-2, -1) / math.sqrt(width)
        shares = (scores if bias is None else scores + bias).softmax(-1)
        found = shares @ v
        shares = shares.sum(1) / num_head if average_attn_weights else shares
    else:
        found, shares = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias), None
    return aten.linear(found.transpose(1, 2).reshape(rows, -1, embed_dim), proj_weight, proj_bias), shares


def _encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1,
    norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
):  # fmt: skip
    def attended(x):
        given = (x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        result = _multi_head_attention(*given)
        return result if result is NotImplemented else result[0]

    def fed_forward(x):
        inner = aten.linear(x, ffn_weight_1, ffn_bias_1)
        return aten.linear(aten.gelu(inner) if use_gelu else aten.relu(inner), ffn_weight_2, ffn_bias_2)

    def first_norm(x):
        return aten.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second_norm(x):
        return aten.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    x = attended(first_norm(src) if norm_first else src)
    if x is NotImplemented:
        return x
    if norm_first:
        x = src + x
        return x + fed_forward(second_norm(x))
    x = first_norm(src + x)
    return second_norm(x + fed_forward(x))


def _fractional_max_pool(x, kernel_size, output_size, random_samples):
    """Maxima of windows whose places are drawn for each channel."""
    axes = len(kernel_size)
    sizes, leading = x.shape[-axes:], x.shape[:-axes]
    known = all(isinstance(n, int) and n > 0 for n in (*x.shape, *output_size))
    if x.dtype not in (torch.float32, torch.float64) or not known or random_samples.dtype != x.dtype:
        return NotImplemented
    channels = math.prod(leading)
    drawn = random_samples.reshape(-1, axes)[:channels]
    at = 0
    for axis, (size, window, count) in enumerate(zip(sizes, kernel_size, output_size)):
        # In two dimensions the last axis has the first number.
        share = drawn[:, axes - 1 - axis if axes == 2 else axis].unsqueeze(-1)
        first = torch.full((channels, count), size - window, device=x.device)
        if count > 1:
            # PyTorch's kernel computes it in the dtype of the image.
            step = torch.full((), size - window, dtype=x.dtype, device=x.device) / (count - 1)
            place = torch.arange(count, dtype=x.dtype, device=x.device)
            begins = ((place + share) * step).long() - (share * step).long()
            first = torch.where(place < count - 1, begins, first)
        inside = torch.arange(window, device=x.device)
        shape = [channels] + [1] * (2 * axes)
        shape[1 + axis], shape[1 + axes + axis] = count, window
        at = at * size + (first.unsqueeze(-1) + inside).reshape(shape)
    at = at.reshape(channels, math.prod(output_size), math.prod(kernel_size))
    flat = x.reshape(channels, math.prod(sizes))
    values = flat.gather(1, at.reshape(channels, -1)).reshape(at.shape)
    largest = values.argmax(-1, keepdim=True)
    shape = (*leading, *output_size)
    return values.gather(-1, largest).reshape(shape), at.gather(-1, largest).reshape(shape)
