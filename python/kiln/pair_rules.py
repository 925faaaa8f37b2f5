"""Rules for distances of all pairs, ops of a number and a tensor, and smaller ops of layers and their derivatives."""

import math

import torch

aten = torch.ops.aten

_LONG = (torch.float32, torch.float64)


def pair_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten.rrelu_with_noise_backward.default: _rrelu_backward,
        aten.glu_jvp.default: _glu_jvp,
        aten._pdist_forward.default: _pdist,
        aten._pdist_backward.default: _pdist_backward,
        aten._aminmax.default: lambda x: (x.amin(), x.amax()),
        aten._aminmax.dim: lambda x, dim, keepdim=False: (x.amin(dim, keepdim), x.amax(dim, keepdim)),
        aten.bucketize.Scalar: lambda x, boundaries, **given: _placed(boundaries, x, **given),
        aten.searchsorted.Scalar: _placed,
        **{getattr(aten, f"bitwise_{name}").Scalar_Tensor: _of_number(getattr(aten, f"bitwise_{name}").Tensor) for name in _BITWISE},
    }


_BITWISE = ("and", "or", "xor", "left_shift", "right_shift")


def _of_number(op):
    return lambda number, x: op(torch.full((), number, dtype=x.dtype, device=x.device), x)


def _placed(boundaries, number, **given):
    return aten.searchsorted.Tensor(boundaries, torch.full((), number, dtype=boundaries.dtype, device=boundaries.device), **given)


def _rrelu_backward(grad, x, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return grad * noise
    return aten.leaky_relu_backward(grad, x, (lower + upper) / 2, self_is_result)


def _glu_jvp(glu, x, dx, dim):
    gate = torch.sigmoid(x.chunk(2, dim)[1])
    of_value, of_gate = dx.chunk(2, dim)
    return of_value * gate + glu * (1 - gate) * of_gate


def _pairs(x):
    """The differences of all pairs of rows, and the numbers of the rows."""
    first, second = aten.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return x[first] - x[second], first, second


def _is_paired(x):
    return x.dtype in _LONG and x.ndim == 2 and all(isinstance(n, int) for n in x.shape) and x.shape[0] > 1 and x.shape[1] > 0


def _pdist(x, p=2):
    return aten.linalg_vector_norm(_pairs(x)[0], p, [1]) if _is_paired(x) else NotImplemented


def _pdist_backward(grad, x, p, pdist):
    if not _is_paired(x) or not (p in (1, 2, math.inf) or p > 2):
        return NotImplemented
    difference, first, second = _pairs(x)
    grad, far = grad.unsqueeze(1), pdist.unsqueeze(1)
    if p == 1:
        felt = difference.sign() * grad
    elif p == math.inf:
        felt = torch.where(difference.abs() == far, difference.sign() * grad, 0)
    else:
        # Of equal rows there is no direction.
        felt = torch.where(far == 0, 0, difference * difference.abs() ** (p - 2) * (grad / far ** (p - 1)))
    total = torch.zeros_like(x, memory_format=torch.contiguous_format)
    return aten.index_put(aten.index_put(total, [first], felt, True), [second], -felt, True)
