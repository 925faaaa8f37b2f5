"""Results of single ops that were once not PyTorch's."""

import copy

import pytest
import torch
from conftest import assert_close, check

import kiln


@torch.no_grad()
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_mask_among_other_indices(accumulate):
    def function(x, index, mask, value):
        return torch.ops.aten.index_put(x, [None, index, mask], value, accumulate)

    mask = torch.tensor([True, True, False])
    report = check(function, torch.randn(1, 2, 3), torch.tensor([0, 1]), mask, torch.randn([]), native=False)
    assert any("a mask among other indices" in reason for reason in report.fallbacks)


@torch.no_grad()
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_mask_alone(accumulate):
    mask = torch.tensor([True, True, False])
    check(lambda x, mask: torch.index_put(x, [mask], torch.tensor(2.0), accumulate), torch.randn(3, 2), mask)


@torch.no_grad()
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_adaptive_pools_of_integers_are_errors(axes, kind):
    pool = getattr(torch.nn, f"Adaptive{kind}Pool{axes}d")(5)
    compiled = torch.compile(lambda x: pool(x.argmax(1)), backend="kiln", fullgraph=True)
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        compiled(torch.randn([1] * (axes + 2)))


@torch.no_grad()
def test_select_scatter_keeps_strides():
    for x in (torch.randn(4, 6).t(), torch.randn(6, 8)[:, ::2]):
        check(lambda x, part: torch.select_scatter(x, part, 0, 1), x, torch.randn(4))


@torch.no_grad()
def test_a_window_larger_than_what_it_is_in():
    x = torch.randn(1, 2, 3)
    for included in (False, True):
        check(lambda x: torch.nn.functional.avg_pool2d(x, (4, 5), (4, 4), (0, 1), ceil_mode=True, count_include_pad=included), x)
    check(lambda x: torch.nn.functional.max_pool2d(x, 4, 4, ceil_mode=True, return_indices=True), x)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(12,), (5, 16), (4, 6, 9)])
def test_fourier_transforms(sizes):
    check(lambda x: (torch.fft.fftn(x), torch.fft.ifftn(x).real, torch.fft.irfftn(torch.fft.rfftn(x), x.shape)), torch.randn(sizes))


@torch.no_grad()
def test_complex_numbers_that_are_conjugated_when_read():
    z = torch.randn(3, 4, dtype=torch.complex64)
    check(lambda z: (z.conj() * z, (z + z.conj()).real, z - 1, -z), z)
    check(lambda z: ((z * 2).conj(), z * 2), z)
    check(lambda z: ((z * 2).conj().imag + 1, (z * 3).conj().imag), z)
    check(lambda z: z + 1, z.conj(), native=False)
    check(lambda z: z.conj(), z)


@torch.no_grad()
def test_ops_on_lists():
    def function(xs, ys):
        sums = torch._foreach_add(xs, ys, alpha=2)
        torch._foreach_mul_(xs, 1.5)
        products = torch._foreach_addcmul(xs, ys, sums, value=0.5)
        quotients = torch._foreach_addcdiv(xs, ys, sums, [1.0, 2.0])
        powers = torch._foreach_pow(2.0, ys)
        return [sums, products, quotients, powers, torch._foreach_norm(products), torch._foreach_maximum(xs, 0.1)]

    def lists():
        return [torch.randn(3, 2), torch.randn(5)]

    report = check(function, lists(), lists())
    assert report.programs == 1


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_optimizers_over_lists_run_in_kiln(optimizer):
    mine = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
    theirs = copy.deepcopy(mine)
    ways = [torch.compile, lambda step, backend: step]
    for parameters, way in zip((mine, theirs), ways):
        step = way(optimizer(parameters, lr=0.1, foreach=True).step, backend="kiln")
        for factor in (1.0, -0.5):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, factor)
            step()
    assert_close([p.detach() for p in mine], [p.detach() for p in theirs])
    assert not kiln.report().fallbacks


@torch.no_grad()
def test_statistics_of_short_floats():
    def function(x, weight, bias, mean, variance):
        return torch.nn.functional.layer_norm(x, [4]), torch.native_batch_norm(x, weight, bias, mean, variance, True, 0.5, 1e-5)

    vectors = [torch.rand(3).bfloat16() + 0.5 for _ in range(4)]
    check(function, torch.randn(2, 3, 4).bfloat16(), *vectors, tolerance=1.6e-2)


@torch.no_grad()
def test_factors_that_a_short_float_does_not_hold():
    x = torch.randn(256).bfloat16()
    for function in (lambda x: x * 3.4445, lambda x: x * torch.tensor(3.4445), lambda x: x / 3.4445):
        check(function, x, tolerance=0)
    check(lambda x: torch.addmm(x, x, x, beta=-4.775, alpha=2.0315), torch.randn(48, 48).bfloat16(), tolerance=1.6e-2)


def test_a_real_part_beside_its_complex_number():
    def function(x, y):
        z = torch.complex(x * 2, y)
        return z, z.real, z.imag

    with torch.no_grad():
        check(function, torch.randn([]), torch.randn([]))
        check(function, torch.randn(3, 2).t(), torch.randn(2, 3))


@torch.no_grad()
@pytest.mark.parametrize("keep", [False, True])
def test_the_norm_of_one_number_does_not_overflow(keep):
    check(lambda x: torch.linalg.vector_norm(x, -41.0, 1, keep), torch.randn(4, 1, 4) / 100)


@torch.no_grad()
def test_views_of_a_part_of_an_arguments_memory():
    def function(x):
        part = x.view(-1).view(torch.float16).as_strided((2, 5), (1, 1))
        return part.view(torch.bfloat16).as_strided((10, 10), (1, 1))

    x = torch.randn(10, 10, dtype=torch.bfloat16)
    check(function, x)
    assert torch.compile(function, backend="kiln")(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@torch.no_grad()
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p):
    check(lambda x, y: (torch.cdist(x, y, p), torch.dist(x[:1], y[:1], p)), torch.randn(7, 3), torch.randn(5, 3))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, float("inf")])
def test_gradients_of_distances(p):
    x, y = torch.randn(7, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    y.data[2] = x.data[1]
    compiled = torch.compile(torch.cdist, backend="kiln")
    (torch.cdist(x, y, p) ** 2).sum().backward()
    want = [x.grad, y.grad]
    x.grad = y.grad = None
    (compiled(x, y, p) ** 2).sum().backward()
    assert_close([x.grad, y.grad], want)
    assert not kiln.report().fallbacks


@torch.no_grad()
def test_a_bilinear_layer():
    check(torch.nn.Bilinear(3, 4, 5), torch.randn(2, 6, 3), torch.randn(2, 6, 4))


@torch.no_grad()
@pytest.mark.parametrize("right", [False, True])
def test_searches_among_few_boundaries(right):
    boundaries = torch.tensor([-1.0, 0.0, 0.0, 0.5, float("inf")])
    x = torch.tensor([[-2.0, 0.0, 0.5], [float("inf"), float("nan"), 7.0]])
    check(lambda b, x: torch.searchsorted(b, x, right=right), boundaries, x)
    check(lambda b, x: torch.searchsorted(b, x, right=right, out_int32=True), boundaries.repeat(2, 1), x)


@torch.no_grad()
def test_strides_of_unpooled_images():
    x, indices = torch.nn.functional.max_pool2d(torch.randn(1, 2, 6, 6), 2, return_indices=True)
    x, indices = (t.to(memory_format=torch.channels_last) for t in (x, indices))
    check(lambda x, indices: torch.nn.functional.max_unpool2d(x, indices, 2), x, indices)


@torch.no_grad()
def test_arguments_that_are_conjugated_when_they_are_read():
    x, y = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    want = torch.view_as_real(x.conj() * y)
    compiled = torch.compile(lambda x, y: torch.view_as_real(x * y), backend="kiln")
    assert_close(compiled(x.conj(), y), want)
    assert_close(torch.compile(lambda x: x.clone() * 2, backend="kiln")(x.conj()), (x.conj() * 2).resolve_conj())
    assert_close(torch.compile(lambda x: x * 2 + 1, backend="kiln")(torch._neg_view(y.imag)), y.imag * -2 + 1)
    assert not kiln.report().fallbacks


@torch.no_grad()
def test_an_argument_that_is_conjugated_when_it_is_read_is_overwritten():
    x, y = torch.randn(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    want = x.clone()
    want.conj().mul_(y)
    torch.compile(lambda x, y: x.mul_(y), backend="kiln")(x.conj(), y)
    assert_close(x, want)


@torch.no_grad()
@pytest.mark.parametrize("start, end, steps", [(4.3, -3, 50), (0, 7, 50), (-2.9, 7.9, 11), (3, 3, 2), (5, 1, 1)])
def test_whole_numbers_between_two_ends(start, end, steps):
    check(lambda x: torch.linspace(start, end, steps, dtype=torch.int64) + x, torch.zeros((), dtype=torch.int64))
    check(lambda low, high: torch.linspace(low, high, steps, dtype=torch.int32), torch.tensor(start), torch.tensor(end), native=False)


@torch.no_grad()
@pytest.mark.parametrize("first, second", [(torch.complex64, torch.complex128), (torch.complex64, torch.float64), (torch.float64, torch.complex64)])
def test_products_of_complex_numbers_of_two_precisions(first, second):
    x, y = torch.randn(2, 5, dtype=first), torch.randn(2, 5, dtype=second)
    check(lambda x, y: torch.view_as_real(x * y), x, y)
    torch._dynamo.reset()
    # A scalar of the larger precision does not widen the other.
    check(lambda x, y: torch.view_as_real(x * y[0, 0]), x, y)


@torch.no_grad()
def test_sums_of_complex_numbers():
    x = torch.randn(3, 4, 5, dtype=torch.complex64)
    check(lambda x: [torch.view_as_real(y) for y in (x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.sum())], x)


@torch.no_grad()
@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_running_extrema_with_their_places(name, dtype):
    """Of equal elements the last is meant, and a NaN stays."""
    x = torch.randint(-3, 4, (3, 17, 2)).to(dtype)
    if dtype.is_floating_point:
        x[1, 5, 0] = float("nan")
    for axis in (0, 1, -1):
        torch._dynamo.reset()
        check(lambda x, axis=axis: tuple(getattr(torch, name)(x, axis)), x)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_gradients_of_running_extrema(name):
    x = torch.randn(4, 33, requires_grad=True)
    ahead = torch.randn(4, 33)

    def function(x):
        return (getattr(torch, name)(x * 2, 1).values * ahead).sum()

    (want,) = torch.autograd.grad(function(x), x)
    (got,) = torch.autograd.grad(torch.compile(function, backend="kiln", fullgraph=True)(x), x)
    assert_close(got, want, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_whole_numbers_without_a_sign_are_moved(dtype):
    """Elements that no signed number of their width has are what they were."""
    x = (torch.arange(12) * 5003 + 2 ** (8 * dtype.itemsize - 1)).to(torch.int64).to(dtype).view(3, 4)

    def moved(x):
        return x.t().contiguous(), x[1:, ::2].clone(), torch.cat([x, x]).reshape(-1), x.flip(0), torch.stack([x[0], x[2]], 1), x.expand(2, 3, 4).contiguous()

    got = torch.compile(moved, backend="kiln", fullgraph=True)(x)
    for one, other in zip(got, moved(x)):
        assert one.dtype == dtype and one.shape == other.shape and one.tolist() == other.tolist()
    assert kiln.report().graphs == 1 and not kiln.report().fallbacks, str(kiln.report())
