"""Complex numbers: ops in Kiln against eager, with gradients."""

import pytest
import torch


def written(a, b):
    spectrum = torch.zeros_like(a)
    spectrum[:, :2] = torch.einsum("ij,jk->ik", a[:, :3], b[:3, :2])
    return spectrum


OPS = {
    "abs": lambda a, b: a.abs(),
    "exp": lambda a, b: a.exp(),
    "log": lambda a, b: (a.log(), a.log2(), a.log10()),
    "sqrt": lambda a, b: (a.sqrt(), b.rsqrt()),
    "powers": lambda a, b: (a**2, a**3, a**0.5, a**-1),
    "circular": lambda a, b: (a.sin(), a.cos()),
    "hyperbolic": lambda a, b: (a.sinh(), a.cosh(), a.tanh(), a.sigmoid()),
    "divide": lambda a, b: (a / b, a / b.real, a.real / b, 1 / b, a / (1 + 2j)),
    "numbers": lambda a, b: (a * (1 + 2j), a + (3 - 1j), a - 2j, a.real * 1j, 2 * a),
    "products": lambda a, b: (a @ b, a.conj() @ b.mT, torch.bmm(a[None], b[None]), torch.addmm(a, a, b, beta=0.5, alpha=2)),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "sums": lambda a, b: (a.sum(), a.sum(0), a.mean(1), a.cumsum(0)),
    "norm": lambda a, b: (torch.linalg.vector_norm(a), torch.linalg.vector_norm(a, 1, dim=0)),
    "sign": lambda a, b: (a.sgn(), a.angle()),
    "indexed": lambda a, b: (a[torch.tensor([1, 0])], a.index_put((torch.tensor([0, 2]),), b[:2]), a.gather(0, torch.zeros(1, 4, dtype=torch.int64))),
    "written": written,
    "scattered": lambda a, b: a.scatter(0, torch.zeros(1, 4, dtype=torch.int64), b[:1]),
}


def native(f):
    torch._dynamo.reset()
    return torch.compile(f, backend="kiln", options={"fullgraph_native": True}, fullgraph=True)


def flat(value):
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_values_and_gradients(name, dtype):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(4, 4, dtype=dtype, generator=generator).requires_grad_(True) for _ in range(2))
    results = []
    for f in (OPS[name], native(OPS[name])):
        out = flat(f(a, b))
        loss = sum(torch.view_as_real(x).square().sum() if x.is_complex() else x.square().sum() for x in out)
        results.append([*out, *torch.autograd.grad(loss, (a, b), allow_unused=True)])
    tolerance = 2e-4 if dtype == torch.complex64 else 1e-9
    for want, got in zip(*results):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_gradients_that_are_conjugated_when_they_are_read():
    generator = torch.Generator().manual_seed(4)
    a, w = (torch.randn(3, 4, dtype=torch.complex64, generator=generator) for _ in range(2))
    a.requires_grad_(True)
    f = lambda a: (a.sin(), a.imag * 2)  # noqa: E731
    gradients = (w.conj(), w.conj().imag)
    assert gradients[0].is_conj() and gradients[1].is_neg()
    (want,), (got,) = (torch.autograd.grad(g(a), a, grad_outputs=gradients) for g in (f, native(f)))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    # And the other way round: results that are conjugated lazily, gradients of them that are not.
    f = lambda a: (a * a).conj()  # noqa: E731
    for gradient in (w, w.conj()):
        (want,), (got,) = (torch.autograd.grad(g(a), a, grad_outputs=gradient) for g in (f, native(f)))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_results_that_are_conjugated_when_they_are_read():
    a = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(5))
    for f in (lambda a: a.exp().conj(), lambda a: a.exp().conj().imag, lambda a: (a.exp().conj(), a.nonzero().sum())):
        torch._dynamo.reset()
        got, want = (torch.utils._pytree.tree_leaves(g(a))[0] for g in (torch.compile(f, backend="kiln"), f))
        assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_comparisons():
    a = torch.tensor([1 + 1j, 2, complex("nan"), complex("inf"), 1j])
    b = torch.tensor([1 + 1j, 2 + 1j, 0, complex("inf"), -1j])
    f = lambda a, b: (a == b, a != b, a == 2, a.isnan(), a.isinf(), a.isfinite())  # noqa: E731
    for want, got in zip(f(a, b), native(f)(a, b)):
        assert torch.equal(want, got)


def test_large_small_and_zero():
    """Sizes whose squares are no numbers, and the cut of the root."""
    a = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, 0, -4 + 0j, complex(-4, -0.0), -4 + 1e-3j, 3e20j])
    b = torch.tensor([2e30 - 1e30j, 2e-30 + 1e-30j, 1j, 2, -1j, 1e-20, 1e20])
    f = lambda a, b: (a.abs(), a.sqrt(), a / b)  # noqa: E731
    for want, got in zip(f(a, b), native(f)(a, b)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=0)


def test_what_is_no_number():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([100 + 0j, 1000j, complex(1, inf), complex(3e38, 3e38), 1 + 1j, 0j, complex(-inf, 1)])
    b = torch.tensor([0j, 0j, 1 + 0j, 1j, 0j, 2j, 1j])
    f = lambda a, b: (a.exp(), a.sin(), a.cos(), a.sinh(), a.cosh(), a.sqrt()[:4], (a / b)[:5])  # noqa: E731
    for want, got in zip(f(a, b), native(f)(a, b)):
        torch.testing.assert_close(got[:4], want[:4], rtol=1e-5, atol=1e-30, equal_nan=True)
    assert native(lambda z, a: torch.addmm(z, a, a, beta=0))(torch.full((2, 2), complex(nan, 0)), torch.eye(2, dtype=torch.complex64)).isfinite().all()
    powers = native(lambda a: a**1)(a)
    assert powers.data_ptr() != a.data_ptr()


def test_numbers_beside_short_floats():
    x = torch.tensor([1.0, -2.5], dtype=torch.bfloat16)
    f = lambda x: (x * 2j, x + 2j, x / 2j)  # noqa: E731
    for want, got in zip(f(x), native(f)(x)):
        torch.testing.assert_close(got, want)


def test_parts_of_conjugated_arguments():
    z = torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(6)).conj()
    f = lambda x: (x.conj().imag, x.conj().real, x * 2)  # noqa: E731
    for want, got in zip(f(z), native(f)(z)):
        torch.testing.assert_close(got, want)


def test_norms_in_another_precision():
    z = torch.randn(5, dtype=torch.complex64, generator=torch.Generator().manual_seed(7))
    f = lambda z: torch.linalg.vector_norm(z, dtype=torch.complex128)  # noqa: E731
    torch.testing.assert_close(native(f)(z), f(z))


def test_spectra():
    window = torch.hann_window(64)
    f = lambda x: torch.stft(x, 64, 16, window=window, return_complex=True).abs().pow(2).sum(-1)  # noqa: E731
    x = torch.randn(2, 800, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(native(f)(x), f(x), rtol=1e-4, atol=1e-4)
