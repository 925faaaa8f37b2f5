"""Functions of functions, ops of users' own, and stances that choose the backend."""

import itertools

import pytest
import torch
from conftest import assert_close
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import kiln
from kiln.executor import compile_graph


def compiled(function, **keywords):
    return torch.compile(function, backend="kiln", fullgraph=True, **keywords)


@torch.no_grad()
def test_a_stance_chooses_kiln():
    """`force_backend` holds for everything that is compiled meanwhile, whatever backend it names."""

    def function(x):
        return x.sin() * 3

    fast = torch.compile(function, backend="eager")
    x = torch.randn(5)
    with torch.compiler.set_stance("default", force_backend="kiln"):
        assert_close(fast(x), function(x))
    assert kiln.report().graphs == 1


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="PyTorch 2.13 and newer")
@torch.no_grad()
def test_kiln_as_the_default_backend():
    before = torch.compiler.get_default_backend()
    try:
        torch.compiler.set_default_backend("kiln")
        assert_close(torch.compile(lambda x: x.cos() + 1)(torch.ones(3)), torch.ones(3).cos() + 1)
        assert kiln.report().graphs == 1
    finally:
        torch.compiler.set_default_backend(before)


@torch.no_grad()
def test_a_region_that_is_compiled_once():
    """`nested_compile_region`: equal layers are one graph that is called many times."""

    @torch.compiler.nested_compile_region
    def layer(x, weight):
        return torch.tanh(x @ weight) + x

    def function(x, weights):
        for weight in weights:
            x = layer(x, weight)
        return x

    x, weights = torch.randn(4, 8), [torch.randn(8, 8) for _ in range(3)]
    assert_close(compiled(function)(x, weights), function(x, weights))
    reasons = list(kiln.report().fallbacks)
    assert all("control flow" in reason for reason in reasons), reasons


def test_gradients_through_a_branch():
    def function(x, w):
        return torch.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: (x @ w).cos() * 2, (x, w)).square().sum()

    w = torch.randn(4, 4, requires_grad=True)
    fast = compiled(function)
    for x in (torch.rand(3, 4), -torch.rand(3, 4)):
        (got,) = torch.autograd.grad(fast(x, w), w)
        (want,) = torch.autograd.grad(function(x, w), w)
        assert_close(got, want, 1e-4)


@torch.no_grad()
def test_loops_over_leading_axes():
    from torch._higher_order_ops import associative_scan
    from torch._higher_order_ops.map import map as map_over

    x, y = torch.randn(6, 3), torch.randn(3)
    got = compiled(lambda x, y: map_over(lambda row, y: row.exp() * y, x, y))(x, y)
    assert_close(got, x.exp() * y)
    torch._dynamo.reset()
    got = compiled(lambda x: associative_scan(lambda a, b: a * b + 0 * a, x, 0, combine_mode="generic"))(x)
    assert_close(got, x.cumprod(0), 1e-4)


def masked(kind):
    def causal(_batch, _head, row, column):
        return row >= column

    def window(_batch, _head, row, column):
        return (row - column).abs() <= 3

    return {"causal": causal, "window": window}[kind]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["causal", "window"])
def test_flexible_attention(kind):
    """A score that a function changes, and a mask that a function decides, against the scores written out."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 2, 128, 16) for _ in range(3))
    block_mask = create_block_mask(masked(kind), None, None, 128, 128, device="cpu")
    bias = torch.randn(2)

    def function(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * 0.5 + bias[h], block_mask=block_mask)

    rows, columns = torch.arange(128)[:, None], torch.arange(128)[None]
    scores = (q @ k.transpose(-1, -2)) / 4 * 0.5 + bias[:, None, None]
    scores = scores.masked_fill(~masked(kind)(None, None, rows, columns), float("-inf"))
    got = torch.compile(function, backend="kiln")(q, k, v, bias)
    torch.testing.assert_close(got, scores.softmax(-1) @ v, rtol=1e-4, atol=1e-5)


_numbers = itertools.count()


def custom_op(**keywords):
    """A new op, which Kiln cannot know."""
    name = f"kiln_tests::op{next(_numbers)}"

    @torch.library.custom_op(name, **keywords)
    def double_and_count(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    double_and_count.register_fake(torch.empty_like)
    double_and_count.register_autograd(lambda _context, grad: grad * 2)
    return double_and_count


def test_an_op_of_the_users_own():
    op = custom_op(mutates_args=())
    w = torch.randn(4, 4, requires_grad=True)

    def function(x, w):
        return (op(x @ w) + 1).tanh().sum()

    x = torch.randn(3, 4)
    (got,) = torch.autograd.grad(compiled(function)(x, w), w)
    (want,) = torch.autograd.grad(function(x, w), w)
    assert_close(got, want, 1e-4)
    report = kiln.report()
    assert report.programs >= 3 and not report.refused and len(report.fallbacks) == 1, str(report)
    assert "kiln_tests" in next(iter(report.fallbacks))


def writing_op(function, **keywords):
    """A new op that writes into its arguments of the names in ``mutates_args``."""
    return torch.library.custom_op(f"kiln_tests::op{next(_numbers)}", function, **keywords)


def fill(x: torch.Tensor, value: float) -> None:
    x.numpy()[...] = value


@torch.no_grad()
def test_an_op_of_the_users_own_that_writes():
    op = writing_op(fill, mutates_args=("x",))

    def function(x):
        y = x * 2
        before = y.sum()
        rows = y.view(2, 2)
        op(y, 5.0)
        return y + x, before, rows * 2, (y - 1).sum()

    x = torch.randn(4)
    assert_close(compiled(function)(x), function(x))
    report = kiln.report()
    assert report.graphs == 1 and report.refused == 0 and report.programs == 2, str(report)
    (reason,) = report.fallbacks
    assert "kiln_tests" in reason and "writes" in reason and "test_higher_order.py" in reason, reason


@torch.no_grad()
def test_an_op_that_writes_into_an_argument_and_a_buffer():
    """The user's own tensors are written into, as many times as without Kiln."""
    op = writing_op(fill, mutates_args=("x",))

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("level", torch.zeros(3))

        def forward(self, x):
            op(x[1], 7.0)
            op(self.level[1:], 3.0)
            self.level.add_(1)
            return x.sin() + self.level

    mine, theirs = Counts(), Counts()
    fast = compiled(mine)
    for _ in range(3):
        x = torch.randn(2, 3)
        y = x.clone()
        assert_close(fast(x), theirs(y))
        assert_close([x, mine.level], [y, theirs.level])
    report = kiln.report()
    assert report.graphs == 1 and report.refused == 0, str(report)


def test_an_op_that_writes_while_a_model_is_trained():
    """Statistics that an op writes between two layers."""

    def note(x: torch.Tensor, mean: torch.Tensor) -> None:
        mean.mul_(0.9).add_(0.1 * x.mean(0))

    op = writing_op(note, mutates_args=("mean",))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            x = self.first(x).tanh()
            op(x.detach(), self.mean)
            return self.second(x - self.mean).square().mean()

    outcomes = []
    for run in (lambda net: net, compiled):
        net = Net()
        step = run(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        torch.manual_seed(4)
        for _ in range(3):
            optimizer.zero_grad()
            loss = step(torch.randn(5, 4))
            loss.backward()
            optimizer.step()
        outcomes.append([loss.detach(), *(p.detach() for p in net.parameters()), *(p.grad for p in net.parameters()), net.mean])
    assert_close(outcomes[1], outcomes[0], 1e-4)
    report = kiln.report()
    assert report.graphs == 2 and report.refused == 0 and len(report.fallbacks) == 1, str(report)


@torch.no_grad()
def test_ops_with_effects_keep_their_order():
    """Ops that PyTorch chains by tokens: each runs once a call, in the order of the function."""
    seen = []

    def record(x: torch.Tensor, tag: int) -> torch.Tensor:
        seen.append((tag, float(x.sum())))
        return x.clone()

    op = torch.library.custom_op(f"kiln_tests::op{next(_numbers)}", record, mutates_args=())
    op.register_fake(lambda x, tag: torch.empty_like(x))
    register = torch._higher_order_ops.effects._register_effectful_op
    register(op._opoverload, torch._higher_order_ops.effects._EffectType.ORDERED)

    def function(x):
        op(x * 2, 1)
        y = op(x.cos(), 2) + 1
        op(y.sin(), 3)
        return y * 2

    x = torch.randn(4)
    want = function(x)
    expected = list(seen)
    fast = compiled(function)
    for _ in range(2):
        seen.clear()
        assert_close(fast(x), want)
        assert [tag for tag, _ in seen] == [1, 2, 3]
        assert_close(torch.tensor([value for _, value in seen]), torch.tensor([value for _, value in expected]))
    report = kiln.report()
    assert report.refused == 0 and report.programs >= 2 and all("effects" in reason for reason in report.fallbacks), str(report)


def hand_made(build, *examples):
    """A graph that no capture made, compiled: ``build`` has it and its placeholders, and gives the results."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph, mode = torch.fx.Graph(), FakeTensorMode()
    places = [graph.placeholder(f"x{number}") for number in range(len(examples))]
    graph.output(build(graph, *places))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with mode:
        values = {}
        for node, example in zip(places, examples):
            values[node] = node.meta["val"] = mode.from_tensor(example)
        for node in [node for node in graph.nodes if node.op == "call_function"]:
            args = torch.fx.node.map_arg(node.args, values.__getitem__)
            values[node] = node.meta["val"] = node.target(*args)
    return module, compile_graph(module, "made", kiln.Options())


@torch.no_grad()
def test_a_node_that_writes_is_a_cut():
    """Graphs that AOTAutograd has not made functional: what is before a write reads the old elements, what is after it the new ones, also
    through views."""
    aten = torch.ops.aten

    def build(graph, x):
        def call(op, *args):
            return graph.call_function(op, args)

        y = call(aten.mul.Tensor, x, 2.0)
        same = call(aten.mul.Tensor, x, 2.0)
        rows = call(aten.view.default, y, [2, 3])
        before = call(aten.sum.default, rows)
        first = call(aten.select.int, rows, 0, 0)
        call(aten.fill_.Scalar, first, 9.0)
        after = call(aten.add.Tensor, rows, 1.0)
        call(aten.add_.Tensor, y, x)
        return before, after, call(aten.cos.default, y), same, call(aten.sin.default, rows)

    x = torch.randn(6)
    module, run = hand_made(build, x)
    want = module(x.clone())
    got = run([x.clone()])
    assert_close(list(got), list(want))
    report = kiln.report()
    assert report.refused == 0 and report.programs == 4 and len(report.fallbacks) == 2, str(report)


@torch.no_grad()
def test_forward_derivatives():
    def function(x, w):
        return torch.tanh(x @ w).sum(-1)

    x, w, t = torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 4)

    def both(x, t):
        return torch.func.jvp(lambda x: function(x, w), (x,), (t,))

    assert_close(compiled(both)(x, t), both(x, t))
    assert not kiln.report().fallbacks


def test_ensembles():
    """`functional_call` of stacked models under `vmap`, with gradients for each sample."""
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    parameters = {name: value.detach() for name, value in parameters.items()}
    x = torch.randn(5, 4)

    def loss(parameters, x):
        return torch.func.functional_call(models[0], (parameters, buffers), (x,)).square().mean()

    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))
    got, want = torch.compile(of_each, backend="kiln")(parameters, x), of_each(parameters, x)
    assert_close([got[name] for name in want], list(want.values()), 1e-4)
    assert kiln.report().graphs >= 1 and not kiln.report().fallbacks, str(kiln.report())
