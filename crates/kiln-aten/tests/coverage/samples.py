"""Tensors for the cases of `reference.txt`."""

import math

import torch

def f(*shape, dtype=torch.float32, scale=1.0):
    """Floats of two decimals."""
    return (torch.randn(shape, dtype=torch.float64) * 100 * scale).round().div(100).to(dtype)


def distinct(*shape, dtype=torch.float32):
    """Floats without ties."""
    count = math.prod(shape)
    return ((torch.randperm(count).double() - count / 2) / 8).reshape(shape).to(dtype)


def positive(*shape, dtype=torch.float32):
    return (f(*shape, dtype=torch.float64).abs() + 0.1).to(dtype)


def c(*shape, dtype=torch.complex64):
    return torch.complex(f(*shape), f(*shape)).to(dtype)


def i(low, high, *shape, dtype=torch.int64):
    return torch.randint(low, high, shape).to(dtype)


def b(*shape):
    return torch.randint(0, 2, shape).bool()


nan, inf = math.nan, math.inf
specials = torch.tensor([-inf, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, inf, nan])
