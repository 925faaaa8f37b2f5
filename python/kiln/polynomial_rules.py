"""Orthogonal polynomials of a degree that is a number: by recurrence, or by their waves, as PyTorch's kernels do it."""

import math

import torch

aten = torch.ops.aten

# Degrees up to here are spelled out: each is a multiplication or two for each element.
_MOST_STEPS = 64


def polynomial_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    kinds = {"t": (_first, _wave_t), "u": (_second, _wave_u), "v": (_third, _wave_v), "w": (_fourth, _wave_w)}
    rules = {}
    for kind, (start, wave) in kinds.items():
        rules[f"special_chebyshev_polynomial_{kind}"] = _chebyshev(start, wave, 6 if kind == "t" else 8, shifted=False)
        rules[f"special_shifted_chebyshev_polynomial_{kind}"] = _chebyshev(start, wave, 6, shifted=True)
    rules["special_hermite_polynomial_h"] = _polynomial(lambda x: x + x, lambda k, x, p, q: (x + x) * q - 2 * k * p, _hermite_limit)
    rules["special_hermite_polynomial_he"] = _polynomial(lambda x: x, lambda k, x, p, q: x * q - k * p, _hermite_limit)
    rules["special_laguerre_polynomial_l"] = _polynomial(lambda x: 1 - x, lambda k, x, p, q: ((2 * k + (1 - x)) * q - k * p) / (k + 1))
    rules["special_legendre_polynomial_p"] = _polynomial(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) / (k + 1))
    return {getattr(aten, name).n_scalar: rule for name, rule in rules.items()}


def _hermite_limit(dtype):
    """Above this degree PyTorch's Hermite polynomials are not a number."""
    return 128 if dtype == torch.float32 else 512


def _polynomial(start, following, limit=None):
    """A polynomial by its recurrence: from 1 and ``start(x)`` on, ``following(k, x, p, q)`` is the one of degree k + 1."""

    def rule(x, n):
        found = _prepared(x, n)
        if found is NotImplemented:
            return found
        x, n = found
        if limit is not None and n > limit(x.dtype):
            return torch.full_like(x, math.nan)
        return NotImplemented if n > _MOST_STEPS else _recurrence(x, n, start, following)

    return rule


def _prepared(x, n):
    """The place as floats, and the degree; both have to be known well enough."""
    if type(n) not in (int, float) or x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return (x, int(n)) if x.dtype in (torch.float32, torch.float64) else NotImplemented


def _recurrence(x, n, start, following):
    if n < 0:
        return torch.zeros_like(x)
    p, q = torch.ones_like(x), start(x)
    if n == 0:
        return p
    for k in range(1, n):
        p, q = q, following(k, x, p, q)
    # Of degree 1 it may be the place itself, which no result of an op is.
    return q.clone() if q is x else q


def _chebyshev(start, wave, waves_above, shifted):
    """A Chebyshev polynomial: all kinds follow by the same recurrence, and are waves of an angle between −1 and 1."""

    def rule(x, n):
        found = _prepared(x, n)
        if found is NotImplemented or found[1] > _MOST_STEPS:
            return NotImplemented
        x, n = found
        x = x + x - 1 if shifted else x
        y = _recurrence(x, n, start, lambda _k, x, p, q: (x + x) * q - p)
        return torch.where(x.abs() < 1, wave(torch.acos(x), n), y) if n > waves_above else y

    return rule


def _first(x):
    return x


def _second(x):
    return x + x


def _third(x):
    return x + x - 1


def _fourth(x):
    return x + x + 1


def _wave_t(angle, n):
    return torch.cos(n * angle)


def _wave_u(angle, n):
    return torch.sin((n + 1) * angle) / torch.sin(angle)


def _wave_v(angle, n):
    return torch.cos((n + 0.5) * angle) / torch.cos(angle / 2)


def _wave_w(angle, n):
    return torch.sin((n + 0.5) * angle) / torch.sin(angle / 2)
