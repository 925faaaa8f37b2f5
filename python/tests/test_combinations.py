"""What users combine with torch.compile."""

import copy

import pytest
import torch
from conftest import assert_close
from torch import nn
from torch.utils.checkpoint import checkpoint

import kiln


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


@torch.no_grad()
def test_stances():
    calls = []

    def function(x):
        if not torch.compiler.is_compiling():
            calls.append(x.shape)
        return x.sin() + 1

    fast = torch.compile(function, backend="kiln", dynamic=False)
    x = torch.randn(3)
    with torch.compiler.set_stance("force_eager"):
        assert_close(fast(x), x.sin() + 1)
    assert calls and kiln.report().graphs == 0
    calls.clear()
    assert_close(fast(x), x.sin() + 1)
    assert not calls and kiln.report().graphs == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        fast(x)
        with pytest.raises(RuntimeError, match="recompile"):
            fast(torch.randn(4))
    with torch.compiler.set_stance("eager_on_recompile"):
        assert_close(fast(torch.ones(5)), torch.ones(5).sin() + 1)
    assert calls and kiln.report().graphs == 1


@torch.no_grad()
def test_mark_dynamic():
    fast, net = torch.compile(net := mlp(), backend="kiln", fullgraph=True), net
    for rows in (5, 7, 64):
        x = torch.randn(rows, 16)
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(fast(x), net(x))
    assert kiln.report().graphs == 1


@torch.no_grad()
def test_disable():
    @torch.compiler.disable
    def outside(x):
        assert not torch.compiler.is_compiling()
        return x * 2

    def function(x):
        return outside(x.sin()).cos()

    x = torch.randn(4)
    assert_close(torch.compile(function, backend="kiln")(x), function(x))
    assert kiln.report().graphs == 2 and kiln.report().graph_breaks >= 1


@torch.no_grad()
def test_reset_compiles_anew():
    fast = torch.compile(lambda x: x.sin() + 2, backend="kiln")
    x = torch.randn(4)
    first = fast(x)
    torch.compiler.reset()
    assert_close(fast(x), first)
    assert kiln.report().graphs == 2


@torch.no_grad()
def test_regional_compile_of_equal_blocks():
    """One program serves all blocks: weights are arguments."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp().append(nn.Linear(8, 16))

        def forward(self, x):
            return x + self.inner(x)

    net = nn.Sequential(*(Block() for _ in range(4))).eval()
    x = torch.randn(3, 16)
    want = net(x)
    for block in net:
        block.compile(backend="kiln", fullgraph=True)
    assert_close(net(x), want)
    assert kiln.report().graphs == 1


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside):
    net, x = mlp(), torch.randn(4, 16)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return net(x)

    fast = torch.compile(function, backend="kiln", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        got, want = fast(x), function(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    got.float().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_gradient_modes_are_kept_apart():
    net, x = mlp(), torch.randn(4, 16)
    fast = torch.compile(net, backend="kiln", fullgraph=True)
    want = net(x).detach()
    assert fast(x).requires_grad
    with torch.no_grad():
        assert not fast(x).requires_grad
    with torch.inference_mode():
        result = fast(x)
        assert result.is_inference()
        assert_close(result.clone(), want)
    assert_close(fast(x).detach(), want)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_compiled_optimizer(kind):
    net = mlp()
    twin = copy.deepcopy(net)
    steps = []
    for model in (net, twin):
        optimizer = kind(model.parameters(), lr=0.01)
        steps.append(torch.compile(optimizer.step, backend="kiln") if model is net else optimizer.step)
    torch.manual_seed(1)
    for _ in range(4):
        x = torch.randn(8, 16)
        for model, step in zip((net, twin), steps):
            model.zero_grad()
            model(x).square().mean().backward()
            step()
    assert_close(list(net.parameters()), list(twin.parameters()), 1e-4)
    assert kiln.report().programs >= 1 and not kiln.report().refused, str(kiln.report())


@torch.no_grad()
def test_vmap():
    def norm(x, w):
        return torch.tanh(x @ w).sum()

    x, w = torch.randn(5, 3, 4), torch.randn(4, 2)
    mapped = torch.vmap(norm, in_dims=(0, None))
    assert_close(torch.compile(mapped, backend="kiln", fullgraph=True)(x, w), mapped(x, w))
    assert kiln.report().graphs == 1 and not kiln.report().fallbacks, str(kiln.report())


def test_functional_gradients():
    def loss(w, x):
        return torch.tanh(x @ w).square().sum()

    x, w = torch.randn(3, 4), torch.randn(4, 2)
    for transform in (torch.func.grad(loss), torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))):
        rows = x if "vmap" not in repr(transform) else x[:, None]
        torch._dynamo.reset()
        assert_close(torch.compile(transform, backend="kiln", fullgraph=True)(w, rows), transform(w, rows))
    hessian = torch.func.jacfwd(torch.func.grad(loss))
    torch._dynamo.reset()
    assert_close(torch.compile(hessian, backend="kiln")(w, x), hessian(w, x), 1e-4)


@pytest.mark.parametrize("outer", [False, True])
def test_activation_checkpointing(outer):
    net, x = mlp(), torch.randn(4, 16, requires_grad=True)
    inner = net if outer else torch.compile(net, backend="kiln")

    def function(x):
        return checkpoint(inner, x, use_reentrant=False).square().sum()

    fast = torch.compile(function, backend="kiln", fullgraph=True) if outer else function
    got = torch.autograd.grad(fast(x), [x, *net.parameters()])
    want = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    assert_close(got, want, 1e-4)
    assert kiln.report().graphs >= 2 and not kiln.report().refused, str(kiln.report())


@torch.no_grad()
def test_cond_runs_both_ways():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,)) * 2

    fast = torch.compile(function, backend="kiln", fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        assert_close(fast(x), function(x))


@torch.no_grad()
def test_other_higher_order_ops():
    def scan(init, xs):
        return torch._higher_order_ops.scan(lambda carry, x: (carry + x, carry * x), init, xs)

    def loop(x):
        return torch._higher_order_ops.while_loop(lambda x: x.sum() < 100, lambda x: (x * 2,), (x,))

    for function, arguments in ((scan, (torch.zeros(3), torch.randn(5, 3))), (loop, (torch.ones(3),))):
        torch._dynamo.reset()
        assert_close(torch.compile(function, backend="kiln")(*arguments), function(*arguments))


@torch.no_grad()
def test_follows_pytorchs_threads():
    before = torch.get_num_threads()
    fast, x = torch.compile(lambda x: x.exp(), backend="kiln"), torch.randn(100_000)
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            fast(x)
            assert kiln.threads() == threads
        kiln.set_threads(2)
        fast(x)
        assert kiln.threads() == 2
        kiln.set_threads()
        assert kiln.threads() == 1
    finally:
        kiln.set_threads()
        torch.set_num_threads(before)


@pytest.mark.parametrize("whole", [True, False], ids=["one graph", "a graph break"])
def test_compiled_autograd(whole):
    """The backward pass itself is captured, with hooks and accumulation, and compiled by Kiln."""
    outcomes = []
    for run in (lambda f: f, lambda f: torch.compile(f, backend="kiln")):
        torch._dynamo.reset()
        kiln.clear_events()
        torch.manual_seed(1)
        net, seen = mlp(), []
        net[0].weight.register_hook(lambda grad: seen.append(grad.norm().detach()) or grad * 2)

        def step(x, net=net):
            y = net(x)
            if not whole:
                torch._dynamo.graph_break()
            y.square().mean().backward()

        step = run(step)
        with torch._dynamo.config.patch(compiled_autograd=True):
            for seed in range(3):
                step(torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)))
        outcomes.append([*(p.grad.clone() for p in net.parameters()), *seen])
    assert_close(outcomes[1], outcomes[0], 1e-4)
    report = kiln.report()
    assert report.graphs >= 2 and not report.refused and not report.fallbacks, str(report)
