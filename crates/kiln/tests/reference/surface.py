"""What PyTorch's functions give on small inputs, with gradients, for tests/surface.rs.

Run as `python surface.py`; it writes surface.safetensors beside itself. Names are `case/input/0 …`, `case/output/0 …`, and where
gradients are compared `case/cotangent/0 …` (of the outputs that are floats) and `case/grad/0 …` (of the inputs that are).
Complex numbers are pairs on the last axis.
"""

import pathlib

import checkpoint
import torch
import torch.nn.functional as F
import torchvision

torch.manual_seed(3)
RESULT = {}


def case(name, f, *inputs, grad=True):
    inputs = [x.clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    outputs = f(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for i, x in enumerate(inputs):
        RESULT[f"{name}/input/{i}"] = x.detach().clone()
    floats = []
    for i, y in enumerate(outputs):
        RESULT[f"{name}/output/{i}"] = y.detach().clone()
        if y.is_floating_point() and y.requires_grad:
            cotangent = torch.randn_like(y)
            RESULT[f"{name}/cotangent/{i}"] = cotangent
            floats.append((y * cotangent).sum())
    if floats:
        sum(floats).backward()
        for i, x in enumerate(inputs):
            if x.grad is not None:
                RESULT[f"{name}/grad/{i}"] = x.grad.clone()


def c(x):
    return torch.view_as_complex(x.contiguous())


def r(x):
    return torch.view_as_real(x.resolve_conj()).contiguous()


R = torch.randn
P = lambda *s: torch.rand(*s) + 0.1

# Fourier transforms.
case("fft", lambda x: r(torch.fft.fft(c(x))), R(3, 12, 2))
case("fft_axis_norm", lambda x: r(torch.fft.fft(c(x), n=5, dim=0, norm="ortho")), R(3, 12, 2))
case("fft_prime", lambda x: r(torch.fft.fft(c(x))), R(2, 101, 2))
case("ifft_prime", lambda x: r(torch.fft.ifft(c(x), dim=0)), R(67, 2, 2))
case("ifft", lambda x: r(torch.fft.ifft(c(x), norm="forward")), R(2, 16, 2))
case("rfft", lambda x: r(torch.fft.rfft(x)), R(3, 20))
case("rfft_odd", lambda x: r(torch.fft.rfft(x, dim=0, norm="forward")), R(15, 2))
case("irfft", lambda x: torch.fft.irfft(c(x)), R(2, 9, 2))
case("irfft_odd", lambda x: torch.fft.irfft(c(x), n=15), R(2, 8, 2))
case("fft2", lambda x: r(torch.fft.fft2(c(x))), R(2, 6, 10, 2))
case("ifft2", lambda x: r(torch.fft.ifft2(c(x), norm="ortho")), R(2, 4, 6, 2))
case("rfft2", lambda x: r(torch.fft.rfft2(x)), R(2, 6, 8))
case("irfft2", lambda x: torch.fft.irfft2(c(x)), R(2, 6, 5, 2))
case("fftn", lambda x: r(torch.fft.fftn(c(x))), R(3, 4, 5, 2))
case("rfftn", lambda x: r(torch.fft.rfftn(x, s=(4, 8), dim=(0, 2))), R(3, 2, 6))
case("irfftn", lambda x: torch.fft.irfftn(c(x), dim=(0, 1)), R(3, 4, 2))
case("stft", lambda x, w: r(torch.stft(x, 8, 4, window=w, return_complex=True)), R(2, 30), P(8))
case("fftshift", lambda x: torch.fft.fftshift(x, dim=0), R(5, 2))
case("ifftshift", lambda x: torch.fft.ifftshift(x, dim=0), R(5, 2))
case("complex_mul", lambda x, y: r(c(x) * c(y)), R(3, 1, 2), R(4, 2))
case("complex_abs", lambda x: c(x).abs(), R(7, 2))
case("angle", lambda x: c(x).angle(), R(7, 2))
case("polar", lambda x, y: r(torch.polar(x, y)), P(5), R(5))
case("conj", lambda x: r(c(x).conj()), R(5, 2))

# Special functions.
for name in ["log10", "lgamma", "sqrt"]:
    case(name, getattr(torch, name), P(4, 5))
for name in ["erfc", "digamma", "sinc", "frac", "deg2rad", "rad2deg"]:
    case(name, getattr(torch, name), R(4, 5) * 2)
case("tanhshrink", F.tanhshrink, R(4, 5))
case("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), R(4, 5))
case("celu", lambda x: F.celu(x, 1.5), R(4, 5))
case("hardtanh", lambda x: F.hardtanh(x, -0.5, 0.75), R(4, 5))
case("threshold", lambda x: F.threshold(x, 0.2, -3.0), R(4, 5))
case("hardshrink", lambda x: F.hardshrink(x, 0.6), R(4, 5))
case("softshrink", lambda x: F.softshrink(x, 0.6), R(4, 5))
case("softplus_with", lambda x: F.softplus(x, 2.0, 3.0), R(4, 5) * 2)
case("logit", lambda x: torch.logit(x, 0.2), torch.rand(4, 5))
case("prelu", F.prelu, R(2, 3, 4), P(3))
case("hypot", torch.hypot, R(4, 1), R(5))
case("copysign", lambda x, y: torch.copysign(x, y), R(4, 1), R(5))
# PyTorch computes the slope of a negative whole exponent in integers: 0.
case("ldexp", torch.ldexp, R(4), torch.tensor([1, -2, 3, 0]), grad=False)
case("fmax", torch.fmax, torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([2.0, 5.0, float("nan")]))
case("fmin", torch.fmin, torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([2.0, 5.0, float("nan")]))
case("logaddexp", torch.logaddexp, R(4, 1), R(5) * 10)
case("xlogy", torch.xlogy, torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 3.0, 0.5]), grad=False)
case("xlogy_grad", torch.xlogy, P(4), P(4))
case("rsub", lambda x: torch.rsub(x, 2.5), R(4))
case("heaviside", torch.heaviside, torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.5, 0.25, 3.0]), grad=False)
case("signbit", torch.signbit, torch.tensor([-1.0, 0.0, -0.0, 2.0]), grad=False)
case("round_decimals", lambda x: torch.round(x, decimals=2), R(5), grad=False)
case("nan_to_num", lambda x: torch.nan_to_num(x, 7.0), torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]))
case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), R(4, 5), R(5), R(4, 1))
case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), R(4, 5), R(5), P(4, 1))
case("gcd", torch.gcd, torch.tensor([12, -18, 0, 7]), torch.tensor([8, 27, 5, 0]))
case("lcm", torch.lcm, torch.tensor([12, -18, 0, 7]), torch.tensor([8, 27, 5, 0]))

# Sampling and windows.
for mode in ["bilinear", "nearest", "bicubic"]:
    for padding in ["zeros", "border", "reflection"]:
        f = lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, align_corners=False)
        case(f"grid_sample_{mode}_{padding}", f, R(2, 3, 4, 5), R(2, 3, 2, 2) * 0.8)
case("affine_grid", lambda x: F.affine_grid(x, (2, 3, 4, 5), align_corners=False), R(2, 2, 3))
case("bicubic", lambda x: F.interpolate(x, (7, 3), mode="bicubic"), R(1, 2, 5, 6))
case("bicubic_aa", lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True), R(1, 2, 7, 9))
case("bilinear_aa", lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), R(1, 2, 7, 9))
case("nearest_exact", lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"), R(1, 2, 5, 6))
case("im2col", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), R(2, 3, 6, 7))
case("col2im", lambda x: F.fold(x, (5, 6), (2, 3), padding=1), R(2, 12, 36))
case("max_pool1d_with_indices", lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), R(2, 3, 9))
case("max_pool2d_with_indices", lambda x: F.max_pool2d(x, (2, 3), (2, 1), 1, return_indices=True), R(2, 3, 6, 7))
case("max_pool3d_with_indices", lambda x: F.max_pool3d(x, 2, return_indices=True), R(1, 2, 4, 4, 4))
case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), R(2, 3, 8))
case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), R(2, 3, 7, 5))
case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 2, 1), return_indices=True), R(1, 2, 5, 4, 3))
pooled, places = F.max_pool2d(R(2, 3, 6, 6), 2, return_indices=True)
case("max_unpool2d", lambda x, i: F.max_unpool2d(x, i, 2), pooled, places)
case("lp_pool2d", lambda x: F.lp_pool2d(x, 3, 2), P(1, 2, 4, 6))

# Places, counts, order.
case("bucketize", lambda x, b: torch.bucketize(x, b), R(3, 4), torch.tensor([-1.0, 0.0, 0.5]), grad=False)
many = R(100).sort().values
case("bucketize_many", lambda x, b: torch.bucketize(x, b, right=True), torch.cat([R(30), many[:9]]), many, grad=False)
case("searchsorted", lambda s, v: torch.searchsorted(s, v), R(3, 7).sort().values, R(3, 5), grad=False)
case("histc", lambda x: torch.histc(x, 5, -1, 1), R(50), grad=False)
edges = torch.tensor([-1.0, 0.0, 0.3, 2.0])
case("histogram", lambda x, e, w: torch.histogram(x, e, weight=w).hist, R(40), edges, P(40), grad=False)
case("bincount", lambda x: torch.bincount(x, minlength=3), torch.tensor([1, 5, 1, 0]))
case("bincount_weights", lambda x, w: torch.bincount(x, w), torch.tensor([1, 5, 1, 0]), P(4), grad=False)
numbers = torch.randint(0, 6, (4, 5))
case("unique_with_counts", lambda x: torch.unique(x, return_inverse=True, return_counts=True), numbers)
f = lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True)
case("unique_consecutive", f, torch.tensor([1, 1, 2, 2, 2, 1]))
case("isin", torch.isin, numbers, torch.tensor([1, 4]))
case("kthvalue", lambda x: torch.kthvalue(x, 2, dim=0), R(5, 3))
case("median", lambda x: torch.median(x, dim=1), R(3, 6))
case("quantile", lambda x: torch.quantile(x, 0.3, dim=1), R(3, 6))

# Distances and products.
for p in [0.0, 1.0, 2.0, 3.0, float("inf")]:
    f = lambda x, y, p=p: torch.cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist")
    case(f"cdist_{p}", f, R(2, 4, 3), R(2, 5, 3), grad=p not in (0.0,))
case("pdist", lambda x: F.pdist(x), R(5, 3))
case("cdist_self", lambda x: torch.cdist(x, x, 2.0, compute_mode="donot_use_mm_for_euclid_dist"), R(4, 3))
case("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), R(4, 3), R(4, 3))
case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), R(4, 3), R(4, 3))
case("normalize", lambda x: F.normalize(x, dim=0), R(4, 3))
case("addmm", lambda a, x, y: torch.addmm(a, x, y, beta=0.5, alpha=2.0), R(3), R(2, 4), R(4, 3))
case("addmv", lambda a, x, y: torch.addmv(a, x, y, beta=0.5, alpha=2.0), R(2), R(2, 4), R(4))
case("baddbmm", lambda a, x, y: torch.baddbmm(a, x, y, beta=0.0), R(2, 2, 3), R(2, 2, 4), R(2, 4, 3))
case("addbmm", lambda a, x, y: torch.addbmm(a, x, y), R(2, 3), R(5, 2, 4), R(5, 4, 3))
case("mv", torch.mv, R(2, 4), R(4))
case("tensordot", lambda x, y: torch.tensordot(x, y, 2), R(2, 3, 4), R(3, 4, 5))
case("kron", torch.kron, R(2, 3), R(4, 5))
case("cross", lambda x, y: torch.linalg.cross(x, y, dim=0), R(3, 4), R(3, 4))
case("trace", torch.trace, R(4, 4))
case("diag_embed", lambda x: torch.diag_embed(x, 2), R(3, 4))
case("diag_embed_below", lambda x: torch.diag_embed(x, -1), R(3, 4))

# Parts.
case("select_scatter", lambda x, s: torch.select_scatter(x, s, 1, -2), R(3, 4), R(3))
case("diagonal_scatter", lambda x, s: torch.diagonal_scatter(x, s, 1), R(3, 4), R(3))
case("diagonal_scatter_below", lambda x, s: torch.diagonal_scatter(x, s, -1), R(4, 3), R(3))
mask = torch.rand(3, 4) > 0.5
case("masked_scatter", lambda x, m, s: torch.masked_scatter(x, m, s), R(3, 4), mask, R(12))
case("index_fill", lambda x, i: x.index_fill(1, i, 7.0), R(3, 4), torch.tensor([0, 2]))
bags, starts = torch.tensor([0, 2, 1, 1, 4]), torch.tensor([0, 2, 2, 4])
for mode in ["sum", "mean", "max"]:
    f = lambda t, i, o, m=mode: F.embedding_bag(i, t, o, mode=m)
    case(f"embedding_bag_{mode}", f, R(5, 3), bags, starts)
case("take", torch.take, R(3, 4), torch.tensor([[0, -1], [5, 5]]))
case("index_axes", lambda x, i, k: x[i, :, k], R(3, 2, 4), torch.tensor([0, -1, 1]), torch.tensor([2, 0, -1]))
case("as_strided", lambda x: torch.as_strided(x, (3, 4), (2, 1), 1), R(12))
case("rot90", lambda x: torch.rot90(x, 1, (0, 1)), R(3, 4))
case("rot270", lambda x: torch.rot90(x, 3, (0, 1)), R(3, 4))
case("meshgrid", lambda x, y: [z.contiguous() for z in torch.meshgrid(x, y, indexing="ij")], R(3), R(4))

# Statistics.
case("var_mean", lambda x: torch.var_mean(x, 1), R(3, 5))
case("std_mean", lambda x: torch.std_mean(x, 0, correction=0), R(3, 5))
case("aminmax", lambda x: torch.aminmax(x, dim=1), R(3, 5), grad=False)
case("count_nonzero", lambda x: torch.count_nonzero(x, dim=0), torch.tensor([[0.0, 1.0], [2.0, 0.0]]), grad=False)
with_nan = torch.tensor([[1.0, float("nan"), 3.0], [4.0, 5.0, 6.0]])
case("nansum", lambda x: torch.nansum(x, 1), with_nan)
case("nanmean", lambda x: torch.nanmean(x, 1), with_nan)
case("diff", lambda x: torch.diff(x, 2, dim=1), R(3, 6))
case("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), R(3, 6) * 20)
case("cov", lambda x: torch.cov(x), R(3, 6))

# Losses.
case("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.7), R(4, 3), R(4, 3))
case("binary_cross_entropy", lambda x, y: F.binary_cross_entropy(x, y), torch.rand(4, 3), torch.rand(4, 3))
case("kl_div", lambda x, y: F.kl_div(x, y, reduction="sum"), R(4, 3), P(4, 3))
case("kl_div_log", lambda x, y: F.kl_div(x, y, reduction="none", log_target=True), R(4, 3), R(4, 3))
case("poisson_nll_loss", lambda x, y: F.poisson_nll_loss(x, y), R(4, 3), P(4, 3))
sign = torch.tensor([1.0, -1.0, -1.0])
case("soft_margin_loss", lambda x: F.soft_margin_loss(x, sign.expand(4, 3)), R(4, 3))
case("hinge_embedding_loss", lambda x: F.hinge_embedding_loss(x, sign.expand(4, 3), 0.5), R(4, 3))
classes = torch.tensor([0, 2, -100, 1])
case("nll_loss", lambda x, y, w: F.nll_loss(F.log_softmax(x, 1), y, w.detach()), R(4, 3), classes, P(3))
f = lambda a, b, c: F.triplet_margin_loss(a, b, c, margin=0.5)
case("triplet_margin_loss", f, R(4, 3), R(4, 3), R(4, 3))

# Linear algebra: in f64, and once in f32. Signs of vectors are free, so their squares are compared.
D = lambda *s: torch.randn(*s, dtype=torch.float64)
L = torch.linalg
EYE = torch.eye(4, dtype=torch.float64)
case("cholesky", lambda x: L.cholesky(x @ x.mT + EYE), D(2, 4, 4))
case("cholesky_f32", lambda x: L.cholesky(x @ x.mT + EYE.float()), R(4, 4))
case("cholesky_solve", lambda x, b: torch.cholesky_solve(b, L.cholesky(x @ x.mT + EYE)), D(4, 4), D(4, 2))
case("solve", L.solve, D(2, 4, 4), D(2, 4, 3))
case("solve_broadcast", L.solve, D(4, 4), D(2, 4, 3))
case("solve_vector", L.solve, D(4, 4), D(4))
case("solve_triangular", lambda a, b: L.solve_triangular(a, b, upper=True), D(4, 4) + 3 * EYE, D(4, 2))
f = lambda a, b: L.solve_triangular(a, b, upper=False, unitriangular=True)
case("solve_triangular_unit", f, D(2, 4, 4), D(2, 4, 2))
case("inverse", L.inv, D(2, 4, 4))
case("det", L.det, D(3, 4, 4))
case("slogdet", L.slogdet, D(3, 4, 4))
case("logdet", lambda x: torch.logdet(x @ x.mT + EYE), D(4, 4))
case("lu", L.lu, D(2, 4, 4))
case("qr", L.qr, D(2, 5, 3))
case("qr_square", L.qr, D(4, 4))
case("eigh", lambda x: [y ** (i + 1) for i, y in enumerate(L.eigh(x + x.mT))], D(2, 4, 4))
case("eigvalsh", lambda x: L.eigvalsh(x + x.mT), D(4, 4))
f = lambda x: [y ** (2 - i % 2) for i, y in enumerate(L.svd(x, full_matrices=False))]
case("svd_tall", f, D(2, 5, 3))
case("svd_wide", f, D(3, 4))
case("svdvals", L.svdvals, D(4, 3))
case("lstsq", lambda a, b: L.lstsq(a, b).solution, D(5, 3), D(5, 2))
case("pinv", L.pinv, D(5, 3))
for norm in ["fro", "nuc", 2, 1, float("inf")]:
    case(f"matrix_norm_{norm}", lambda x, n=norm: L.matrix_norm(x, n), D(2, 4, 3))
case("matrix_power", lambda x: L.matrix_power(x, 3), D(4, 4))
case("matrix_power_inverse", lambda x: L.matrix_power(x, -2), D(4, 4))
case("matrix_rank", lambda x: L.matrix_rank(x @ x.mT), D(4, 2), grad=False)

EINSUM = [
    ("ij,jk->ik", [(3,4),(4,5)]),
    ("bij,bjk->bik", [(2,3,4),(2,4,5)]),
    ("bhqd,bhkd->bhqk", [(2,3,4,5),(2,3,6,5)]),
    ("ii->i", [(4,4)]),
    ("ii", [(4,4)]),
    ("ij", [(3,4)]),
    ("ba", [(3,4)]),
    ("ij->", [(3,4)]),
    ("i,j->ij", [(3,),(4,)]),
    ("i,i", [(5,),(5,)]),
    ("...ij,...jk->...ik", [(2,1,3,4),(3,4,5)]),
    ("i...,...j->ij...", [(3,2,2),(2,2,4)]),
    ("...", [(2,3)]),
    ("ij,jk,kl->il", [(2,3),(3,4),(4,5)]),
    ("ab,ab,ab->b", [(3,4),(3,4),(3,4)]),
    ("bii->bi", [(2,3,3)]),
    ("ijj,jk->ik", [(2,3,3),(3,4)]),
    ("i j , j k -> k i", [(3,4),(4,5)]),
    ("aB,Bc->ac", [(2,3),(3,4)]),
    ("ij,ij->ij", [(3,4),(3,4)]),
    ("ij,kj", [(3,4),(2,4)]),
    ("bn,anm,bm->ba", [(2,3),(4,3,5),(2,5)]),
    ("ab,b->a", [(3,1),(4,)]),
    (",ij->ij", [(),(3,4)]),
    ("ij,...->...i", [(3,4),(2,2)]),
]
for equation, shapes in EINSUM:
    case(f"einsum {equation}", lambda *x, e=equation: torch.einsum(e, *x), *[R(s) for s in shapes])

# Regions are data there: they have no gradient.
REGIONS = torch.tensor([[0.0, 1.0, 1.0, 6.5, 5.0], [1.0, 0.0, 2.5, 7.9, 7.9], [0.0, 3.0, 3.0, 3.2, 3.1], [1.0, -2.0, 4.0, 9.0, 12.0]])
for name, samples, aligned, scale in [("fixed", 2, True, 1.0), ("adaptive", -1, False, 0.5), ("old", 3, False, 1.0)]:
    f = lambda x, n=samples, a=aligned, s=scale: torchvision.ops.roi_align(x, REGIONS, (2, 3), s, n, a)
    case(f"roi_align_{name}", f, R(2, 3, 8, 8))

checkpoint.save(pathlib.Path(__file__).with_name("surface.safetensors"), RESULT)
