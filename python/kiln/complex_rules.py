"""Rules for ops of complex numbers, spelled out in their real and imaginary parts. Real arguments leave the ops as they are."""

import functools
import math

import torch

aten = torch.ops.aten


def complex_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    rules = {op: functools.partial(_of_complex, rule) for op, rule in _RULES.items()}
    for op in (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.cumsum.default):
        rules[op] = functools.partial(_part_by_part, op)
    for op in (aten.index.Tensor, aten.gather.default, aten.index_select.default):
        rules[op] = functools.partial(_part_by_part, op)
    rules[aten.index_put.default] = _index_put
    rules[aten.scatter.src] = functools.partial(_scatter, aten.scatter.src)
    rules[aten.scatter_add.default] = functools.partial(_scatter, aten.scatter_add.default)
    for op, own in ((aten.add.Tensor, _add), (aten.sub.Tensor, _subtract), (aten.mul.Tensor, _multiply)):
        rules[op] = functools.partial(_by_number, own)
    rules[aten.div.Tensor] = rules[aten.div.Scalar] = _divide
    rules[aten.mul.Scalar] = rules[aten.mul.Tensor]
    rules[aten.scatter.value] = _scatter_value
    rules[aten.full.default] = _full
    rules[aten.prod.default] = lambda x, *, dtype=None: _product_of_all(x, None, False, dtype)
    rules[aten.cumprod.default] = _products_so_far
    rules[aten.prod.dim_int] = lambda x, dim, keepdim=False, *, dtype=None: _product_of_all(x, dim, keepdim, dtype)
    rules[aten.scalar_tensor.default] = _scalar_tensor
    for op, rule in ((aten.mm.default, _product), (aten.bmm.default, _product)):
        rules[op] = functools.partial(rule, op)
    rules[aten.addmm.default] = functools.partial(_product_added, aten.mm)
    rules[aten.baddbmm.default] = functools.partial(_product_added, aten.bmm)
    return rules


def _is_complex(x):
    return isinstance(x, complex) or isinstance(x, torch.Tensor) and x.is_complex()


def _parts(x):
    """The real and the imaginary part; of a real number, too."""
    if isinstance(x, torch.Tensor):
        return torch.unbind(torch.view_as_real(x.resolve_conj()), -1) if x.is_complex() else (x, torch.zeros_like(x))
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0.0)


def _of_complex(rule, x, *args, **kwargs):
    return rule(x, *args, **kwargs) if x.is_complex() else NotImplemented


def _part_by_part(op, x, *args, **kwargs):
    dtype = kwargs.get("dtype")
    if not x.is_complex() or dtype is not None and dtype != x.dtype:
        return NotImplemented
    kwargs.pop("dtype", None)
    real, imaginary = _parts(x)
    return torch.complex(op(real, *args, **kwargs), op(imaginary, *args, **kwargs))


def _index_put(x, indices, values, accumulate=False):
    if not (x.is_complex() and values.is_complex()):
        return NotImplemented
    parts = (aten.index_put(part, indices, of, accumulate) for part, of in zip(_parts(x), _parts(values)))
    return torch.complex(*parts)


def _scatter(op, x, dim, index, source):
    if not x.is_complex():
        return NotImplemented
    return torch.complex(*(op(part, dim, index, of) for part, of in zip(_parts(x), _parts(source))))


def _scatter_value(x, dim, index, value):
    if not x.is_complex():
        return NotImplemented
    return torch.complex(*(aten.scatter.value(part, dim, index, of) for part, of in zip(_parts(x), _parts(value))))


# Products of more numbers are not spelled out.
_MOST_FACTORS = 4096


def _product_of_all(x, dim, keepdim, dtype):
    """Halves are multiplied until one number is left."""
    if not x.is_complex() or dtype not in (None, x.dtype):
        return NotImplemented
    if dim is None:
        x, dim = x.reshape(-1), 0
    size = x.shape[dim] if x.ndim else 1
    if not isinstance(size, int) or not 0 < size <= _MOST_FACTORS:
        return NotImplemented
    if x.ndim == 0:
        return x.clone()
    while size > 1:
        half = size // 2
        product = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([product, x.narrow(dim, size - 1, 1)], dim) if size % 2 else product
        size = x.shape[dim]
    return x.clone() if keepdim else x.squeeze(dim).clone()


def _products_so_far(x, dim, *, dtype=None):
    """Each number takes the product of as many before it, of twice as many in each turn."""
    size = x.shape[dim] if x.ndim else 1
    if not x.is_complex() or dtype not in (None, x.dtype) or not isinstance(size, int) or size > _MOST_FACTORS:
        return NotImplemented
    step = 1
    while step < size:
        longer = x.narrow(dim, step, size - step) * x.narrow(dim, 0, size - step)
        x, step = torch.cat([x.narrow(dim, 0, step), longer], dim), 2 * step
    return x.clone()


def _full(size, value, *, dtype=None, device=None, **_):
    if not isinstance(value, complex) or dtype is None or not dtype.is_complex:
        return NotImplemented
    return torch.complex(*(aten.full(size, part, dtype=dtype.to_real(), device=device) for part in _parts(value)))


def _scalar_tensor(value, *, dtype=None, device=None, **_):
    return _full([], value, dtype=dtype, device=device)


def _by_number(rule, x, y, *, alpha=1):
    """An op of a tensor and a complex number that is no tensor; of two tensors Kiln has a row."""
    if not isinstance(x, complex) and not isinstance(y, complex) or isinstance(alpha, complex):
        return NotImplemented
    real = torch.result_type(x, y).to_real()
    x, y = (part.to(real) if isinstance(part, torch.Tensor) and not part.is_complex() else part for part in (x, y))
    real, imaginary = rule(_parts(x), _parts(y), alpha)
    return torch.complex(*torch.broadcast_tensors(real, imaginary))


def _add(x, y, alpha):
    return x[0] + alpha * y[0], x[1] + alpha * y[1]


def _subtract(x, y, alpha):
    return x[0] - alpha * y[0], x[1] - alpha * y[1]


def _multiply(x, y, _alpha=1):
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _divide(x, y):
    if not _is_complex(x) and not _is_complex(y):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if isinstance(x, torch.Tensor):
        x = x.to(dtype if x.is_complex() else dtype.to_real())
    a, b = _parts(x)
    if not _is_complex(y):
        return torch.complex(*torch.broadcast_tensors(a / y, b / y))
    if not isinstance(y, torch.Tensor):
        y = torch.full((), y, dtype=dtype, device=x.device)
    c, d = _parts(y.to(dtype))
    # Smith's way: squares of large numbers would be infinite.
    wide = c.abs() >= d.abs()
    big, small = torch.where(wide, c, d), torch.where(wide, d, c)
    ratio = small / big
    divisor = big + small * ratio
    # Of zero and zero there is no ratio.
    nothing = big == 0
    real = torch.where(nothing, a / c.abs(), torch.where(wide, a + b * ratio, a * ratio + b) / divisor)
    imaginary = torch.where(nothing, b / d.abs(), torch.where(wide, b - a * ratio, b * ratio - a) / divisor)
    return torch.complex(*torch.broadcast_tensors(real, imaginary))


def _product(op, x, y, *args):
    if args or not (_is_complex(x) and _is_complex(y)):
        return NotImplemented
    (a, b), (c, d) = _parts(x), _parts(y)
    return torch.complex(op(a, c) - op(b, d), op(a, d) + op(b, c))


def _product_added(op, z, x, y, *, beta=1, alpha=1):
    if not (_is_complex(x) and _is_complex(y)):
        return NotImplemented
    product = op(x, y)
    product = product if alpha == 1 else product * alpha
    # What is not added may be no number.
    return product if beta == 0 else product + (z if beta == 1 else z * beta)


def _abs(x):
    return torch.hypot(*_parts(x))


def _times(size, factor):
    """A product that is zero where one factor is, though the other be infinite."""
    return torch.where((size == 0) | (factor == 0), 0.0, size * factor)


def _exp(x):
    real, imaginary = _parts(x)
    size = real.exp()
    return torch.complex(_times(size, imaginary.cos()), _times(size, imaginary.sin()))


def _log(x):
    real, imaginary = _parts(x)
    return torch.complex(torch.hypot(real, imaginary).log(), torch.atan2(imaginary, real))


def _sqrt(x):
    real, imaginary = _parts(x)
    # The part that is a sum, and the other by way of it: a difference would cancel. Eighths, so that the sum is not too large.
    root = 2 * (torch.hypot(real / 8, imaginary / 8) + real.abs() / 8).sqrt()
    other = torch.where(root == 0, 0.0, imaginary / (2 * torch.where(root == 0, 1.0, root)))
    other = torch.where(imaginary.isinf(), imaginary, other)
    right = real >= 0
    return torch.complex(torch.where(right, root, other.abs()), torch.where(right, other, torch.copysign(root, imaginary)))


def _reciprocal(x):
    return _divide(torch.ones((), dtype=x.dtype, device=x.device), x)


def _pow(x, exponent):
    """Powers that are halves of small whole numbers; a branch cut and zero make the others more than a product."""
    if isinstance(exponent, complex) or not math.isfinite(exponent):
        return NotImplemented
    if exponent == 1:
        return x.clone()
    twice = 2 * exponent
    if twice != int(twice) or not 0 < abs(twice) <= 8:
        return NotImplemented
    power, whole = None, int(abs(twice)) // 2
    for factor in [x] * whole + [_sqrt(x)] * (int(abs(twice)) % 2):
        power = factor if power is None else power * factor
    return power if exponent > 0 else _reciprocal(power)


def _sin(x):
    a, b = _parts(x)
    return torch.complex(_times(a.sin(), b.cosh()), _times(a.cos(), b.sinh()))


def _cos(x):
    a, b = _parts(x)
    return torch.complex(_times(a.cos(), b.cosh()), -_times(a.sin(), b.sinh()))


def _sinh(x):
    a, b = _parts(x)
    return torch.complex(_times(a.sinh(), b.cos()), _times(a.cosh(), b.sin()))


def _cosh(x):
    a, b = _parts(x)
    return torch.complex(_times(a.cosh(), b.cos()), _times(a.sinh(), b.sin()))


def _tanh(x):
    a, b = _parts(x)
    a, b = a.tanh(), b.tan()
    divisor = 1 + a * a * b * b
    return torch.complex(a * (1 + b * b) / divisor, b * (1 - a * a) / divisor)


def _sigmoid(x):
    return _reciprocal(_exp(-x) + 1)


def _norm(x, *args, dtype=None, **kwargs):
    x = x if dtype is None else x.to(dtype.to_complex())
    return aten.linalg_vector_norm(_abs(x), *args, **kwargs)


def _equal(x, y):
    if isinstance(y, (int, float)) and not isinstance(y, bool):
        y = complex(y)
    if not _is_complex(y):
        return NotImplemented
    (a, b), (c, d) = _parts(x), _parts(y)
    return (a == c) & (b == d)


def _different(x, y):
    same = _equal(x, y)
    return same if same is NotImplemented else ~same


_RULES = {
    aten.abs.default: _abs,
    aten.exp.default: _exp,
    aten.log.default: _log,
    aten.log2.default: lambda x: _log(x) * (1 / math.log(2)),
    aten.log10.default: lambda x: _log(x) * (1 / math.log(10)),
    aten.sqrt.default: _sqrt,
    aten.rsqrt.default: lambda x: _reciprocal(_sqrt(x)),
    aten.reciprocal.default: _reciprocal,
    aten.pow.Tensor_Scalar: _pow,
    aten.sin.default: _sin,
    aten.cos.default: _cos,
    aten.sinh.default: _sinh,
    aten.cosh.default: _cosh,
    aten.tanh.default: _tanh,
    aten.sigmoid.default: _sigmoid,
    aten.linalg_vector_norm.default: _norm,
    aten.isnan.default: lambda x: _parts(x)[0].isnan() | _parts(x)[1].isnan(),
    aten.isinf.default: lambda x: _parts(x)[0].isinf() | _parts(x)[1].isinf(),
    aten.eq.Tensor: _equal,
    aten.eq.Scalar: _equal,
    aten.ne.Tensor: _different,
    aten.ne.Scalar: _different,
}
