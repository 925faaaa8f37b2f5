"""Numbers that calls bring: factors, exponents, values. One program serves all of them, and none of their ops runs in PyTorch."""

import pytest
import torch
from conftest import assert_close

import kiln

F = torch.nn.functional


def filled(x, n):
    y = x.clone()
    y[1] = n
    y[x > 0] = n
    return y


FUNCTIONS = {
    "pow": lambda x, n: x**n,
    "power of an absolute value": lambda x, n: abs(n) ** x,
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "where": lambda x, n: torch.where(x > 0, n, x),
    "lerp": lambda x, n: torch.lerp(x, x.flip(0), n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "threshold": lambda x, n: F.threshold(x, n, 0.0),
    "addmm": lambda x, n: torch.addmm(torch.ones(4, 4), x, x.t(), alpha=n, beta=n),
    "baddbmm": lambda x, n: torch.baddbmm(torch.ones(1, 4, 4), x[None], x.t()[None], alpha=n, beta=-n),
    "add": lambda x, n: torch.add(x, x.exp(), alpha=n) - torch.sub(x, x.cos(), alpha=n),
    "scatter": lambda x, n: x.scatter(1, torch.zeros(4, 1, dtype=torch.int64), n),
    "fill": filled,
    "double": lambda x, n: x.double() * float(n) + n,
    "linspace": lambda x, n: torch.linspace(0, n, 5) + x,
    "xlogy": lambda x, n: torch.xlogy(x, abs(n) + 0.1),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_that_a_call_brings(name, kind):
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="kiln", fullgraph=True)
    x = torch.randn(4, 5).abs() if name == "pow" else torch.randn(4, 5)
    for n in (2, 3, 5, -3, 0):
        number = n if kind is int else n * 0.75
        assert_close(compiled(x, number), function(x, number), 1e-4)
    assert not kiln.report().fallbacks and not kiln.report().refused, str(kiln.report())


@torch.no_grad()
def test_a_factor_of_zero_leaves_out_what_is_no_number():
    def function(bias, x, beta):
        return torch.addmm(bias, x, x, beta=beta)

    compiled = torch.compile(function, backend="kiln", fullgraph=True)
    x = torch.randn(3, 3)
    for beta in (2, 3, 0):
        bias = torch.full((3,), float("nan") if beta == 0 else 1.0)
        assert_close(compiled(bias, x, beta), function(bias, x, beta))
    assert not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
def test_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        compiled = torch.compile(lambda x: x + torch.arange(3.0) + torch.linspace(0, 1, 3) + torch.ones(3) * torch.tensor(1.5), backend="kiln")
        assert_close(compiled(torch.zeros(3)), torch.arange(3.0) + torch.linspace(0, 1, 3) + 1.5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not kiln.report().fallbacks, str(kiln.report())


def test_products_of_complex_numbers():
    def function(x, y):
        return x.prod(), x.prod(1), x.prod(0, keepdim=True), y.prod(), x[:, :1].prod(1), x.cumprod(1), y.cumprod(0)

    compiled = torch.compile(function, backend="kiln", fullgraph=True)
    given = [torch.randn(shape, dtype=torch.complex64, requires_grad=True) for shape in ((3, 5), ())]
    got, want = compiled(*given), function(*given)
    assert_close(got, want)
    ahead = [torch.randn_like(part) for part in want]
    assert_close(torch.autograd.grad(got, given, ahead), torch.autograd.grad(want, given, ahead), 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())
    # So many are not spelled out.
    x = torch.polar(torch.ones(5000), torch.randn(5000))
    assert_close(torch.compile(torch.prod, backend="kiln")(x), x.prod(), 1e-3)
    assert any("of complex numbers" in reason for reason in kiln.report().fallbacks), str(kiln.report())


def test_tangents_of_arguments():
    """`dual_level` around a compiled function: programs would lose the tangents, so that PyTorch runs the graph."""
    import torch.autograd.forward_ad as forward_ad

    def function(x):
        return x.sin() * x

    compiled = torch.compile(function, backend="kiln", fullgraph=True)
    x = torch.randn(3)
    assert_close(compiled(x), function(x))
    for _ in range(2):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones(3))
            got, want = forward_ad.unpack_dual(compiled(dual)), forward_ad.unpack_dual(function(dual))
            assert_close(tuple(got), tuple(want))
    assert_close(compiled(x), function(x))
    assert kiln.report().refused == 1, str(kiln.report())
    assert any("tangents" in event.text for event in kiln.events())
    torch._dynamo.reset()
    with forward_ad.dual_level(), pytest.raises(Exception, match="tangents"):
        torch.compile(function, backend="kiln", options={"fullgraph_native": True})(x)
