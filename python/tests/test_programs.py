"""Programs as users write them, whole: outputs, gradients, buffers and arguments are those of eager."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_close
from torch import nn
from torch.utils._pytree import tree_leaves

import kiln


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight).clamp(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        inside = ((x * weight).abs() <= 1).to(gradient.dtype)
        return gradient * weight * inside, (gradient * x * inside).sum(0)


class CustomFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(16)), nn.Linear(16, 16)

    def forward(self, x):
        return Clamped.apply(self.linear(x), self.weight).sum()


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, *, scale=1.0, bias=None, **others):
        y = self.linear(x) * scale
        y = y + bias["bias"] if bias is not None else y
        return {"y": y, "others": {name: value.mean() for name, value in others.items()}}


class NestedResults(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = Part(), nn.ModuleDict({"p": Part(), "q": Part()})

    def forward(self, x, options):
        first = self.first(x, scale=2.0, bias=options, given=x)
        rest = {name: part(first["y"], before=first["y"], given=x) for name, part in self.rest.items()}
        return {"first": first, "rest": rest, "more": (first["y"].sum(), [rest["p"]["y"].exp()])}


class ViewsWrittenInto(nn.Module):
    def forward(self, x, y):
        a = x.clone()
        even = a[:, ::2]
        even.mul_(2)
        even[1:].add_(y[:, None][1:])
        a.t()[0].fill_(3)
        a.view(-1)[5:9] = 7
        a[a > 2.5] -= 1
        windows = a.unfold(1, 3, 2)
        a.narrow(0, 0, 2).copy_(a.narrow(0, 2, 2).clone())
        x.add_(1)
        x[0, 1:3].zero_()
        return a, windows.sum(-1), even, x.diagonal()


class BuffersWrittenInto(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("ring", torch.zeros(5, 6))

    def forward(self, x):
        y = self.norm(self.linear(x))
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.ring[self.calls % 5] = y[0]
            self.calls += 1
        return y * self.average.sigmoid(), self.calls.clone()


class Experts(nn.Module):
    """Tokens sorted by expert; how many each one has is read from a tensor."""

    def __init__(self, width=16, experts=4, chosen=2):
        super().__init__()
        self.gate, self.chosen, self.experts = nn.Linear(width, experts, bias=False), chosen, experts
        self.up = nn.Parameter(torch.randn(experts, width, 32) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 32, width) * 0.2)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        shares, experts = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.experts)
        out, start = torch.zeros_like(tokens), 0
        for expert, count in enumerate(counts.tolist()):
            if count:
                mine = order[start : start + count]
                hidden = F.silu(tokens[mine // self.chosen] @ self.up[expert]) @ self.down[expert]
                out.index_add_(0, mine // self.chosen, hidden * shares.flatten()[mine][:, None])
                start += count
        return out.view_as(x), counts


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.cell = nn.GRUCell(5, 12), nn.LSTMCell(12, 12)
        self.lstm = nn.LSTM(12, 7, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        h, state, steps = x.new_zeros(x.shape[0], 12), (x.new_zeros(x.shape[0], 12), x.new_zeros(x.shape[0], 12)), []
        for step in range(x.shape[1]):
            h = self.gru(x[:, step], h)
            state = self.cell(h, state)
            steps.append(state[0])
        return self.lstm(torch.stack(steps, 1))


class ManyDtypes(nn.Module):
    def forward(self, a, b, c):
        small, short, half = a.to(torch.uint8), (b * 100).to(torch.int16), c.half()
        bits = (small.to(torch.int32) << 3) | (short.to(torch.int32) & 7)
        flags = (half > 0) ^ (c < 0.5)
        results = bits, torch.div(short, 7, rounding_mode="floor"), short % 5, flags.sum(), half.bfloat16() + 1, small.float().mean()
        more = torch.bitwise_not(small), short.abs().max(), (half * 2).sum(dtype=torch.float64), c.view(torch.int32) >> 23
        return *results, *more, c.to(torch.float8_e4m3fn).float(), c.to(torch.int8).view(torch.uint8), (c.double() * math.pi).float()


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(12.0), 1 / 10000 ** (torch.arange(0, 16, 2) / 16))
        self.register_buffer("turns", torch.polar(torch.ones(12, 8), angles), persistent=False)
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)

    def turned(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[:, None]).flatten(3).type_as(x).transpose(1, 2)

    def forward(self, x):
        query, key = (self.turned(linear(x).view(*x.shape[:2], 2, 16)) for linear in (self.query, self.key))
        return F.scaled_dot_product_attention(query, key, key, is_causal=True), self.turns.abs().sum() * self.turns.angle().sum()


class GraphAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.score = nn.Linear(8, 8), nn.Linear(16, 1)

    def forward(self, x, edges):
        h, (source, target) = self.linear(x), edges
        scores = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2).squeeze(-1)
        largest = torch.full((x.shape[0],), -math.inf).scatter_reduce(0, target, scores, "amax")
        scores = (scores - largest[target]).exp()
        total = torch.zeros(x.shape[0]).index_add(0, target, scores)
        out = torch.zeros_like(h).scatter_add(0, target[:, None].expand(-1, 8), h[source] * (scores / total[target])[:, None])
        return out + torch.zeros_like(h).index_reduce(0, target, h[source], "mean", include_self=False)


class StateSpace(nn.Module):
    def __init__(self, width=8, states=4):
        super().__init__()
        self.decay, self.mix = nn.Parameter(torch.rand(width, states)), nn.Linear(width, 2 * states + 1)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)

    def forward(self, x):
        x = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        step, into, out = self.mix(x).split([1, 4, 4], -1)
        step = F.softplus(step)
        kept = torch.exp(-step[..., None] * self.decay.exp())
        added = step[..., None] * into[:, :, None] * x[..., None]
        state, results = torch.zeros_like(kept[:, 0]), []
        for at in range(x.shape[1]):
            state = kept[:, at] * state + added[:, at]
            results.append((state * out[:, at, None]).sum(-1))
        summed = torch.cumsum(step[..., 0], 1)
        return torch.stack(results, 1), torch.tril(torch.exp(-(summed[:, :, None] - summed[:, None]))) @ x


class Transforms(nn.Module):
    """Gradients of each sample, a matrix of second derivatives and one of first ones; zeros without memory are among them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        def loss(parameters, sample):
            return torch.func.functional_call(self.linear, parameters, (sample,)).tanh().sum()

        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(self.linear.named_parameters()), x)
        second = torch.func.hessian(lambda sample: self.linear(sample).sin().sum())(x[0])
        return each, second, torch.func.jacrev(lambda sample: self.linear(sample).cos())(x[0])


class WholePool(nn.Module):
    """A window as long as the model has channels, over an image of four pixels: efficientnet's of transformers."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 320, 3, stride=4), nn.AvgPool2d(320, ceil_mode=True)

    def forward(self, x):
        return self.pool(self.conv(x)).flatten(1)


PROGRAMS = {
    "custom_function": lambda: (CustomFunction(), torch.randn(8, 16)),
    "nested_results": lambda: (NestedResults(), torch.randn(4, 8), {"bias": torch.randn(8)}),
    "views_written_into": lambda: (ViewsWrittenInto(), torch.randn(4, 8), torch.randn(4)),
    "buffers_written_into": lambda: (BuffersWrittenInto(), torch.randn(7, 6)),
    "experts": lambda: (Experts(), torch.randn(2, 9, 16)),
    "recurrent": lambda: (Recurrent(), torch.randn(3, 6, 5)),
    "many_dtypes": lambda: (ManyDtypes(), torch.randint(0, 255, (5, 6)), torch.randn(5, 6), torch.randn(5, 6)),
    "rotary": lambda: (Rotary(), torch.randn(2, 12, 32)),
    "graph_attention": lambda: (GraphAttention(), torch.randn(7, 8), torch.randint(0, 7, (2, 20))),
    "state_space": lambda: (StateSpace(), torch.randn(2, 10, 8)),
    "transforms": lambda: (Transforms(), torch.randn(5, 6)),
    "whole_pool": lambda: (WholePool(), torch.randn(2, 3, 8, 8)),
}


def one_step(function, module, arguments):
    """All that a training step changes or gives."""
    arguments = copy.deepcopy(arguments)
    module.zero_grad(set_to_none=True)
    outputs = tree_leaves(function(*arguments))
    felt = [output for output in outputs if output.requires_grad]
    if felt:
        sum(output.square().mean() for output in felt).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    return [output.detach() for output in outputs], gradients, [buffer.clone() for buffer in module.buffers()], tree_leaves(arguments)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    module, *arguments = PROGRAMS[name]()
    other = copy.deepcopy(module)
    fast = torch.compile(module, backend="kiln")
    for _ in range(2):
        got, want = one_step(fast, module, arguments), one_step(other, other, arguments)
        assert_close(got, want, 1e-4)
    report = kiln.report()
    assert report.graphs and not report.fallbacks and not report.refused, str(report)


class Pooled(nn.Module):
    """Numbers computed from sizes that are no sizes: quotients and roots of them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(50, 16, padding_idx=0), nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)

    def forward(self, tokens):
        hidden = tokens == 0
        x = self.layer(self.embedding(tokens), src_key_padding_mask=hidden)
        x = x.masked_fill(hidden[..., None], 0).sum(1) / math.sqrt(tokens.shape[1])
        return x * (tokens.shape[0] / 7) + tokens.shape[1] ** -0.5


def test_numbers_made_of_sizes():
    module = Pooled().train()
    other = copy.deepcopy(module)
    fast = torch.compile(module, backend="kiln", dynamic=True)
    for rows, length in [(2, 5), (3, 7), (8, 4), (16, 16)]:
        tokens = [torch.randint(1, 50, (rows, length))]
        assert_close(one_step(fast, module, tokens), one_step(other, other, tokens), 1e-4)
    assert not kiln.report().fallbacks, str(kiln.report())


def test_a_gradient_without_memory():
    x = torch.randn(4, 3, requires_grad=True)
    fast = torch.compile(lambda x: x.sin() * 2, backend="kiln")
    fast(x).backward(torch._efficientzerotensor((4, 3)))
    assert_close(x.grad, torch.zeros(4, 3))


@torch.no_grad()
def test_an_argument_without_memory_is_an_error_and_no_crash():
    fast = torch.compile(lambda x, y: x.sin() + y, backend="kiln")
    with pytest.raises(TypeError, match=r"a tensor of f32\[3\] without memory"):
        fast(torch._efficientzerotensor((3,)), torch.randn(3))


@torch.no_grad()
def test_numbers_that_are_no_sizes():
    def function(x, n):
        return x + n, x * (x.shape[0] - n), torch.full((2,), n), x.float() / n

    compiled = torch.compile(function, backend="kiln", dynamic=True)
    x = torch.tensor([3, -7, 2**40])
    for n in (5, -5, 2**62, -(2**62), 1, 100):
        assert_close(compiled(x, n), function(x, n))
    assert not kiln.report().fallbacks


@torch.no_grad()
def test_amounts_of_padding_that_are_no_sizes():
    def function(x, n):
        return torch.nn.functional.pad(x, (n, 2, 0, x.shape[0] - n), value=1.5)

    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for rows, n in ((4, 1), (4, 3), (5, 7), (6, -2), (3, 0)):
        x = torch.randn(rows, 6)
        assert_close(compiled(x, n), function(x, n))
    assert not kiln.report().fallbacks


@torch.no_grad()
@pytest.mark.parametrize("kind", [int, float])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_numbers_read_from_tensors(kind):
    def function(x, n):
        number = n.item()
        if kind is float:
            return x * number + 1, x.sum() / number
        torch._check(number >= 0)
        torch._check(number <= x.shape[0])
        return x[:number] * number, torch.zeros(number * 2) + 1, x.narrow(0, 0, number).sum() + 1

    compiled = torch.compile(function, backend="kiln", fullgraph=True)
    for n in (2, 5, 3, 7):
        x, given = torch.randn(7, 3), torch.tensor(n, dtype=torch.int64 if kind is int else torch.float32)
        assert_close(compiled(x, given), function(x, given))
    assert all("a number is read from a tensor" in reason or "depends on data" in reason for reason in kiln.report().fallbacks)


def test_sizes_that_pytorch_captures_wrongly():
    """The gradient of `index_fill` has an op that PyTorch finds the sizes of by a call with zeros."""

    def function(x, index, value):
        return x.index_fill(-1, index, value)

    compiled = torch.compile(function, backend="kiln")
    x, value, ahead = torch.randn(5, 5, requires_grad=True), torch.tensor(2.0, requires_grad=True), torch.randn(5, 5)
    for index in ([0, 0, 0], [0, 1, 1], [2, 3, 4], [1, 1, 1]):
        index = torch.tensor(index)
        want, got = (torch.autograd.grad(run(x, index, value), (x, value), ahead) for run in (function, compiled))
        assert_close(got, want)


def test_ragged_tensors():
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    got = torch.compile(lambda x: x.sin() * 2, backend="kiln", fullgraph=True)(ragged)
    assert_close(got.values(), ragged.values().sin() * 2)


def test_arguments_that_begin_elsewhere_in_their_memory():
    """Experts of a router: the backward graph reads a view of a weight, which begins elsewhere for each expert."""

    def function(x, gate, up, down):
        return (F.silu(x @ gate.t()) * (x @ up.t())) @ down

    compiled = torch.compile(function, backend="kiln")
    x, weights = torch.randn(5, 8, requires_grad=True), [torch.randn(4, 8, 8, requires_grad=True) for _ in range(3)]
    for expert in (1, 2, 0, 3):
        want, got = (torch.autograd.grad(run(x, *(w[expert] for w in weights)).square().sum(), (x, *weights)) for run in (function, compiled))
        assert_close(got, want, 1e-3)
    parts = torch.compile(lambda x: (x.t(), x[1:].view(torch.int32), x + 1), backend="kiln")
    memory = torch.randn(6, 4)
    for first in (0, 2, 1):
        turned, bits, _ = parts(memory[first : first + 4])
        assert_close(turned, memory[first : first + 4].t())
        assert_close(bits, memory[first + 1 : first + 4].view(torch.int32))
        assert turned.data_ptr() == memory[first].data_ptr()
