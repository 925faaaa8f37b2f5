"""Rules for ops that core ATen's table leaves whole and Kiln has no row for: each spelled out in ops that Kiln has."""

import itertools
import math
import struct

import torch

aten = torch.ops.aten

_LONG = (torch.float32, torch.float64)


def rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten.angle.default: _angle,
        aten.__lshift__.Scalar: aten.bitwise_left_shift.Tensor_Scalar,
        aten.__lshift__.Tensor: aten.bitwise_left_shift.Tensor,
        aten.__rshift__.Scalar: aten.bitwise_right_shift.Tensor_Scalar,
        aten.__rshift__.Tensor: aten.bitwise_right_shift.Tensor,
        aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
        aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_channels,
        aten.replication_pad1d_backward.default: _replication_pad_backward,
        aten.replication_pad2d_backward.default: _replication_pad_backward,
        aten.replication_pad3d_backward.default: _replication_pad_backward,
        aten.true_divide.Tensor: aten.div.Tensor,
        aten.true_divide.Scalar: aten.div.Scalar,
        aten._fft_r2c.default: _fft_r2c,
        aten.put.default: _put,
        aten.rand_like.default: lambda x, **given: _drawn_like(aten.rand, x, **given),
        aten.rand.generator: _rand,
        aten.normal.Tensor_float: lambda mean, std=1.0, *, generator=None: _normal(mean, std, generator),
        aten.normal.float_Tensor: lambda mean, std, *, generator=None: _normal(mean, std, generator),
        aten.normal.Tensor_Tensor: lambda mean, std, *, generator=None: _normal(mean, std, generator),
        aten.normal.float_float: _normal_of_sizes,
        aten.median.default: lambda x: _median_of_all(x, _middle),
        aten.nanmedian.default: lambda x: _median_of_all(x, _middle_of_numbers),
        aten.median.dim: lambda x, dim, keepdim=False: _median(x, dim, keepdim, _middle),
        aten.nanmedian.dim: lambda x, dim, keepdim=False: _median(x, dim, keepdim, _middle_of_numbers),
        aten.kthvalue.default: _kthvalue,
        aten.mode.default: _mode,
        aten._new_zeros_with_same_feature_meta.default: _zeros_of_tangents,
        **_windows(),
        aten.polygamma.default: _polygamma,
        aten.frexp.Tensor: _frexp,
        aten.nextafter.default: _nextafter,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten._embedding_bag_backward.default: _embedding_bag_backward,
        aten._embedding_bag_dense_backward.default: _embedding_bag_dense_backward,
        aten._embedding_bag_per_sample_weights_backward.default: _embedding_bag_weights_backward,
        aten.grid_sampler_3d.default: _grid_sampler,
        aten.grid_sampler_2d_backward.default: _grid_sampler_backward,
        aten.grid_sampler_3d_backward.default: _grid_sampler_backward,
    }


def _angle(x):
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    x = x if x.is_floating_point() else x.float()
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def _single(number):
    """The nearest number of 32 bits."""
    return struct.unpack("f", struct.pack("f", number))[0]


def _fake_quantize(x, scale, zero_point, quant_min, quant_max):
    # The reciprocal of what the scale is in 32 bits, in 32 bits; what is no number is the least.
    level = torch.round(x.float() * _single(1 / _single(scale))) + zero_point
    kept = (level >= quant_min) & (level <= quant_max)
    level = torch.where(level.isnan(), quant_min, level)
    return ((level.clamp(quant_min, quant_max) - zero_point) * scale).to(x.dtype), kept


def _fake_quantize_channels(x, scale, zero_point, axis, quant_min, quant_max):
    if zero_point.dtype not in (torch.int32, torch.int64) or scale.dtype != torch.float32:
        return NotImplemented
    shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    level = torch.round(x.float() * (1 / scale)) + zero_point
    kept = (level >= quant_min) & (level <= quant_max)
    level = torch.where(level.isnan(), quant_min, level)
    return ((level.clamp(quant_min, quant_max) - zero_point) * scale).to(x.dtype), kept


def _replication_pad_backward(grad, x, padding):
    """What was copied beyond an end counts for that end."""
    if any(not isinstance(n, int) or n < 0 for n in padding):
        return NotImplemented
    memory = torch._prims_common.suggest_memory_format(x)
    dtype = torch.promote_types(grad.dtype, torch.float32)
    felt = grad.to(dtype) if grad.is_floating_point() else grad
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
        axis, ahead = x.ndim - 1 - number, 2 * number
        size = x.shape[axis]
        first = felt.narrow(axis, 0, before).sum(axis, keepdim=True)
        last = felt.narrow(axis, before + size, after).sum(axis, keepdim=True)
        felt = felt.narrow(axis, before, size)
        felt = felt + aten.constant_pad_nd(first, [0] * ahead + [0, size - 1]) if before else felt
        felt = felt + aten.constant_pad_nd(last, [0] * ahead + [size - 1, 0]) if after else felt
    return felt.to(grad.dtype).contiguous(memory_format=memory)


def _drawn_like(draw, x, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    dtype = dtype or x.dtype
    if layout not in (None, torch.strided) or not x.is_contiguous() or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return draw(x.shape, dtype=dtype, device=device or x.device) if dtype.is_floating_point else NotImplemented


def _rand(size, *, generator, **given):
    return NotImplemented if generator is not None else aten.rand(size, **given)


def _normal(mean, std, generator):
    """Normal numbers around a mean with a deviation, one of which may be a number. Deviations in a tensor are not checked."""
    given = [part for part in (mean, std) if isinstance(part, torch.Tensor)]
    is_wrong = not isinstance(std, torch.Tensor) and std < 0
    if generator is not None or is_wrong or len({part.dtype for part in given}) > 1 or not given[0].is_floating_point():
        return NotImplemented
    drawn = aten.randn(torch.broadcast_shapes(*(part.shape for part in given)), dtype=given[0].dtype, device=given[0].device)
    return (mean + std * drawn).contiguous()


def _normal_of_sizes(mean, std, size, *, generator=None, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    if generator is not None or std < 0 or not dtype.is_floating_point or layout not in (None, torch.strided):
        return NotImplemented
    return mean + std * aten.randn(size, dtype=dtype, device=device)


def _fft_r2c(x, dim, normalization, onesided):
    """With the strides that PyTorch's kernel gives, which its trace does not say: axes that are not transformed come first, in the order
    of their strides, then those that are, the last of these last."""
    if x.device.type != "cpu" or not torch.backends.mkl.is_available() or not all(isinstance(n, int) for n in x.stride()):
        return NotImplemented
    axes = [axis % x.ndim for axis in dim]
    others = [axis for axis in range(x.ndim) if axis not in axes]
    order = sorted(others, key=lambda axis: -x.stride(axis)) + sorted(axes[:-1], key=lambda axis: -x.stride(axis)) + axes[-1:]
    if order == list(range(x.ndim)):
        return NotImplemented
    y = aten._fft_r2c(x.permute(order), list(range(len(others), x.ndim)), normalization, onesided)
    return y.permute([order.index(axis) for axis in range(x.ndim)])


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
    if x.is_complex() or x.numel() == 0:
        return NotImplemented
    flat = x.reshape(-1)
    values, _ = torch.sort(flat, stable=True)
    if not x.is_floating_point():
        return values[(flat.shape[0] - 1) // 2]
    return values.gather(0, middle((~flat.isnan()).sum(0, keepdim=True), flat.shape[0])).reshape(())


def _kthvalue(x, k, dim=-1, keepdim=False):
    if x.dtype not in _LONG or x.ndim == 0 or x.shape[dim] == 0:
        return NotImplemented
    values, indices = torch.sort(x, dim=dim, stable=True)
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return (values.clone(), indices.clone()) if keepdim else (values.squeeze(dim).clone(), indices.squeeze(dim).clone())


def _mode(x, dim=-1, keepdim=False):
    """The value that is there most often, the least of several, and the last place of it."""
    if x.is_complex() or x.ndim == 0 or x.shape[dim] == 0:
        return NotImplemented
    values, places = torch.sort(x, dim=dim, stable=True)
    size = x.shape[dim]
    number = torch.arange(size, device=x.device).reshape([-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)])
    differs = values.narrow(dim, 1, size - 1) != values.narrow(dim, 0, size - 1)
    edge = torch.ones_like(values.narrow(dim, 0, 1), dtype=torch.bool)
    begins, ends = torch.cat([edge, differs], dim), torch.cat([differs, edge], dim)
    # The runs of equal values: how long each is at its end.
    begun = torch.where(begins, number, 0).cummax(dim).values
    length = torch.where(ends, number - begun + 1, 0)
    found = length.argmax(dim, keepdim=True)
    values, places = values.gather(dim, found), places.gather(dim, found)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _zeros_of_tangents(x, like, *, self_num_batch_dims=0):
    """Zeros of the form of another tensor, behind the first axes of this one: tangents that nothing was given for."""
    if not like.is_contiguous() or like.storage_offset() or like.is_complex() != x.is_complex():
        return NotImplemented
    return x.new_zeros((*x.shape[:self_num_batch_dims], *like.shape))


def _windows():
    """Windows of signals: sums of cosines, and triangles."""

    def of(build):
        def rule(window_length, *given, dtype=None, layout=None, device=None, pin_memory=None):
            dtype = dtype or torch.get_default_dtype()
            periodic, *rest = given or (True,)
            if not isinstance(window_length, int) or dtype not in _LONG or layout not in (None, torch.strided):
                return NotImplemented
            if window_length < 2:
                return torch.ones(window_length, dtype=dtype, device=device)
            # A period has its first point once more at its end, where it is left out.
            count = window_length + 1 if periodic else window_length
            place = torch.arange(window_length, dtype=dtype, device=device)
            return build(place, count, *rest)

        return rule

    def hamming(place, count, alpha=0.54, beta=0.46):
        return alpha - beta * torch.cos(place * (2 * math.pi / (count - 1)))

    def blackman(place, count):
        place = place * (math.pi / (count - 1))
        return 0.08 * torch.cos(place * 4) - 0.5 * torch.cos(place * 2) + 0.42

    def bartlett(place, count):
        rising = place * (2 / (count - 1))
        return torch.where(place <= (count - 1) // 2, rising, 2 - rising)

    kinds = {
        "hann_window": of(lambda place, count: hamming(place, count, 0.5, 0.5)),
        "hamming_window": of(hamming),
        "blackman_window": of(blackman),
        "bartlett_window": of(bartlett),
    }
    overloads = ("default", "periodic", "periodic_alpha", "periodic_alpha_beta")
    return {
        getattr(getattr(aten, name), overload): rule
        for name, rule in kinds.items()
        for overload in overloads
        if overload in getattr(aten, name).overloads()
    }


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
    # What is behind the last offset, where that is an end, belongs to one bag more, which is dropped.
    ends = offsets.shape[0]
    if bags == 0:
        return NotImplemented
    bag = _bag_of_each(indices, offsets)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    counted = (indices != padding_idx) if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    rows = aten.embedding(weight, indices).to(dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(dtype).unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where(counted.unsqueeze(-1), rows, 0)
    out = aten.index_put(rows.new_zeros(ends, rows.shape[1]), [bag], rows, True)[:bags]
    sizes = aten.index_put(bag.new_zeros(ends), [bag], counted.long(), True)[:bags]
    if mode == _MEAN:
        out = out / sizes.clamp(min=1).unsqueeze(-1)
    kind = offsets.dtype
    # PyTorch's sums on the CPU do not count, and the fast ones leave the bags out; gradients find them again.
    if mode == _SUM and weight.device.type == "cpu":
        sizes = torch.zeros_like(sizes)
    scaled = per_sample_weights is None or per_sample_weights.stride(0) == 1
    is_fast = weight.dtype in (torch.float32, torch.float16) and weight.stride(1) == 1 and padding_idx < 0 and scaled
    if mode == _SUM and is_fast and weight.device.type == "cpu":
        bag = bag[:0]
    return out.to(weight.dtype), bag.to(kind), sizes.to(kind), torch.zeros_like(sizes).to(kind)


def _bag_of_each(indices, offsets, known=None):
    """The number of each row's bag, if it is not known already."""
    count = indices.shape[0]
    if known is not None and known.shape[0] == count:
        return known.long()
    # A bag begins where its offset says; several may begin at one place, or at the end.
    begins = torch.zeros(count + 1, dtype=torch.int64, device=indices.device)
    begins = aten.index_put(begins, [offsets.long()], torch.ones((), dtype=torch.int64, device=indices.device), True)
    return begins.cumsum(0)[:count] - 1


def _of_bags(grad, bag):
    """The gradient of each row's bag, nothing for rows behind the last bag."""
    bags = grad.shape[0]
    return torch.where((bag < bags).unsqueeze(-1), grad.index_select(0, bag.clamp(max=bags - 1)), 0)


def _embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights,
    padding_idx=-1,
):  # fmt: skip
    if sparse:
        return NotImplemented
    offset2bag = _bag_of_each(indices, offsets, offset2bag)
    return _embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


def _embedding_bag_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    if mode != _SUM or indices.shape[0] == 0:
        return NotImplemented
    dtype = torch.promote_types(grad.dtype, torch.float32)
    bag = _bag_of_each(indices, offsets, offset2bag)
    felt = (_of_bags(grad.to(dtype), bag) * aten.embedding(weight, indices).to(dtype)).sum(-1)
    return (torch.where(indices != padding_idx, felt, 0) if padding_idx >= 0 else felt).to(grad.dtype)


def _embedding_bag_dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx=-1
):
    if mode not in (_SUM, _MEAN) or indices.shape[0] == 0:
        return NotImplemented
    dtype = torch.promote_types(grad.dtype, torch.float32)
    bag = offset2bag.long()
    rows = _of_bags(grad.to(dtype), bag)
    if mode == _MEAN:
        rows = rows / bag_size.index_select(0, bag.clamp(max=grad.shape[0] - 1)).clamp(min=1).unsqueeze(-1)
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


class _Samples:
    """What a grid reads of images of any number of axes: pixels with their shares."""

    def __init__(self, x, grid, mode, padding, corners):
        self.x, self.sizes = x, x.shape[2:]
        self.batch, self.channels = x.shape[:2]
        self.count = math.prod(grid.shape[1:-1])
        axes = len(self.sizes)
        # The first number of a grid is a place along the last axis.
        found = [_place(grid[..., axes - 1 - axis], size, padding, corners) for axis, size in enumerate(self.sizes)]
        self.slopes = [slope for _, slope in found]
        if mode == _NEAREST:
            self.first = [place.round() for place, _ in found]
            self.parts = None
        else:
            self.first = [place.floor() for place, _ in found]
            self.parts = [place - first for (place, _), first in zip(found, self.first)]

    def corners(self):
        """For each pixel that is read: its number, whether there is one, and for each axis whether it is the later and its share."""
        for bits in itertools.product((0, 1), repeat=len(self.sizes)) if self.parts else [(0,) * len(self.sizes)]:
            at, inside = 0, True
            for bit, first, size in zip(bits, self.first, self.sizes):
                place = first + bit
                at = at * size + place.clamp(0, size - 1).long()
                inside = inside & (place >= 0) & (place < size)
            shares = [part if bit else 1 - part for bit, part in zip(bits, self.parts or ())]
            yield self.flat(at).expand(self.batch, self.channels, self.count), self.flat(inside), bits, shares

    def flat(self, values):
        return values.reshape(self.batch, 1, self.count)

    def pixels(self, at, inside):
        x = self.x.reshape(self.batch, self.channels, math.prod(self.sizes))
        return torch.where(inside, x.gather(2, at), 0)


def _is_sampled_by_rule(x, grid, mode):
    sizes = (*x.shape, *grid.shape)
    return mode in (_BILINEAR, _NEAREST) and x.dtype in _LONG and grid.dtype == x.dtype and all(isinstance(n, int) and n > 0 for n in sizes)


def _grid_sampler(x, grid, interpolation_mode, padding_mode, align_corners):
    if not _is_sampled_by_rule(x, grid, interpolation_mode):
        return NotImplemented
    samples = _Samples(x, grid, interpolation_mode, padding_mode, align_corners)
    out = 0
    for at, inside, _, shares in samples.corners():
        pixels = samples.pixels(at, inside)
        out = out + (pixels * samples.flat(math.prod(shares)) if shares else pixels)
    return out.reshape(*x.shape[:2], *grid.shape[1:-1])


def _grid_sampler_backward(grad, x, grid, interpolation_mode, padding_mode, align_corners, output_mask):
    if not _is_sampled_by_rule(x, grid, interpolation_mode):
        return NotImplemented
    samples = _Samples(x, grid, interpolation_mode, padding_mode, align_corners)
    ahead = grad.reshape(samples.batch, samples.channels, samples.count)
    of_x = torch.zeros(samples.batch, samples.channels, math.prod(samples.sizes), dtype=x.dtype, device=x.device)
    of_places = [0] * len(samples.sizes)
    for at, inside, bits, shares in samples.corners():
        if output_mask[0]:
            share = samples.flat(math.prod(shares)) if shares else 1
            of_x = of_x.scatter_add(2, at, torch.where(inside, ahead * share, 0))
        felt = (samples.pixels(at, inside) * ahead).sum(1).reshape(grid.shape[:-1]) if shares else 0
        for axis, bit in enumerate(bits if shares else ()):
            others = math.prod(share for other, share in enumerate(shares) if other != axis)
            of_places[axis] = of_places[axis] + (felt if bit else -felt) * others
    of_x = of_x.reshape(x.shape)
    if not samples.parts:
        return of_x, torch.zeros_like(grid, memory_format=torch.contiguous_format)
    return of_x, torch.stack([of * slope for of, slope in zip(of_places, samples.slopes)][::-1], dim=-1)
