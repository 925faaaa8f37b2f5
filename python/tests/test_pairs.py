"""Losses with margins, distances of all pairs, and ops that make tensors of numbers: right, and none of them in PyTorch."""

import pytest
import torch
from conftest import assert_close, check
from torch import nn

import kiln

F = nn.functional
aten = torch.ops.aten


def trained(function, *inputs, tolerance=2e-5):
    """A function with gradients for its floats is right, and all of both graphs runs in Kiln."""
    outcomes = []
    for run in (lambda f: f, lambda f: torch.compile(f, backend="kiln", fullgraph=True)):
        given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        result = run(function)(*given)
        torch.manual_seed(7)
        result.backward(torch.rand_like(result))
        outcomes.append([result.detach(), *(x.grad for x in given if x.is_floating_point())])
    assert_close(outcomes[1], outcomes[0], tolerance)
    report = kiln.report()
    assert report.graphs == 2 and not report.fallbacks and not report.refused, str(report)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p, reduction):
    x, target, weight = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 2]), torch.rand(7)
    trained(lambda x, target: F.multi_margin_loss(x, target, p, 0.7, weight, reduction), x, target)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_distances_of_all_pairs(p):
    x = torch.randn(6, 5)
    x[4] = x[1]
    trained(lambda x: F.pdist(x, p), x)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 1), (5, 5)])
@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 9])
def test_places_of_triangles(shape, offset):
    check(lambda: (torch.tril_indices(*shape, offset), torch.triu_indices(*shape, offset, dtype=torch.int32)))


@torch.no_grad()
def test_numbers():
    check(lambda: (torch.range(1, 4), torch.range(0.0, 2.0, 0.3), torch.range(5, -4, -3)))
    check(lambda: (torch.fft.fftfreq(7, 0.5), torch.fft.fftfreq(8), torch.fft.rfftfreq(7), torch.fft.rfftfreq(10, 2.0)), tolerance=1e-7)
    check(lambda: (torch.kaiser_window(9), torch.kaiser_window(8, False), torch.kaiser_window(12, True, 5.5), torch.kaiser_window(1)))


@torch.no_grad()
def test_small_ops():
    x, whole = torch.randn(4, 6), torch.arange(-4, 5)
    check(lambda x: (*aten._aminmax(x), *aten._aminmax.dim(x, 1, True)), x)
    check(lambda x: (6 & x, 6 | x, 6 ^ x, aten.bitwise_left_shift.Scalar_Tensor(3, x.abs()), aten.bitwise_right_shift.Scalar_Tensor(99, x.abs())), whole)
    check(lambda x: (torch.bucketize(0.3, x), torch.bucketize(2, x, right=True), torch.searchsorted(x, 0.1, out_int32=True)), x[0].sort().values)
    check(lambda x, dx: aten.glu_jvp(F.glu(x, 1), x, dx, 1), x, torch.randn(4, 6))


def test_a_leaky_slope_that_is_drawn():
    """Of noise that is given, in training and not."""
    x, noise = torch.randn(5, 6), torch.rand(5, 6)
    for training in (True, False):
        check(lambda grad, x, noise: aten.rrelu_with_noise_backward(grad, x, noise, 0.1, 0.4, training, False), torch.randn(5, 6), x, noise)
