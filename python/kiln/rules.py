"""Rules for ops that core ATen's table leaves whole and Kiln has no row for: each spelled out in ops that Kiln has."""

import math

import torch

aten = torch.ops.aten

_LONG = (torch.float32, torch.float64)


def rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten.angle.default: _angle,
        aten.put.default: _put,
        aten.median.default: lambda x: _median_of_all(x, _middle),
        aten.nanmedian.default: lambda x: _median_of_all(x, _middle_of_numbers),
        aten.median.dim: lambda x, dim, keepdim=False: _median(x, dim, keepdim, _middle),
        aten.nanmedian.dim: lambda x, dim, keepdim=False: _median(x, dim, keepdim, _middle_of_numbers),
        aten.kthvalue.default: _kthvalue,
        aten.polygamma.default: _polygamma,
        aten.frexp.Tensor: _frexp,
        aten.nextafter.default: _nextafter,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten._embedding_bag_backward.default: _embedding_bag_backward,
        aten._embedding_bag_dense_backward.default: _embedding_bag_dense_backward,
        aten._embedding_bag_per_sample_weights_backward.default: _embedding_bag_weights_backward,
        aten.grid_sampler_2d_backward.default: _grid_sampler_2d_backward,
    }


def _angle(x):
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    x = x if x.is_floating_point() else x.float()
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def _put(x, index, source, accumulate=False):
    flat = aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _middle(count, size):
    """The place of the median among sorted elements, of which ``count`` are numbers: the first NaN where there is one."""
    return torch.where(count < size, count, (size - 1) // 2)


def _middle_of_numbers(count, size):
    return ((count - 1) // 2).clamp(min=0)


def _median(x, dim, keepdim, middle):
    # Of equal elements it is not defined which one is meant; integers and short floats often are equal.
    if x.dtype not in _LONG or x.ndim == 0 or x.shape[dim] == 0:
        return NotImplemented
    values, indices = torch.sort(x, dim=dim, stable=True)
    place = middle((~x.isnan()).sum(dim, keepdim=True), x.shape[dim])
    values, indices = values.gather(dim, place), indices.gather(dim, place)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _median_of_all(x, middle):
    if not x.is_floating_point() or x.numel() == 0:
        return NotImplemented
    flat = x.reshape(-1)
    values, _ = torch.sort(flat, stable=True)
    return values.gather(0, middle((~flat.isnan()).sum(0, keepdim=True), flat.shape[0])).reshape(())


def _kthvalue(x, k, dim=-1, keepdim=False):
    if x.dtype not in _LONG or x.ndim == 0 or x.shape[dim] == 0:
        return NotImplemented
    values, indices = torch.sort(x, dim=dim, stable=True)
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return (values.clone(), indices.clone()) if keepdim else (values.squeeze(dim).clone(), indices.squeeze(dim).clone())


def _polygamma(n, x):
    if n == 0:
        return torch.digamma(x)
    if n != 1:
        return NotImplemented
    given = x.dtype if x.is_floating_point() else torch.float32
    x = x.to(torch.promote_types(given, torch.float32))
    # ψ′(x) + ψ′(1 − x) = π² / sin²(πx); six steps of ψ′(x) = ψ′(x + 1) + 1/x², and the series at infinity from there.
    is_left = x < 0.5
    y = torch.where(is_left, 1 - x, x)
    total = torch.zeros_like(y)
    for _ in range(6):
        total = total + 1 / (y * y)
        y = y + 1
    square = 1 / (y * y)
    total = total + (1 + 1 / (2 * y) + square * (1 / 6 - square * (1 / 30 - square / 42))) / y
    wave = torch.sin(math.pi * x)
    return torch.where(is_left, math.pi**2 / (wave * wave) - total, total).to(given)


# Bits of float32: the exponent's, the one of a number in [0.5, 1), and the sign's and mantissa's as a signed number.
_EXPONENT_BITS, _HALF_EXPONENT, _OTHER_BITS = 0xFF << 23, 126 << 23, -(1 << 31) + (1 << 23) - 1
_SMALLEST_NORMAL = 2.0**-126


def _frexp(x):
    if x.dtype != torch.float32:
        return NotImplemented
    is_short = x.abs() < _SMALLEST_NORMAL
    bits = torch.where(is_short, x * 2.0**25, x).view(torch.int32)
    exponent = (bits & _EXPONENT_BITS) // (1 << 23) - 126 - torch.where(is_short, 25, 0).to(torch.int32)
    mantissa = ((bits & _OTHER_BITS) | _HALF_EXPONENT).view(torch.float32)
    is_plain = (x != 0) & x.isfinite()
    return torch.where(is_plain, mantissa, x), torch.where(is_plain, exponent, 0).to(torch.int32)


def _nextafter(x, y):
    if x.dtype != torch.float32 or y.dtype != torch.float32:
        return NotImplemented
    x, y = torch.broadcast_tensors(x, y)
    bits = x.contiguous().view(torch.int32)
    # Numbers of one sign are in the order of their bits.
    moved = torch.where((x < y) == (x > 0), bits + 1, bits - 1).view(torch.float32)
    from_zero = torch.where(y > 0, torch.ones_like(bits), torch.full_like(bits, -(1 << 31) + 1)).view(torch.float32)
    moved = torch.where(x == 0, from_zero, moved)
    return torch.where(x.isnan() | y.isnan(), x + y, torch.where(x == y, y, moved))


_SUM, _MEAN = 0, 1


def _embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=-1
):
    """Sums or means of rows. Besides: the bag of each row, the number of rows of each bag, and nothing of maxima."""
    if mode not in (_SUM, _MEAN) or sparse or indices.ndim != 1 or indices.shape[0] == 0:
        return NotImplemented
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    if bags == 0:
        return NotImplemented
    count = indices.shape[0]
    # A bag begins where its offset says; several may begin at one place, or at the end.
    begins = torch.zeros(count + 1, dtype=torch.int64, device=indices.device)
    begins = aten.index_put(begins, [offsets[:bags].long()], torch.ones((), dtype=torch.int64, device=indices.device), True)
    bag = begins.cumsum(0)[:count] - 1
    dtype = torch.promote_types(weight.dtype, torch.float32)
    counted = (indices != padding_idx) if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    rows = aten.embedding(weight, indices).to(dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(dtype).unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where(counted.unsqueeze(-1), rows, 0)
    out = aten.index_put(rows.new_zeros(bags, rows.shape[1]), [bag], rows, True)
    sizes = aten.index_put(bag.new_zeros(bags), [bag], counted.long(), True)
    if mode == _MEAN:
        out = out / sizes.clamp(min=1).unsqueeze(-1)
    kind = offsets.dtype
    return out.to(weight.dtype), bag.to(kind), sizes.to(kind), torch.zeros_like(sizes).to(kind)


def _embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights,
    padding_idx=-1,
):  # fmt: skip
    if sparse:
        return NotImplemented
    return _embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


def _embedding_bag_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    if mode != _SUM or indices.shape[0] == 0:
        return NotImplemented
    dtype = torch.promote_types(grad.dtype, torch.float32)
    felt = (grad.to(dtype).index_select(0, offset2bag.long()) * aten.embedding(weight, indices).to(dtype)).sum(-1)
    return (torch.where(indices != padding_idx, felt, 0) if padding_idx >= 0 else felt).to(grad.dtype)


def _embedding_bag_dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx=-1
):
    if mode not in (_SUM, _MEAN) or indices.shape[0] == 0:
        return NotImplemented
    dtype = torch.promote_types(grad.dtype, torch.float32)
    bag = offset2bag.long()
    rows = grad.to(dtype).index_select(0, bag)
    if mode == _MEAN:
        rows = rows / bag_size.index_select(0, bag).clamp(min=1).unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(dtype).unsqueeze(-1)
    if scale_grad_by_freq:
        often = aten.index_put(indices.new_zeros(num_weights), [indices], torch.ones_like(indices), True)
        rows = rows / often.index_select(0, indices).unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(-1), rows, 0)
    return aten.index_put(rows.new_zeros(num_weights, rows.shape[1]), [indices], rows, True).to(grad.dtype)


_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _place(grid, size, padding, corners):
    """The places in pixels that a grid from −1 to 1 means, and their derivative by it."""
    if corners:
        place, slope = (grid + 1) * ((size - 1) / 2), torch.full_like(grid, (size - 1) / 2)
    else:
        place, slope = ((grid + 1) * size - 1) / 2, torch.full_like(grid, size / 2)
    if padding == _REFLECTION:
        low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(place), torch.zeros_like(slope)
        away = place - low
        slope = torch.where(away < 0, -slope, slope)
        away = away.abs()
        turns = (away / span).floor()
        rest = away - turns * span
        is_even = turns % 2 == 0
        place = torch.where(is_even, rest, span - rest) + low
        slope = torch.where(is_even, slope, -slope)
    if padding != _ZEROS:
        inside = (place > 0) & (place < size - 1)
        place, slope = place.clamp(0, size - 1), torch.where(inside, slope, 0)
    return place, slope


def _grid_sampler_2d_backward(grad, x, grid, interpolation_mode, padding_mode, align_corners, output_mask):
    if interpolation_mode not in (_BILINEAR, _NEAREST) or x.dtype not in _LONG or grid.dtype != x.dtype:
        return NotImplemented
    batch, channels, height, width = x.shape
    if not all(isinstance(size, int) and size > 0 for size in (*x.shape, *grid.shape)):
        return NotImplemented
    horizontal, slope_x = _place(grid[..., 0], width, padding_mode, align_corners)
    vertical, slope_y = _place(grid[..., 1], height, padding_mode, align_corners)
    count = grid.shape[1] * grid.shape[2]
    flat, ahead = x.reshape(batch, channels, height * width), grad.reshape(batch, channels, count)

    def corner(column, row):
        """Where a pixel lies, and whether it is one."""
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        at = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
        return at.reshape(batch, 1, count), inside.reshape(batch, 1, count)

    def spread(total, at, values):
        return total.scatter_add(2, at.expand(batch, channels, count), values)

    of_x = torch.zeros_like(flat, memory_format=torch.contiguous_format)
    if interpolation_mode == _NEAREST:
        at, inside = corner(horizontal.round(), vertical.round())
        of_x = spread(of_x, at, torch.where(inside, ahead, 0))
        return of_x.reshape(x.shape), torch.zeros_like(grid, memory_format=torch.contiguous_format)
    left, top = horizontal.floor(), vertical.floor()
    right_part, lower_part = horizontal - left, vertical - top
    of_column = of_row = 0
    for is_right in (False, True):
        for is_lower in (False, True):
            at, inside = corner(left + is_right, top + is_lower)
            by_x, by_y = (right_part if is_right else 1 - right_part), (lower_part if is_lower else 1 - lower_part)
            share = (by_x * by_y).reshape(batch, 1, count)
            if output_mask[0]:
                of_x = spread(of_x, at, torch.where(inside, ahead * share, 0))
            pixel = torch.where(inside, flat.gather(2, at.expand(batch, channels, count)), 0)
            felt = (pixel * ahead).sum(1).reshape(by_x.shape)
            of_column = of_column + (felt if is_right else -felt) * by_y
            of_row = of_row + (felt if is_lower else -felt) * by_x
    return of_x.reshape(x.shape), torch.stack([of_column * slope_x, of_row * slope_y], dim=-1)
