"""Rules for ops that make tensors of numbers: places of triangles, ranges, windows and frequencies."""

import torch

aten = torch.ops.aten

_LONG = (torch.float32, torch.float64)


def create_rules():
    """Rules by op. One that gives ``NotImplemented`` leaves the op as it is."""
    return {
        aten.tril_indices.default: _tril_indices,
        aten.triu_indices.default: _triu_indices,
        aten.range.default: lambda start, end, **given: _range(start, end, 1, **given),
        aten.range.step: _range,
        aten.kaiser_window.default: _kaiser_window,
        aten.kaiser_window.periodic: _kaiser_window,
        aten.kaiser_window.beta: _kaiser_window,
        aten.fft_fftfreq.default: _fftfreq,
        aten.fft_rfftfreq.default: _rfftfreq,
    }


def _places(lengths, first, count, dtype, device):
    """Rows and columns of a triangle whose rows have these lengths and begin at these columns."""
    number = torch.arange(count, device=device)
    ends = lengths.cumsum(0)
    row = aten.searchsorted.Tensor(ends, number, right=True)
    column = number - (ends - lengths)[row] + first[row]
    return torch.stack([row, column]).to(dtype)


def _tril_indices(row, col, offset=0, *, dtype=None, layout=None, device=None, pin_memory=None):
    if not all(isinstance(n, int) for n in (row, col, offset)) or layout not in (None, torch.strided):
        return NotImplemented
    count = sum(min(max(at + offset + 1, 0), col) for at in range(row))
    if count == 0:
        return torch.empty(2, 0, dtype=dtype or torch.int64, device=device)
    lengths = (torch.arange(row, device=device) + (offset + 1)).clamp(0, col)
    return _places(lengths, torch.zeros_like(lengths), count, dtype or torch.int64, device)


def _triu_indices(row, col, offset=0, *, dtype=None, layout=None, device=None, pin_memory=None):
    if not all(isinstance(n, int) for n in (row, col, offset)) or layout not in (None, torch.strided):
        return NotImplemented
    count = sum(col - min(max(at + offset, 0), col) for at in range(row))
    if count == 0:
        return torch.empty(2, 0, dtype=dtype or torch.int64, device=device)
    first = (torch.arange(row, device=device) + offset).clamp(0, col)
    return _places(col - first, first, count, dtype or torch.int64, device)


def _range(start, end, step=1, *, dtype=None, layout=None, device=None, pin_memory=None):
    """As ``arange``, with its end."""
    dtype = dtype or torch.get_default_dtype()
    numbers = (start, end, step)
    if dtype not in (*_LONG, torch.int64) or layout not in (None, torch.strided) or not all(isinstance(n, (int, float)) for n in numbers):
        return NotImplemented
    if dtype == torch.int64 and not all(isinstance(n, int) for n in numbers) or step == 0 or (end - start) / step < 0:
        return NotImplemented
    places = torch.arange(int((end - start) / step) + 1, device=device)
    return places * step + start if dtype == torch.int64 else (places.double() * step + start).to(dtype)


def _kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    if not isinstance(window_length, int) or dtype not in _LONG or layout not in (None, torch.strided):
        return NotImplemented
    if window_length < 2:
        return torch.ones(window_length, dtype=dtype, device=device)
    count = window_length + 1 if periodic else window_length
    place = torch.arange(window_length, dtype=dtype, device=device) * (2 / (count - 1)) - 1
    ends = torch.full((), beta, dtype=dtype, device=device)
    return torch.special.i0(beta * (1 - place * place).clamp(min=0).sqrt()) / torch.special.i0(ends)


def _fftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    if not isinstance(n, int) or n < 1 or dtype not in _LONG or layout not in (None, torch.strided):
        return NotImplemented
    place = torch.arange(n, device=device)
    return torch.where(place < (n + 1) // 2, place, place - n).to(dtype) * (1.0 / (n * d))


def _rfftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    if not isinstance(n, int) or n < 1 or dtype not in _LONG or layout not in (None, torch.strided):
        return NotImplemented
    return torch.arange(n // 2 + 1, dtype=dtype, device=device) * (1.0 / (n * d))
