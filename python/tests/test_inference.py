"""Forward graphs."""

import pytest
import torch
from conftest import assert_close, check
from torch import nn

import kiln


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).eval()


@torch.no_grad()
def test_an_mlp_is_one_native_program():
    report = check(mlp(), torch.randn(4, 16))
    assert report.programs == 1


@torch.no_grad()
def test_inputs_of_any_layout_are_taken_as_they_are():
    x = torch.randn(3, 4, 8)
    check(lambda x: x * 2 + 1, x.transpose(0, 2))
    check(lambda x: x.sum(1), x[:, ::2])
    check(lambda x: x + 1, x[:1].expand(5, 4, 8))
    check(lambda x: x.relu(), torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))


@torch.no_grad()
def test_results_have_the_strides_of_eager():
    x = torch.randn(2, 3, 4)
    check(lambda x: (x + 1).transpose(0, 2), x)
    check(lambda x: (x + 1).permute(1, 2, 0), x)
    check(lambda x: (x.sum(0, keepdim=True)).expand(4, 3, 4), x)
    check(lambda x: (x * 2)[:, 1:], x)


@torch.no_grad()
def test_results_that_are_views_share_memory():
    def views(x):
        y = x + 1
        return y, y[1:], x[1:], x

    x = torch.randn(4, 5)
    got = torch.compile(views, backend="kiln", fullgraph=True)(x)
    assert_close(got, views(x))
    got[0].zero_()
    assert got[1].abs().max() == 0
    x.zero_()
    assert got[2].abs().max() == 0 and got[3] is x


@torch.no_grad()
def test_equal_results_do_not_share_memory():
    def twice(x):
        return x + 1, x + 1, x.clone(), torch.ones(3)

    x = torch.randn(3)
    compiled = torch.compile(twice, backend="kiln", fullgraph=True)
    a, b, c, d = compiled(x)
    assert len({t.data_ptr() for t in (a, b, c, d, x)}) == 5
    d.zero_()
    assert_close(compiled(x)[3], torch.ones(3))


@torch.no_grad()
def test_inputs_are_updated_in_place():
    def update(x, y):
        x.add_(y)
        y[:, 1:].mul_(2)
        return x.sum()

    check(update, torch.randn(3, 4), torch.randn(3, 4))
    check(update, torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2])


@torch.no_grad()
def test_module_buffers_are_updated():
    norm = nn.BatchNorm1d(6)
    want = copy_of(norm)
    x = torch.randn(8, 6)
    assert_close(torch.compile(norm, backend="kiln", fullgraph=True)(x), want(x))
    assert_close(dict(norm.named_buffers()), dict(want.named_buffers()))


def copy_of(module):
    import copy

    return copy.deepcopy(module)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 2e-5)
    check(mlp().to(dtype), torch.randn(4, 16, dtype=dtype), tolerance=tolerance)


@torch.no_grad()
def test_convolutions_and_pools():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
    ).eval()
    check(net, torch.randn(2, 3, 16, 16))


@torch.no_grad()
def test_attention_stays_whole():
    def attend(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    report = check(attend, q, k, v)
    assert report.launches <= 2


@torch.no_grad()
def test_one_compile_serves_many_sizes():
    compiled = torch.compile(mlp_of_rows := mlp(), backend="kiln", fullgraph=True, dynamic=True)
    for rows in (3, 5, 17, 64):
        x = torch.randn(rows, 16)
        assert_close(compiled(x), mlp_of_rows(x))
    assert kiln.report().graphs == 1 and not kiln.report().fallbacks


@torch.no_grad()
def test_symbolic_sizes_in_arguments():
    def function(x):
        n = x.shape[0]
        y = torch.arange(n) + x.view(n, -1).sum(1).long()
        return torch.cat([x[1:], x[: n - 1]]).reshape(2 * n - 2, -1), y * n, x.new_zeros(n + 1)

    compiled = torch.compile(function, backend="kiln", fullgraph=True, dynamic=True)
    for n in (4, 7, 9):
        x = torch.randn(n, 2, 3)
        assert_close(compiled(x), function(x))
    assert kiln.report().graphs == 1 and not kiln.report().fallbacks


@torch.no_grad()
def test_inference_mode():
    x, net = torch.randn(4, 16), mlp()
    with torch.inference_mode():
        assert_close(torch.compile(net, backend="kiln")(x), net(x))


def test_an_error_names_the_line():
    def gather(x, index):
        return x[index]

    compiled = torch.compile(gather, backend="kiln", fullgraph=True)
    with pytest.raises(RuntimeError, match="out of range.*test_inference.py"):
        compiled(torch.randn(4), torch.tensor([1, 9]))


class Sum(torch.nn.Module):
    """A model of many weights."""

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(4) for _ in range(weights))

    def forward(self, x):
        for weight in self.weights:
            x = x + weight
        return x


@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_that_move_are_noticed(dynamic):
    """A program looks only at the addresses of weights that have been at the same place for some calls."""
    net = Sum(20)
    fast = torch.compile(net, backend="kiln", dynamic=dynamic)
    rows = 0

    def agree():
        nonlocal rows
        rows += 1
        x = torch.randn((1 + rows % 3, 4) if dynamic else (2, 4))
        with torch.no_grad():
            assert_close(fast(x), net(x))

    def steady():
        for _ in range(5):
            agree()

    steady()
    with torch.no_grad():
        net.weights[3].add_(1)
        agree()
        net.weights[4].data = torch.randn(4)
        agree()
        net.weights[5] = torch.nn.Parameter(torch.randn(4))
    steady()
    for weight in net.weights:
        weight.data = weight.data + 1
        agree()
    steady()
    net.load_state_dict(Sum(20).state_dict(), assign=True)
    steady()


def test_one_program_with_weights_by_turns():
    nets = [Sum(20) for _ in range(3)]
    call = torch.compile(lambda net, x: torch.func.functional_call(net, dict(net.named_parameters()), (x,)), backend="kiln")
    x = torch.randn(4)
    with torch.no_grad():
        for number in range(30):
            net = nets[number // 3 % 3]
            assert_close(call(net, x), net(x))


@pytest.mark.parametrize("trains", [False, True])
def test_sizes_that_a_matrix_bounds(trains):
    """The matrix leaves two widths of images possible; the batch is any."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 10))
    fast = torch.compile(net, backend="kiln", dynamic=True)
    for batch, width in [(2, 16), (3, 16), (4, 15), (5, 16), (6, 15)]:
        x = torch.randn(batch, 3, width, width)
        with torch.set_grad_enabled(trains):
            assert_close(fast(x), net(x))
        if trains:
            want = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
            assert_close(torch.autograd.grad(fast(x).square().sum(), list(net.parameters())), want, 1e-4)
    assert not kiln.report().fallbacks


def test_parts_whose_sizes_are_read():
    def routed(x, counts, weights):
        parts = x.split(counts.tolist(), 0)
        y = torch.cat([part @ weight for part, weight in zip(parts, weights)], 0)
        return torch.zeros_like(x).index_add(0, torch.arange(x.shape[0]).flip(0), y)

    def turned(x, counts, weights):
        a, b, c, d = x.split(counts.tolist(), 0)
        return torch.cat([c + weights[0, 0], a, d, b], 0) * x

    torch.manual_seed(0)
    weights = torch.randn(4, 8, 8)
    for function in (routed, turned):
        for rows in ([19] * 4, [16, 20, 17, 31]):
            fast = torch.compile(function, backend="kiln", options={"fullgraph_native": True})
            for number, n in enumerate(rows):
                counts = torch.tensor([3 + number, 5, 2 + number, n - 10 - 2 * number])
                x = torch.randn(n, 8, requires_grad=True)
                y, z = fast(x, counts, weights), function(x, counts, weights)
                torch.testing.assert_close(y, z)
                (gy,), (gz,) = torch.autograd.grad(y.square().sum(), x), torch.autograd.grad(z.square().sum(), x)
                torch.testing.assert_close(gy, gz)
            torch._dynamo.reset()
