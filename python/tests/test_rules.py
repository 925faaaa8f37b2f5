"""Ops that are spelled out before Kiln sees them: right, and none of them in PyTorch."""

import math

import pytest
import torch
from conftest import assert_close, check
from torch import nn

import kiln

F = nn.functional
NAN, INF = math.nan, math.inf
ODD = torch.tensor([0.0, -0.0, 1.0, -1.5, 1e-40, -3e-39, 3.4e38, INF, -INF, NAN, 0.3, 7.0])


@pytest.mark.parametrize(
    "function",
    [torch.frexp, torch.angle, lambda x: torch.nextafter(x, x.flip(0)), lambda x: torch.nextafter(x, torch.zeros_like(x))],
    ids=["frexp", "angle", "nextafter", "nextafter to zero"],
)
def test_functions_of_bits(function):
    got = torch.compile(function, backend="kiln", fullgraph=True)(ODD)
    want = function(ODD)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert not kiln.report().fallbacks


@pytest.mark.parametrize("keepdim", [False, True])
def test_medians(keepdim):
    x = torch.randn(5, 7, 6)
    x[1, 2, 3] = x[2, 0, 1] = NAN
    for function in (torch.median, torch.nanmedian):
        check(lambda x: function(x, 1, keepdim), x)
        check(function, x)
    check(lambda x: torch.kthvalue(x, 3, 0, keepdim), torch.randn(5, 7))


@pytest.mark.parametrize("order", [0, 1])
def test_polygamma(order):
    check(lambda x: torch.polygamma(order, x), torch.tensor([0.01, 0.4, 0.6, 1.0, 5.5, 30.0, -0.3, -2.7]), tolerance=1e-4)


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate):
    index = torch.tensor([[0, 5], [-1, 7]])
    check(lambda x, y: torch.Tensor.put(x, index, y, accumulate), torch.randn(3, 4), torch.randn(2, 2))


def test_index_fill_keeps_strides():
    x = torch.randn(4, 10, 10)[:, ::2].transpose(0, 2)
    got = torch.compile(lambda x: x.index_fill(1, torch.tensor([0, -1]), 3.0), backend="kiln")(x)
    want = x.index_fill(1, torch.tensor([0, -1]), 3.0)
    assert torch.equal(got, want) and got.stride() == want.stride()


def gradients(function, *inputs):
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    result = function(*inputs)
    ahead = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
    return [result.detach(), *torch.autograd.grad(result, [x for x in inputs if x.requires_grad], ahead)]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags_of_embeddings(mode, padding):
    # The second and the last bag are empty.
    offsets = torch.tensor([0, 3, 3, 8])
    indices = torch.tensor([1, 2, 1, 4, 0, 2, 2, 1])
    given = [torch.randn(5, 6)] + ([torch.rand(8)] if mode == "sum" else [])

    def function(weight, each=None):
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding, per_sample_weights=each)

    assert_close(gradients(torch.compile(function, backend="kiln", fullgraph=True), *given), gradients(function, *given))
    assert not kiln.report().fallbacks, str(kiln.report())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_last_offset_ends_the_last_bag(mode):
    # The last two rows are in no bag.
    offsets = torch.tensor([0, 3, 3, 6])
    indices = torch.tensor([1, 2, 1, 4, 0, 2, 2, 1])
    weight = torch.randn(5, 6)

    def function(weight):
        return F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=True)

    got = gradients(torch.compile(function, backend="kiln", fullgraph=True), weight)
    expected = gradients(lambda weight: F.embedding_bag(indices[:6], weight, offsets, mode=mode, include_last_offset=True), weight)
    assert_close(got, expected)


@pytest.mark.parametrize("mode", [0, 1], ids=["sum", "mean"])
@pytest.mark.parametrize("padding", [-1, 2])
@torch.no_grad()
def test_all_that_the_op_of_bags_gives(mode, padding):
    weight, indices, offsets = torch.randn(5, 6), torch.tensor([1, 2, 1, 4, 0, 2]), torch.tensor([0, 3, 3])
    check(lambda *given: torch.ops.aten._embedding_bag(*given, False, mode, False, None, False, padding)[:3], weight, indices, offsets)


@pytest.mark.parametrize("shape, dims", [((2, 12, 8), (1,)), ((4, 6, 8), (0, 2)), ((4, 6, 8), (0, 1)), ((3, 5), (0,)), ((4, 6, 8), (1, 2))])
@torch.no_grad()
def test_real_transforms_have_the_strides_of_the_kernel(shape, dims):
    for x in (torch.randn(shape), torch.randn(shape).transpose(0, -1)):
        check(lambda x: torch.fft.rfftn(x, dim=dims), x, tolerance=1e-4)
        torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", [(5, 7), (4, 5, 3)], ids=["images", "volumes"])
def test_gradients_of_samples(mode, padding, corners, sizes):
    torch.manual_seed(1)
    given = torch.randn(2, 3, *sizes), torch.rand(2, *[size + 1 for size in sizes], len(sizes)) * 3.4 - 1.7

    def function(x, grid):
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)

    assert_close(gradients(torch.compile(function, backend="kiln", fullgraph=True), *given), gradients(function, *given), 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())


def test_shifts_and_fake_quantisation():
    a, b = torch.randint(-50, 50, (20,)), torch.randint(0, 9, (20,))
    check(lambda a, b: (a << 2, a >> 1, a << b, a >> b), a, b)
    x = torch.tensor([-20.0, -1.26, -0.025, 0.0, 0.024, 0.075, 3.3, 50.0])
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127), x)
    scale = 0.6405920704482397
    halves = torch.cat([(torch.arange(-40, 40) + 0.5) * scale, torch.tensor([NAN, INF, -INF])])
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, scale, 0, -20, 127), halves)


def test_random_tensors_like_others():
    x = torch.linspace(-1, 1, 4000).reshape(20, 200)
    compiled = torch.compile(lambda x: (torch.rand_like(x), torch.randn_like(x), torch.normal(x, 2.0)), backend="kiln", fullgraph=True)
    torch.manual_seed(1)
    uniform, normal, around = compiled(x)
    assert not kiln.report().fallbacks
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.08 and abs(normal.std() - 1) < 0.06
    assert abs((around - x).mean()) < 0.15 and abs((around - x).std() - 2) < 0.12
    torch.manual_seed(1)
    assert all(map(torch.equal, compiled(x), (uniform, normal, around)))


def test_random_numbers_of_the_generator_on_request():
    x = torch.randn(3, 50)
    compiled = torch.compile(lambda x: torch.rand_like(x) + torch.randn_like(x), backend="kiln", options={"fallback_random": True})
    torch.manual_seed(2)
    got = compiled(x)
    torch.manual_seed(2)
    assert torch.equal(got, torch.rand_like(x) + torch.randn_like(x))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_modes(dtype, dim):
    x = torch.randint(0, 3, (9, 7, 5)).to(dtype)
    check(lambda x: (*x.mode(dim), x.mode(dim, keepdim=True).values), x)
    check(lambda x: x.mode(dim).values, torch.tensor([[[1.0, float("nan"), 1.0, float("nan")]]]))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bfloat16])
def test_the_median_of_all(dtype):
    for count in (1, 6, 7):
        check(torch.median, (torch.randn(count, 3) * 40).to(dtype))


@torch.no_grad()
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
def test_windows_of_signals(name):
    window = getattr(torch, f"{name}_window")
    for periodic in (True, False):
        for length in (0, 1, 2, 7, 8):
            torch._dynamo.reset()
            check(lambda x, length=length, periodic=periodic: window(length, periodic=periodic) + x, torch.ones(()))


def test_tangents_that_were_not_given():
    def function(x):
        return torch.func.hessian(lambda x: (torch.tanh(x) ** 2).sum())(x)

    check(function, torch.randn(4), tolerance=1e-4)


@torch.no_grad()
def test_shifts_of_bytes():
    x, by = torch.arange(256, dtype=torch.uint8), torch.tensor([[0], [1], [7], [8], [20], [255]], dtype=torch.uint8)
    check(lambda x: (x << 1, x >> 3, x << 8, x >> 9), x)
    check(lambda x, by: (x << by, x >> by), x[:40], by[:4])


@torch.no_grad()
def test_products_of_bytes():
    """By hand, as for quantised weights and activations."""
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((24, 64), (40, 64)))
    check(lambda x, w: torch._int_mm(x, w.t()), x, w)
    check(lambda x, w: (torch._int_mm(x, w.t()).float() * 0.01).relu(), x, w)
    scales = torch.rand(40)
    check(torch._weight_int8pack_mm, torch.randn(24, 64), w, scales, tolerance=1e-4)
    check(torch._weight_int8pack_mm, torch.randn(3, 64).bfloat16(), w, scales.bfloat16(), tolerance=1e-2)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_antialiased_resizing(mode, layout):
    ways = [dict(size=(13, 9)), dict(size=(30, 5)), dict(size=(1, 1)), dict(scale_factor=(0.37, 1.6)), dict(size=(13, 9), align_corners=True)]
    for way in ways:
        torch._dynamo.reset()

        def function(x, way=way):
            return torch.nn.functional.interpolate(x, mode=mode, antialias=True, **way)

        x = torch.randn(2, 3, 20, 17, dtype=torch.float64).to(memory_format=layout).requires_grad_()
        got, want = torch.compile(function, backend="kiln", fullgraph=True, options={"fullgraph_native": True})(x), function(x)
        ahead = torch.randn_like(want)
        assert_close(torch.autograd.grad(got, x, ahead), torch.autograd.grad(want, x, ahead), 1e-9)


@pytest.mark.parametrize("name", [name for name in dir(torch.special) if "polynomial" in name])
@torch.no_grad()
def test_orthogonal_polynomials(name):
    polynomial = getattr(torch.special, name)
    # At its ends and close to them, and beyond.
    x = torch.cat([torch.linspace(-1.5, 1.5, 61), torch.tensor([0.0, 1.0, -1.0, 1e-3, 0.9999, -0.9999])])
    for degree in (-1, 0, 1, 2, 7, 9, 15):
        for given, tolerance in ((x, 3e-4), (x.double(), 1e-9)):
            torch._dynamo.reset()
            check(lambda x, degree=degree: polynomial(x, degree), given, tolerance=tolerance)
    torch._dynamo.reset()
    check(lambda x: polynomial(x, 2.9), torch.arange(3))


@pytest.mark.parametrize("sizes, padding", [((5,), (2, 3)), ((1,), (1, 2)), ((4, 5), (1, 2, 0, 3)), ((4, 5), (0, 0, 1, 1)), ((3, 4, 5), (1, 0, 2, 1, 0, 2))])
@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_gradients_of_pads(sizes, padding, mode):
    if mode == "reflect" and (sizes == (1,) or padding == (1, 2, 0, 3)):
        padding, sizes = (1, 2, 0, 2), (4, 5)
    formats = {2: (torch.contiguous_format, torch.channels_last), 3: (torch.contiguous_format, torch.channels_last_3d)}
    for layout in formats.get(len(sizes), (torch.contiguous_format,)):
        torch._dynamo.reset()
        x = torch.randn(2, 3, *sizes).to(memory_format=layout).requires_grad_()

        def function(x):
            return F.pad(x, padding, mode=mode)

        got, want = torch.compile(function, backend="kiln", fullgraph=True)(x), function(x)
        assert_close(got, want)
        ahead = torch.randn_like(want)
        assert_close(torch.autograd.grad(got, x, ahead), torch.autograd.grad(want, x, ahead))
    assert not kiln.report().fallbacks, str(kiln.report())


def test_gradients_of_pads_of_any_size():
    def function(x):
        return F.pad(x, (1, 2, 0, 1), mode="replicate") * 2

    compiled = torch.compile(function, backend="kiln", fullgraph=True, dynamic=True)
    for height in (4, 6, 9):
        x = torch.randn(2, 3, height, height + 1, requires_grad=True)
        got, want = (torch.autograd.grad(run(x).sin().sum(), x) for run in (compiled, function))
        assert_close(got, want)
    assert not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
def test_normal_numbers_of_any_mean_and_deviation():
    def function(mean, std):
        expanded = mean.expand(50, 1000), std.expand(50, 1000)
        drawn = torch.normal(1.0, 2.0, (4000,)), torch.normal(mean, std), torch.normal(1.0, std), torch.normal(*expanded)
        return *drawn, torch.distributions.Normal(mean, std).sample((3,)), torch.rand(1000, generator=None)

    mean, std = torch.linspace(-1, 1, 1000), torch.linspace(0.1, 2, 1000)
    compiled = torch.compile(function, backend="kiln")
    for got, want in zip(compiled(mean, std), function(mean, std)):
        assert got.shape == want.shape and got.stride() == want.stride() and got.dtype == want.dtype
        assert abs(got.mean() - want.mean()) < 0.25 and abs(got.std() - want.std()) < 0.25
    assert not kiln.report().fallbacks, str(kiln.report())
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", options={"fallback_random": True})
    torch.manual_seed(3)
    got = compiled(mean, std)
    torch.manual_seed(3)
    assert_close(got, function(mean, std))


def test_fake_quantisation_of_channels():
    scale = torch.tensor([0.1, 0.05, 0.3, 0.6405920704482397])
    zero = torch.tensor([0, 3, -2, 1], dtype=torch.int32)
    halves = torch.cat([(torch.arange(-40, 40) + 0.5)[:, None] * scale, torch.full((1, 4), NAN)])
    check(lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -20, 20), halves)

    def function(x):
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127)

    x = torch.randn(50, 4, 3) * 20
    assert_close(gradients(torch.compile(function, backend="kiln", fullgraph=True), x), gradients(function, x))
    assert not kiln.report().fallbacks, str(kiln.report())


@torch.no_grad()
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [64, 65, 127, 128, 129, 1000])
def test_places_among_many_boundaries(size, right):
    boundaries = torch.randn(size).sort().values
    boundaries[3] = boundaries[4]
    x = torch.cat([torch.randn(300), boundaries[:20], torch.tensor([NAN, INF, -INF])])
    check(lambda b, x: (torch.searchsorted(b, x, right=right), torch.searchsorted(b, x, right=right, out_int32=True)), boundaries, x)
    torch._dynamo.reset()
    rows, order = torch.randn(3, size), torch.randn(3, 70)
    check(lambda b, x, sorter: torch.searchsorted(b, x, sorter=sorter, right=right), rows, order, rows.argsort(-1))
    torch._dynamo.reset()
    check(lambda b, x: torch.searchsorted(b, x, side="right"), torch.arange(0, 2 * size, 2), torch.randint(-5, 2 * size + 5, (40, 2)))


BESSEL = ["i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0"]
BESSEL += [f"{scaled}modified_bessel_{kind}" for scaled in ("", "scaled_") for kind in ("i0", "i1", "k0", "k1") if not scaled or kind[0] == "k"]


@torch.no_grad()
@pytest.mark.parametrize("name", BESSEL)
def test_bessel_functions(name):
    function = getattr(torch.special, name)
    ends = torch.tensor([0.0, -0.0, -1.0, 1e-6, 2.404825557695773, 3.8317059702, 8.0, 8.001, 50.0, INF, -INF, NAN])
    x = torch.cat([torch.linspace(-12, 30, 421), ends])
    check(function, x, tolerance=2e-5)
    torch._dynamo.reset()
    # PyTorch's waves have six digits in double precision.
    check(function, x.double(), tolerance=2e-5 if "bessel_j" in name or "bessel_y" in name else 1e-11)
    torch._dynamo.reset()
    check(function, torch.arange(5), tolerance=2e-5)


def test_gradients_of_bessel_functions():
    for function in (torch.special.i0, torch.special.i0e, torch.special.i1, torch.special.i1e):
        torch._dynamo.reset()
        x = torch.linspace(-3, 12, 40)
        assert_close(gradients(torch.compile(function, backend="kiln", fullgraph=True), x), gradients(function, x), 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())
