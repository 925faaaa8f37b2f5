"""Gradients of antialiased resizing: each axis is a product with a matrix of weights, and its gradient one with the transposed."""

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def resample_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten._upsample_bilinear2d_aa_backward.default: _of_bilinear,
        aten._upsample_bicubic2d_aa_backward.default: lambda *args: _backward(_cubic, 2.0, *args),
    }


def _of_bilinear(grad, *args):
    found = _backward(_linear, 1.0, grad, *args)
    return found if found is NotImplemented else found.contiguous(memory_format=suggest_memory_format(grad))


def _linear(x):
    return (1 - x).clamp(min=0)


def _cubic(x):
    """Keys' kernel with a = −1/2."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _scale(size, out, corners, factor):
    """Pixels of the image for each of the result."""
    if corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / factor if factor is not None and factor > 0 else size / out


def _weights(kernel, reach, size, out, scale, device):
    """What each pixel of the result (rows) takes of each of the image (columns)."""
    support = reach * max(scale, 1.0)
    center = scale * (torch.arange(out, dtype=torch.float64, device=device)[:, None] + 0.5)
    first = (center - support + 0.5).to(torch.int64).clamp(min=0)
    end = (center + support + 0.5).to(torch.int64).clamp(max=size)
    places = torch.arange(size, device=device)[None]
    weights = kernel(((places - center + 0.5) / max(scale, 1.0)).abs())
    weights = torch.where((places >= first) & (places < end), weights, 0.0)
    total = weights.sum(1, keepdim=True)
    return torch.where(total == 0, weights, weights / total)


def _backward(kernel, reach, grad, output_size, input_size, align_corners, scales_h=None, scales_w=None):
    if not all(isinstance(size, int) and size > 0 for size in (*grad.shape, *input_size)):
        return NotImplemented
    dtype = torch.promote_types(grad.dtype, torch.float32)
    rows, columns = (
        _weights(kernel, reach, size, out, _scale(size, out, align_corners, factor), grad.device).to(dtype)
        for size, out, factor in zip(input_size[2:], output_size, (scales_h, scales_w))
    )
    return (rows.t() @ (grad.to(dtype) @ columns)).to(grad.dtype)
