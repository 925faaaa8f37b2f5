"""Which ops PyTorch spells out before Kiln sees the graph: core ATen's table with what Kiln has whole left out, and ops on lists."""

import functools
import math

import torch

from .bessel_rules import bessel_rules
from .complex_rules import complex_rules
from .create_rules import create_rules
from .layer_rules import layer_rules
from .pair_rules import pair_rules
from .polynomial_rules import polynomial_rules
from .quantized_rules import quantized_rules
from .resample_rules import resample_rules
from .rules import rules
from .vision_rules import vision_rules

aten = torch.ops.aten

# What Kiln does better whole than in parts. The core table's rule for attention on the CPU gives wrong gradients besides, and its rule
# for `select_scatter` other strides than the op has.
_WHOLE = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten.select_scatter.default,
)


def decompositions():
    """The decomposition table."""
    # These libraries may be imported at any time.
    return {**_of_pytorch(), **quantized_rules(), **vision_rules()}


@functools.cache
def _of_pytorch():
    table = dict(torch._decomp.core_aten_decompositions().items())
    table.update(on_lists())
    table.update(_own(table))
    table.update(rules())
    table.update(layer_rules())
    table.update(resample_rules())
    table.update(polynomial_rules())
    table.update(bessel_rules())
    table.update(create_rules())
    table.update(pair_rules())
    table.update(or_else(table, complex_rules()))
    return {op: rule for op, rule in table.items() if op not in _WHOLE}


def or_else(table, rules):
    """Rules that go before those of a table, which follow where one gives ``NotImplemented``."""

    def joined(first, second, *args, **kwargs):
        result = first(*args, **kwargs)
        return second(*args, **kwargs) if result is NotImplemented else result

    return {op: functools.partial(joined, rule, table[op]) if op in table else rule for op, rule in rules.items()}


# Ops on lists whose op on one tensor has another name.
_OF_ONE = {
    "copy": aten.copy.default,
    "maximum": aten.clamp_min,
    "minimum": aten.clamp_max,
    "zero": aten.zeros_like.default,
}


def on_lists():
    """Rules for ``_foreach_*``: the op on each member of the lists."""
    rules = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        one = packet.removeprefix("_foreach_")
        if namespace != "aten" or one == packet:
            continue
        op = getattr(getattr(aten, packet), overload or "default")
        # The numbers of a tensor are not known while a graph is captured.
        if op._schema.is_mutable or any(argument.name == "scalars" and argument.type.kind() == "TensorType" for argument in op._schema.arguments):
            continue
        if one == "norm":
            rules[op] = _norms
        elif one in ("addcmul", "addcdiv"):
            rules[op] = functools.partial(_products_added, getattr(aten, one))
        elif one in _OF_ONE or hasattr(aten, one):
            rules[op] = functools.partial(_each, _OF_ONE.get(one) or getattr(aten, one))
    return rules


def _each(one, *args, non_blocking=False, **kwargs):
    """An op of the members of lists; arguments that are no lists are for all of them."""
    count = max(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    return [one(*(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs) for i in range(count)]


def _products_added(one, tensors, firsts, seconds, value=1):
    values = value if isinstance(value, (list, tuple)) else [value] * len(tensors)
    return [one(x, y, z, value=factor) for x, y, z, factor in zip(tensors, firsts, seconds, values)]


def _norms(tensors, ord=2, dtype=None):
    return [aten.linalg_vector_norm(x, ord, dtype=dtype) for x in tensors]


def _own(table):
    """Rules for ops that core ATen's table leaves whole, or spells out with other strides than they have."""
    return {
        aten.max_unpool2d.default: functools.partial(_max_unpool2d, table[aten.max_unpool2d.default]),
        **{op: functools.partial(_padded, table[op]) for op in (getattr(aten, name).default for name in _PADS)},
        **{op: functools.partial(_pad_felt, table[op]) for op in (aten.reflection_pad2d_backward.default, aten.reflection_pad3d_backward.default)},
        aten.dist.default: _dist,
        aten._cdist_forward.default: _cdist,
        aten._cdist_backward.default: _cdist_backward,
        aten._trilinear.default: _trilinear,
        aten.as_strided_copy.default: lambda x, size, stride, storage_offset=None: aten.as_strided(x, size, stride, storage_offset).clone(
            memory_format=torch.contiguous_format
        ),
        aten.searchsorted.Tensor: _searchsorted,
        aten.index_fill.int_Scalar: _index_fill,
        aten.index_fill.int_Tensor: _index_fill,
        **{op: functools.partial(_linspace, rule) for op, rule in table.items() if op._schema.name == "aten::linspace"},
    }


# Pads whose rule of PyTorch's gives row-major results, and whose kernel those in the order of the image.
_PADS = ("reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d")


def _padded(rule, x, padding):
    return rule(x, padding).contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


def _pad_felt(rule, grad, x, padding):
    return rule(grad, x, padding).contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


def _max_unpool2d(rule, x, indices, output_size):
    out = rule(x, indices, output_size)
    return out.contiguous(memory_format=torch._prims_common.suggest_memory_format(x)) if x.ndim == 4 else out


def _linspace(rule, start, end, steps, *, dtype=None, device=None, **kwargs):
    """Whole numbers by double steps from both ends, which are made whole first: as PyTorch's kernel does it, and its rule does not."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or not isinstance(steps, int) or steps < 2:
        return rule(start, end, steps, dtype=dtype, device=device, **kwargs)
    start, end = (x.to(dtype).double() if isinstance(x, torch.Tensor) else float(int(x)) for x in (start, end))
    step = (end - start) / (steps - 1)
    places = torch.arange(steps, dtype=torch.float64, device=device)
    return torch.where(places < steps // 2, start + step * places, end - step * (steps - 1 - places)).to(dtype)


def _index_fill(x, dim, index, value):
    """A choice by a mask of the places. PyTorch's rule writes into a new tensor where strides are not those of a plain one, which no
    functional graph may."""
    sizes = [1] * max(x.ndim, 1)
    sizes[dim] = x.shape[dim] if x.ndim else 1
    places = torch.zeros(sizes[dim], dtype=torch.bool, device=x.device)
    places = aten.index_put(places, [index.reshape(-1)], torch.ones((), dtype=torch.bool, device=x.device))
    places = places.reshape(sizes if x.ndim else ())
    value = value.to(x.dtype) if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    return torch.where(places, value, x)


def _dist(x, y, p=2):
    return aten.linalg_vector_norm(x - y, p)


def _cdist(x, y, p, compute_mode):
    """Distances of all pairs. Large ones between points are PyTorch's, by a product."""
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    by_product = p == 2 and (compute_mode == 1 or (compute_mode in (0, None) and (_is_over(x.shape[-2], 25) or _is_over(y.shape[-2], 25))))
    if by_product or any(map(_is_zero, (*x.shape, *y.shape))):
        return NotImplemented
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    return aten.linalg_vector_norm(difference, p, [difference.ndim - 1])


def _cdist_backward(grad, x, y, p, cdist):
    if not (p in (1, 2, math.inf) or p > 2) or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    grad, far = grad.unsqueeze(-1), cdist.unsqueeze(-1)
    if p == 1:
        felt = difference.sign() * grad
    elif p == math.inf:
        felt = torch.where(difference.abs() == far, difference.sign() * grad, 0)
    elif p == 2:
        felt = difference * torch.where(far == 0, 0, grad / far)
    else:
        felt = difference * difference.abs() ** (p - 2) * torch.where(far == 0, 0, grad / far ** (p - 1))
    return felt.sum(-2)


def _is_over(size, bound):
    return not isinstance(size, int) or size > bound


def _is_zero(size):
    return isinstance(size, int) and size == 0


def _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """A sum of products of three tensors, each with axes of size one where it has none of the others' axes."""

    def expanded(x, axes):
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    product = expanded(i1, expand1) * expanded(i2, expand2) * expanded(i3, expand3)
    return product.sum(sumdim) if sumdim else product


# Up to so many boundaries, comparing with all of them takes less than looking at some of them.
_FEW_BOUNDARIES = 64
# Up to so many, a search by halves is spelled out.
_MOST_BOUNDARIES = 1 << 24


def _searchsorted(boundaries, x, *, out_int32=False, right=False, side=None, sorter=None):
    size = boundaries.shape[-1] if boundaries.ndim else 0
    if boundaries.ndim == 0 or _is_over(size, _MOST_BOUNDARIES) or (boundaries.ndim > 1 and x.ndim != boundaries.ndim):
        return NotImplemented
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    after = right or side == "right"
    dtype = torch.int32 if out_int32 else torch.int64

    def is_before(boundaries):
        if x.dtype.is_floating_point:
            # Not a number is after everything.
            return ~(boundaries > values) if after else ~(boundaries >= values)
        return boundaries <= values if after else boundaries < values

    if not _is_over(size, _FEW_BOUNDARIES):
        values = x.unsqueeze(-1)
        return is_before(boundaries if boundaries.ndim == 1 else boundaries.unsqueeze(-2)).sum(-1, dtype=dtype)
    # So many boundaries are before a value for certain; the next power of two is tried as long as there are so many.
    values, count = x, torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for bit in reversed(range(size.bit_length())):
        tried = count + (1 << bit)
        at = (tried - 1).clamp(max=size - 1)
        found = boundaries[at] if boundaries.ndim == 1 else boundaries.gather(-1, at)
        count = torch.where((tried <= size) & is_before(found), tried, count)
    return count.to(dtype)
