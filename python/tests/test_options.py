"""``mode=`` and ``options=``: each does what it says, and nothing else is taken."""

import logging
import time

import pytest
import torch
from conftest import assert_close, spy_on_programs
from torch import nn

import kiln
from kiln import race


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).eval()


def compiled(function, **options):
    return torch.compile(function, backend="kiln", options=options)


def kinds():
    return [event.kind for event in kiln.events()]


@torch.no_grad()
@pytest.mark.parametrize("mode", kiln.MODES)
def test_modes(mode):
    net, x = mlp(), torch.randn(64, 16)
    fast = torch.compile(net, backend="kiln", mode=mode)
    for _ in range(3):
        assert_close(fast(x), net(x))
    assert kinds().count("tuned") == mode.startswith("max-autotune")
    # torch.compile takes a mode or options, and options may have a mode.
    torch._dynamo.reset()
    assert_close(compiled(net, mode=mode, tuning_seconds=0.1)(x), net(x))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fast": True}, "no option fast; it has background, cache_dir, .*verify"),
        ({"mode": "fastest"}, "mode='fastest'.*'default', 'reduce-overhead', 'max-autotune'"),
        ({"numerics": "exact"}, "numerics='exact'.*'fast', 'eager'"),
        ({"precision": "low"}, "precision='low'.*'highest'"),
        ({"freeze": 1}, "freeze=1.*'no_copy', 'pack'"),
        ({"verify": "yes"}, "verify='yes'.*neither True nor False"),
        ({"tuning_seconds": -1}, "tuning_seconds=-1"),
        ({"cache_dir": 3}, "cache_dir=3.*not a path"),
    ],
)
def test_what_is_not_taken_is_an_error(options, message):
    with pytest.raises(Exception, match=message):
        compiled(torch.sin, **options)(torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(ValueError, match=message):
        kiln.Options.parse(options)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [lambda x: x * 1.01, lambda x: x / 1.01, lambda x: x * 0.1 + 0.3, lambda x: x // 1.01])
def test_eager_numerics_are_eager_to_the_bit(function, dtype):
    x = torch.randn(1000, dtype=dtype)
    got = compiled(function, numerics="eager")(x)
    assert torch.equal(got, function(x))


@torch.no_grad()
def test_fast_numerics_round_once():
    def chain(x):
        return (x * 3 + x) * 5 + x

    x = torch.randn(1000, dtype=torch.bfloat16)
    exact = chain(x.double())
    errors = [(compiled(chain, numerics=n)(x).double() - exact).abs().mean() for n in ("fast", "eager")]
    assert errors[0] < errors[1]
    torch._dynamo.reset()
    assert torch.equal(compiled(chain, numerics="eager")(x), chain(x))


@pytest.fixture
def precision():
    """PyTorch's setting is put back."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def test_precision_is_pytorchs_unless_it_is_given(precision):
    for name in ("medium", "highest"):
        precision(name)
        assert kiln.Options().for_rust()["precision"] == name
    assert kiln.Options(precision="high").for_rust()["precision"] == "high"


@torch.no_grad()
def test_products_have_the_precision_of_each_call(precision):
    """Whatever it is changed to between two calls; of the option's own, PyTorch's setting changes nothing."""
    x, w = torch.randn(128, 256), torch.randn(256, 64)
    exact = x.double() @ w.double()

    def error(run):
        return float((run(x, w).double() - exact).abs().max())

    precision("highest")
    bound = 4 * error(torch.matmul)
    fast = compiled(torch.matmul, torch_kernels=False)
    for name in ("highest", "high", "medium", "high", "highest", "medium"):
        precision(name)
        found = error(fast)
        assert (found > 100 * bound) == (name == "medium"), (name, found, bound)
    assert kiln.report().graphs == 3, str(kiln.report())
    torch._dynamo.reset()
    always, never = (compiled(torch.matmul, torch_kernels=False, precision=name) for name in ("medium", "highest"))
    for name in ("highest", "medium", "high"):
        precision(name)
        assert error(always) > 100 * bound and error(never) <= bound


@torch.no_grad()
def test_verify_looks_at_every_kernel():
    net, x = mlp(), torch.randn(4, 16)
    fast = compiled(net, verify=True)
    assert_close(fast(x), net(x))
    assert_close(fast(x + 1), net(x + 1))
    checked = [event.text for event in kiln.events() if event.kind == "verified"]
    assert len(checked) == 1 and "kernels are right" in checked[0] and not checked[0].startswith("0 ")


@torch.no_grad()
@pytest.mark.parametrize("freeze", [True, "no_copy", "pack"])
def test_frozen_weights_may_change(freeze):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)
            self.scale = nn.Parameter(torch.rand(64, 1))

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight * self.scale.exp(), self.inner.bias)

    net, x = Net().eval(), torch.randn(256, 64)
    fast = compiled(net, freeze=freeze)
    for change in (
        lambda: None,
        lambda: net.inner.weight.mul_(2),
        lambda: net.scale.add_(0.5),
        lambda: setattr(net.inner.weight, "data", torch.randn(64, 64)),
        lambda: net.load_state_dict({name: torch.rand_like(value) for name, value in net.state_dict().items()}),
        lambda: setattr(net, "scale", nn.Parameter(torch.rand(64, 1))),
    ):
        change()
        for _ in range(2):
            assert_close(fast(x), net(x), 1e-4)


@torch.no_grad()
def test_freezing_prepares_once(monkeypatch):
    programs = spy_on_programs(monkeypatch)
    net, x = nn.Linear(64, 64).eval(), torch.randn(256, 64)
    fast = compiled(net, freeze="pack")
    for _ in range(5):
        fast(x)
    packed, _, prepares = programs[0].frozen
    assert packed >= 64 * 64 * 4 and prepares == 1
    net.weight.mul_(2)
    assert_close(fast(x), net(x))
    assert programs[0].frozen[2] == 2
    programs.clear()
    torch._dynamo.reset()
    compiled(net, freeze="no_copy")(x)
    assert programs[0].frozen[0] == 0


def test_freezing_leaves_training_alone():
    net, x = mlp(), torch.randn(4, 16)
    fast = compiled(net, freeze=True)
    for _ in range(3):
        loss = fast(x).square().sum()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        assert_close(fast(x).detach(), net(x).detach(), 1e-4)


@torch.no_grad()
def test_background_runs_in_pytorch_meanwhile():
    net, x = mlp(), torch.randn(4, 16)
    fast = compiled(net, background=True)
    until = time.monotonic() + 60
    while "background" not in kinds():
        assert_close(fast(x), net(x))
        assert time.monotonic() < until
    assert_close(fast(x), net(x))
    assert kiln.report().programs == 1


@torch.no_grad()
@pytest.mark.parametrize("times, kind", [((1e-3, 2e-3), "slower"), ((2e-3, 1e-3), "faster")])
def test_never_slower_keeps_the_faster(monkeypatch, times, kind):
    def measure(one, other):
        one(), other()
        return times

    monkeypatch.setattr(race, "_race", measure)
    norm, x = nn.BatchNorm1d(6), torch.randn(8, 6)
    want = nn.BatchNorm1d(6)
    fast = compiled(norm, never_slower=True)
    for _ in range(3):
        assert_close(fast(x), want(x))
        # What the measurement wrote is put back.
        assert_close(dict(norm.named_buffers()), dict(want.named_buffers()))
    assert kinds().count(kind) == 1 and kinds().count("slower") + kinds().count("faster") == 1


def test_never_slower_with_gradients():
    net, x = mlp(), torch.randn(4, 16)
    fast = compiled(net, never_slower=True)
    torch.manual_seed(3)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    fast(x).sum().backward()
    assert torch.equal(torch.rand(3), drawn)
    got = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    assert_close(got, [parameter.grad for parameter in net.parameters()], 1e-4)
    assert "faster" in kinds() or "slower" in kinds()


@torch.no_grad()
def test_fallback_random_draws_as_eager():
    def drop(x):
        return nn.functional.dropout(x, 0.5) + 1

    x = torch.randn(1000)
    for options, same in (({"fallback_random": True}, True), ({}, False)):
        torch._dynamo.reset()
        torch.manual_seed(1)
        got = compiled(drop, **options)(x)
        torch.manual_seed(1)
        assert torch.equal(got, drop(x)) == same


@torch.no_grad()
def test_cache_dir(tmp_path):
    before = kiln.cache.folder()
    try:
        compiled(mlp(), cache_dir=str(tmp_path / "cache"))(torch.randn(4, 16))
        assert kiln.cache.folder() == tmp_path / "cache"
        assert kiln.cache.entries()["programs"][0] == 1 and kiln.cache.size() > 0
        removed, size = kiln.cache.clear()
        assert removed >= 1 and size > 0 and kiln.cache.size() == 0
    finally:
        kiln.cache.set_folder(before)


@torch.no_grad()
def test_logging(caplog):
    with caplog.at_level(logging.DEBUG, logger="kiln"):
        compiled(lambda x: x.sin() * 3.25, disk_cache=False)(torch.randn(77))
        kiln.report()
    assert any(record.name == "kiln" and "launches" in record.getMessage() for record in caplog.records)
    assert any(record.name == "kiln.kernels" for record in caplog.records)
    caplog.clear()
    torch._dynamo.reset()
    compiled(torch.linalg.eigvalsh)(torch.eye(3))
    assert any(record.levelno == logging.WARNING and "linalg_eigh" in record.getMessage() for record in caplog.records)
