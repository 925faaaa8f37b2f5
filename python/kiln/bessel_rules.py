"""Bessel functions: series of Chebyshev polynomials, whose coefficients are computed to thirty digits when they are first asked for.

Each function has two ranges. Near zero it is a series in the square of the place, or in the place; far from it a factor that says how
it grows or swings, times a series in the inverse of the place.
"""

import functools
import math

import torch

aten = torch.ops.aten

_NODES = 48
_DIGITS = 40


def bessel_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    functions = {
        "i0": lambda x: torch.exp(x.abs()) * _scaled_i(0, x),
        "special_i0e": lambda x: _scaled_i(0, x),
        "special_i1": lambda x: torch.exp(x.abs()) * _scaled_i(1, x),
        "special_i1e": lambda x: _scaled_i(1, x),
        "special_modified_bessel_i0": lambda x: torch.exp(x.abs()) * _scaled_i(0, x),
        "special_modified_bessel_i1": lambda x: torch.exp(x.abs()) * _scaled_i(1, x),
        "special_modified_bessel_k0": lambda x: _k(0, x, scaled=False),
        "special_modified_bessel_k1": lambda x: _k(1, x, scaled=False),
        "special_scaled_modified_bessel_k0": lambda x: _k(0, x, scaled=True),
        "special_scaled_modified_bessel_k1": lambda x: _k(1, x, scaled=True),
        "special_bessel_j0": lambda x: _j(0, x),
        "special_bessel_j1": lambda x: _j(1, x),
        "special_bessel_y0": lambda x: _y(0, x),
        "special_bessel_y1": lambda x: _y(1, x),
        "special_spherical_bessel_j0": _spherical,
    }
    return {getattr(aten, name).default: functools.partial(_in_floats, function) for name, function in functions.items()}


def _in_floats(function, x):
    if x.is_complex():
        return NotImplemented
    given = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    dtype = torch.promote_types(given, torch.float32)
    return function(x.to(dtype)).to(given)


def _series(kind, order, t, dtype):
    """A series at places between −1 and 1, by Clenshaw's recurrence."""
    coefficients = _coefficients(kind, order, torch.finfo(dtype).eps)
    after = before = torch.zeros_like(t)
    for coefficient in reversed(coefficients[1:]):
        after, before = coefficient + 2 * t * after - before, after
    return coefficients[0] + t * after - before


@functools.cache
def _coefficients(kind, order, epsilon):
    """The coefficients of a function of ``_kinds`` as far as they matter."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        function = _kinds(mpmath)[kind]
        angles = [mpmath.pi * (node + mpmath.mpf(1) / 2) / _NODES for node in range(_NODES)]
        values = [function(order, mpmath.cos(angle)) for angle in angles]
        found = [
            2 * mpmath.fsum(value * mpmath.cos(number * angle) for value, angle in zip(values, angles)) / _NODES for number in range(_NODES)
        ]
        found[0] /= 2
        least = max(map(abs, found)) * epsilon / 16
        count = max(number for number, value in enumerate(found) if abs(value) > least) + 1
        return tuple(float(value) for value in found[:count])


# Where far begins: of the growing functions, of the falling ones, and of the waves.
_FAR_I, _FAR_K, _FAR_J = 8.0, 2.0, 8.0


def _kinds(mp):
    """What the series stand for, by places from −1 to 1, in numbers of many digits."""

    def near_i(order, t):
        x = (t + 1) * _FAR_I / 2
        return mp.besseli(order, x) * mp.exp(-x) / (x if order else 1)

    def far_i(order, t):
        x = 2 * _FAR_I / (t + 1)
        return mp.besseli(order, x) * mp.exp(-x) * mp.sqrt(x)

    def near_k(order, t):
        x = mp.sqrt((t + 1) / 2) * _FAR_K
        if order == 0:
            return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)
        return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))

    def far_k(order, t):
        x = 2 * _FAR_K / (t + 1)
        return mp.besselk(order, x) * mp.exp(x) * mp.sqrt(x)

    def near_j(order, t):
        x = mp.sqrt((t + 1) / 2) * _FAR_J
        zeros = [mp.besseljzero(order, number) for number in (1, 2)]
        return mp.besselj(order, x) / mp.fprod(x * x - zero * zero for zero in zeros) / x**order

    def near_y(order, t):
        x = mp.sqrt((t + 1) / 2) * _FAR_J
        rest = mp.bessely(order, x) - 2 / mp.pi * mp.log(x) * mp.besselj(order, x)
        return (rest + 2 / (mp.pi * x)) / x if order else rest

    def wave(order, t):
        x = _FAR_J / mp.sqrt((t + 1) / 2)
        angle = x - mp.pi / 4 - order * mp.pi / 2
        root = mp.sqrt(mp.pi * x / 2)
        return x, angle, root * mp.besselj(order, x), root * mp.bessely(order, x)

    def far_p(order, t):
        _, angle, j, y = wave(order, t)
        return j * mp.cos(angle) + y * mp.sin(angle)

    def far_q(order, t):
        x, angle, j, y = wave(order, t)
        return (y * mp.cos(angle) - j * mp.sin(angle)) * x

    return dict(near_i=near_i, far_i=far_i, near_k=near_k, far_k=far_k, near_j=near_j, near_y=near_y, far_p=far_p, far_q=far_q)


def _scaled_i(order, x):
    """The modified function of the first kind, times e to the minus size of the place."""
    size = x.abs()
    near = _series("near_i", order, size * (2 / _FAR_I) - 1, x.dtype)
    far = _series("far_i", order, 2 * _FAR_I / size - 1, x.dtype) / torch.sqrt(size)
    return torch.where(size <= _FAR_I, near * x, far * torch.sign(x)) if order else torch.where(size <= _FAR_I, near, far)


def _k(order, x, scaled):
    """The modified function of the second kind: infinite at zero, no number below."""
    grown = torch.exp(x) * _scaled_i(order, x)
    near = _series("near_k", order, x * x * (2 / _FAR_K**2) - 1, x.dtype)
    near = near / x + torch.log(x / 2) * grown if order else near - torch.log(x / 2) * grown
    far = _series("far_k", order, 2 * _FAR_K / x - 1, x.dtype) / torch.sqrt(x)
    found = torch.where(x <= _FAR_K, near * torch.exp(x) if scaled else near, far if scaled else far * torch.exp(-x))
    return torch.where(x > 0, found, torch.where(x == 0, math.inf, math.nan))


# The squares of the first two zeros of J0 and of J1, so that rounding leaves these where they are.
_SQUARED_ZEROS = {0: (5.783185962946785, 30.471262343662087), 1: (14.681970642123893, 49.2184563216946)}


def _j(order, x):
    """The function of the first kind."""
    size = x.abs()
    near, far = _near_j(order, size), _wave(order, size)[0]
    found = torch.where(size <= _FAR_J, near, far)
    return torch.where(x < 0, -found, found) if order else found


def _near_j(order, size):
    square = size * size
    first, second = _SQUARED_ZEROS[order]
    near = (square - first) * (square - second) * _series("near_j", order, square * (2 / _FAR_J**2) - 1, size.dtype)
    return near * size if order else near


def _wave(order, x):
    """Both kinds far from zero."""
    inverse = _FAR_J / x
    t = 2 * inverse * inverse - 1
    p, q = _series("far_p", order, t, x.dtype), _series("far_q", order, t, x.dtype) / x
    angle = x - (math.pi / 4 + order * math.pi / 2)
    cos, sin, size = torch.cos(angle), torch.sin(angle), torch.sqrt(2 / (math.pi * x))
    return size * (p * cos - q * sin), size * (p * sin + q * cos)


def _y(order, x):
    """The function of the second kind: infinite at zero, no number below."""
    rest = _series("near_y", order, x * x * (2 / _FAR_J**2) - 1, x.dtype)
    near = rest * x - 2 / (math.pi * x) if order else rest
    near = near + 2 / math.pi * torch.log(x) * _near_j(order, x)
    found = torch.where(x <= _FAR_J, near, _wave(order, x)[1])
    return torch.where(x > 0, found, torch.where(x == 0, -math.inf, math.nan))


def _spherical(x):
    """The spherical function of the first kind: the sine by its angle. Near zero its series, which gives the limit."""
    square = x * x
    near = 1.0
    for number in range(13, 1, -2):
        near = 1 - square / (number * (number - 1)) * near
    found = torch.where(x.abs() < 0.5, near, torch.sin(x) / x)
    return torch.where(x.isinf(), 0.0, found)
