"""GPUs. What needs no GPU to be checked comes first: how graphs of CUDA tensors are taken, and the values of ops that PyTorch has
there alone, computed on the CPU. The rest runs where PyTorch finds a GPU."""

import operator

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_close
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln import devices, executor, partition
from kiln.backend import decompositions
from kiln.options import Options

aten = torch.ops.aten
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")


def _taken(function, *arguments):
    """The device of a function of fake tensors, and the nodes that Kiln does not take."""
    module = make_fx(function, decomposition_table=decompositions())(*arguments)
    nodes = [node for node in module.graph.nodes if partition.is_computed(node)]
    parameters = [node for node in module.graph.nodes if node.op == "placeholder"]
    device = devices.of_graph([*parameters, *nodes])
    foreign, _ = partition.foreign_nodes(nodes, parameters, device)
    return device, foreign


def test_graphs_of_cuda_tensors_are_taken_whole():
    def block(x, weight, scale, mask):
        q, k, v = (x @ weight).view(2, 16, 3, 4, 32).permute(2, 0, 3, 1, 4)
        flash = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        efficient = aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0]
        y = (flash + efficient).transpose(1, 2).reshape(2, 16, 128)
        return F.gelu(F.layer_norm(y, [128])) * scale

    with FakeTensorMode():
        x, weight = (torch.empty(*size, device="cuda", dtype=torch.bfloat16) for size in [(2, 16, 128), (128, 384)])
        mask = torch.empty(2, 4, 16, 16, device="cuda", dtype=torch.bfloat16)
        device, foreign = _taken(block, x, weight, torch.empty(()), mask)
    assert device == torch.device("cuda:0")
    assert not foreign


def test_tensors_of_the_host_stay_in_pytorch():
    with FakeTensorMode():
        device, foreign = _taken(lambda x, y: x.sin() + y.cos().to("cuda"), torch.empty(4, device="cuda"), torch.empty(4))
    assert device.type == "cuda"
    assert sorted(str(node.target) for node in foreign) == ["aten._to_copy.default", "aten.cos.default"]


def _attention_graph(op, arguments, results):
    """A module that calls an op on its tensor arguments, traced with results like the given ones; those that are tensors are returned."""
    graph = torch.fx.Graph()
    mode = FakeTensorMode()

    def node(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder(f"x{len(graph.nodes)}")
        made.meta["val"] = mode.from_tensor(value)
        return made

    call = graph.call_function(op, tuple(node(value) for value in arguments), {"scale": _SCALE})
    call.meta["val"] = tuple(mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in results)
    returned = []
    for number, value in enumerate(results):
        part = graph.call_function(operator.getitem, (call, number))
        part.meta["val"] = call.meta["val"][number]
        returned += [part] if isinstance(value, torch.Tensor) else []
    graph.output(returned)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    run = executor.compile_graph(module, op.__name__, Options(fullgraph_native=True))
    return run([value for value in arguments if isinstance(value, torch.Tensor)])


_SCALE = 0.3
_STATE = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("causal", [False, True])
def test_values_of_cuda_attention(kind, causal):
    """The three ops of PyTorch and their gradients, which exist on CUDA alone, in Kiln on the CPU."""
    rows = 40
    q, k, v = (torch.randn(2, 4, rows, 16, requires_grad=True) for _ in range(3))
    mask = torch.randn(2, 4, rows, rows) if kind != "flash" and not causal else None
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=_SCALE)
    gradient = torch.randn_like(want)
    wanted = torch.autograd.grad(want, (q, k, v), gradient)
    scores = q @ k.mT * _SCALE + (mask if mask is not None else 0)
    if causal:
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -torch.inf)
    logarithms = scores.logsumexp(-1).detach()
    q, k, v, want = (x.detach() for x in (q, k, v, want))
    forward, backward = (getattr(aten, f"_scaled_dot_product_{kind}_attention{end}").default for end in ("", "_backward"))
    state = list(_STATE)
    if kind == "flash":
        results = [want, logarithms, None, None, rows, rows, *state, torch.empty(0)]
        arguments, saved = [0.0, causal, False], [None, None, rows, rows, 0.0, causal, *state]
    elif kind == "efficient":
        # PyTorch keeps the logarithms of whole tiles of 32 rows.
        padded = F.pad(logarithms, (0, 24), value=torch.inf)
        logarithms, state = padded, [torch.zeros((), dtype=torch.int64)] * 2
        results = [want, padded, *state]
        arguments, saved = [mask, True, 0.0, causal], [*state, 0.0, [True, True, True, False], causal]
    else:
        logarithms = logarithms.unsqueeze(-1)
        state = [torch.zeros((), dtype=torch.int64)] * 2
        results = [want, logarithms, None, None, rows, rows, *state, None]
        arguments, saved = [mask, True, 0.0, causal, False], [*state, mask, None, None, rows, rows, 0.0, causal]
    got = _attention_graph(forward, [q, k, v, *arguments], results)
    assert_close(got[:2], [want, logarithms])
    before = [gradient, q, k, v, *([mask] if kind == "efficient" else []), want, logarithms]
    got = _attention_graph(backward, [*before, *saved], [x.clone() for x in wanted])
    assert_close(got, list(wanted), tolerance=1e-4)


def test_whole_numbers_without_a_sign_are_moved():
    x = torch.arange(12).view(3, 4).to(torch.uint16)
    compiled = torch.compile(lambda x: (x.t().clone(), x[1:].flip(0)), backend="kiln", options={"fullgraph_native": True})
    assert_close(compiled(x), (x.t().clone(), x[1:].flip(0)))


def test_numbers_without_a_sign_are_not_computed_with():
    x = torch.tensor([1, 2**40, 2**63 + 5], dtype=torch.uint64)
    compiled = torch.compile(lambda x: x.to(torch.float64), backend="kiln")
    assert torch.equal(compiled(x), x.to(torch.float64))
    assert any("without a sign" in reason for reason in kiln.report().fallbacks)


class Block(torch.nn.Module):
    """A small transformer layer."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 96)
        self.norm = torch.nn.LayerNorm(96)
        self.qkv, self.out, self.up, self.down = (torch.nn.Linear(*size) for size in [(96, 288), (96, 96), (96, 192), (192, 96)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).view(*tokens.shape, 3, 3, 32).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _block(dtype=torch.float32):
    return Block().to("cuda", dtype), torch.randint(64, (4, 24), device="cuda")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_layer_on_a_gpu(dtype, mode):
    model, tokens = _block(dtype)
    compiled = torch.compile(model, backend="kiln", mode=mode)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(tokens), model(tokens), rtol=2e-2, atol=2e-2)
    report = kiln.report()
    assert report.programs >= 1 and not report.fallbacks and not report.refused, str(report)


@needs_gpu
def test_training_on_a_gpu():
    torch.backends.cuda.matmul.allow_tf32 = False
    model, tokens = _block()
    compiled = torch.compile(model, backend="kiln")
    for _ in range(2):
        compiled(tokens).square().mean().backward()
        got = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(tokens).square().mean().backward()
        torch.testing.assert_close(got, [parameter.grad for parameter in model.parameters()], rtol=1e-3, atol=1e-4)
        model.zero_grad()
    assert not kiln.report().fallbacks, str(kiln.report())


@needs_gpu
@torch.no_grad()
def test_a_scalar_of_the_host_beside_tensors_of_a_gpu():
    compiled = torch.compile(lambda x, y: x * y + 1, backend="kiln")
    x = torch.randn(8, device="cuda")
    for number in (2.0, -3.0):
        assert_close(compiled(x, torch.tensor(number)), x * number + 1)


@needs_gpu
@torch.no_grad()
def test_the_current_stream_is_used():
    """Work that is queued before on a slow stream is seen, and what comes after sees the results, without a wait."""
    compiled = torch.compile(lambda x: x * 2 + 1, backend="kiln")
    x = torch.zeros(1 << 22, device="cuda")
    compiled(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(1, 20):
            torch.cuda._sleep(1_000_000)
            x.fill_(number)
            total = compiled(x).sum()
    stream.synchronize()
    assert total.item() == x.numel() * 39.0


@needs_gpu
@torch.no_grad()
def test_a_graph_that_the_user_captures():
    model, tokens = _block(torch.bfloat16)
    compiled = torch.compile(model, backend="kiln")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        compiled(tokens)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(tokens)
    for _ in range(3):
        tokens.copy_(torch.randint(64, (4, 24), device="cuda"))
        graph.replay()
        torch.testing.assert_close(result, model(tokens), rtol=2e-2, atol=2e-2)


@needs_gpu
@torch.no_grad()
def test_random_numbers_differ_at_each_replay():
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="kiln")
    x = torch.ones(4096, device="cuda")
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second) and 0.4 < (first == 0).float().mean() < 0.6
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    graph.replay()
    first = result.clone()
    graph.replay()
    assert not torch.equal(first, result)


@needs_gpu
@torch.no_grad()
def test_an_index_out_of_range_is_told_at_a_later_call():
    model, tokens = _block()
    compiled = torch.compile(model, backend="kiln")
    compiled(tokens)
    tokens[0, 0] = 64
    with pytest.raises(RuntimeError, match="64"):
        for _ in range(20):
            compiled(tokens)
            torch.cuda.synchronize()
    tokens[0, 0] = 0
    torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-3, atol=1e-3)


@needs_gpu
def test_a_compiled_optimizer_on_a_gpu():
    """Both optimizers get the same gradients. Those of a model would not do: Adam divides by their size, and the gradient of the bias
    of keys is rounding alone, since softmax does not see what is added to all keys."""
    model, _ = _block()
    other = Block().cuda()
    other.load_state_dict(model.state_dict())
    gradients = [[torch.randn_like(parameter) for parameter in model.parameters()] for _ in range(3)]
    for module, compiled in ((model, True), (other, False)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        step = torch.compile(optimizer.step, backend="kiln") if compiled else optimizer.step
        for of_step in gradients:
            for parameter, gradient in zip(module.parameters(), of_step, strict=True):
                parameter.grad = gradient.clone()
            step()
        assert all(state["step"].item() == 3 for state in optimizer.state.values())
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@torch.no_grad()
def test_a_counter_of_the_host_that_a_graph_updates(device):
    """As the steps of an optimizer are that does not keep them beside its parameters."""

    def decay(x, step):
        step += 1
        x.mul_(0.5**step)

    compiled = torch.compile(decay, backend="kiln")
    x, step = torch.ones(8, device=device), torch.tensor(0.0)
    for _ in range(3):
        compiled(x, step)
    assert step.item() == 3
    assert_close(x, torch.full_like(x, 0.5 ** (1 + 2 + 3)))
