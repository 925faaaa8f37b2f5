"""Threads, processes, interrupts and memory."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
import torch
from conftest import assert_close, spy_on_programs
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kiln
from kiln import _kiln


def mlp(width=64):
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 8)).eval()


def test_eight_threads_call_one_model():
    net = mlp()
    fast = torch.compile(net, backend="kiln", dynamic=True)
    inputs = [torch.randn(rows, 16) for rows in (3, 64, 512, 7, 33, 100, 5, 257)]
    with torch.no_grad():
        wants = [net(x) for x in inputs]
        # Dynamo itself does not take first calls from many threads at once.
        fast(inputs[0])
    failures = []

    def work(number):
        try:
            with torch.no_grad():
                for turn in range(200):
                    place = (number + turn) % len(inputs)
                    assert_close(fast(inputs[place]), wants[place], 1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


def test_threads_train_copies():
    """Forward and backward graphs on several threads at once."""
    net = mlp()
    fast = torch.compile(net, backend="kiln")
    x = torch.randn(32, 16)
    fast(x).sum().backward()
    want = [parameter.grad.clone() for parameter in net.parameters()]
    failures = []

    def work():
        try:
            for _ in range(20):
                got = torch.autograd.grad(fast(x).sum(), list(net.parameters()))
                assert_close(list(got), want, 1e-3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


class Rows(Dataset):
    """Rows that a compiled function makes in the worker, if there is one."""

    def __init__(self, function=None):
        self.function = function

    def __len__(self):
        return 24

    def __getitem__(self, number):
        row = torch.full((16,), float(number))
        with torch.no_grad():
            return self.function(row) if self.function is not None else row


@torch.no_grad()
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loaders_beside_a_compiled_model(start):
    net = mlp()
    fast = torch.compile(net, backend="kiln")
    fast(torch.randn(4, 16))
    loader = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context=start, timeout=120)
    batches = [(batch, fast(batch)) for _ in range(2) for batch in loader]
    assert len(batches) == 12
    for batch, result in batches:
        assert_close(result, net(batch))


def _large(x):
    return (x.exp() + 1).log().sum(-1)


_compiled_large = torch.compile(_large, backend="kiln", dynamic=False)


def _in_a_child(x, into):
    # No op of PyTorch's that runs on several threads: these do not survive a fork.
    with torch.no_grad():
        into.put(_compiled_large(x)[0].item())


@torch.no_grad()
def test_a_forked_child_calls_what_its_parent_compiled():
    kiln.set_threads(2)
    try:
        x = torch.ones(512, 4096)
        want = _compiled_large(x)[0].item()
        context = multiprocessing.get_context("fork")
        for _ in range(3):
            into = context.Queue()
            child = context.Process(target=_in_a_child, args=(x, into))
            child.start()
            got = into.get(timeout=60)
            child.join(60)
            assert child.exitcode == 0 and got == want
            # The parent's pool is as it was.
            assert _compiled_large(x)[0].item() == want
    finally:
        kiln.set_threads()


@torch.no_grad()
def test_a_data_loader_whose_workers_call_it():
    fast = torch.compile(lambda row: row.sin() * 2, backend="kiln")
    fast(torch.ones(16))
    loader = DataLoader(Rows(fast), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=120)
    got = torch.cat(list(loader))
    want = torch.arange(24.0)[:, None].expand(24, 16).sin() * 2
    assert_close(got, want.contiguous())


INTERRUPTED = textwrap.dedent(
    """
    import os, signal, sys, threading, time, torch, kiln
    from kiln import executor

    # A process whose parent ignores the signal would do so too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def deep(x):
        for number in range(400):
            x = (x @ x.t()).tanh() + number
        return x

    finish = executor._finish
    def slow(*arguments):
        # The signal comes while the native part compiles.
        threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        return finish(*arguments)

    executor._finish = slow
    fast = torch.compile(deep, backend="kiln", options={"disk_cache": False})
    x = torch.eye(8) / 100
    with torch.no_grad():
        try:
            fast(x)
            time.sleep(float(sys.argv[1]) + 0.1)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        executor._finish = finish
        torch.testing.assert_close(fast(x), deep(x))
    print("right", kiln.report().refused)
    """
)


@pytest.mark.parametrize("delay", ["0.0", "0.01"])
def test_an_interrupt_during_a_compile(delay):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, delay], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == ["interrupted", "right 0"], done.stdout


def local_net():
    """A model whose code goes with it: Dynamo keeps what it compiled with the code."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1024, 1024)

        def forward(self, x):
            return self.inner(x).relu()

    return Net()


@pytest.mark.parametrize("trains", [False, True])
def test_a_model_that_is_gone_frees_its_programs(trains):
    gc.collect()
    before = _kiln.live_programs()
    net = local_net()
    fast = torch.compile(net, backend="kiln")
    with torch.set_grad_enabled(trains):
        result = fast(torch.randn(8, 1024))
    if trains:
        result.sum().backward()
    assert _kiln.live_programs() == before + 1 + trains
    del fast, net, result
    # PyTorch's own cycles take more than one round.
    for _ in range(3):
        gc.collect()
    assert _kiln.live_programs() == before


@torch.no_grad()
def test_a_frozen_model_that_is_gone_frees_its_weights(monkeypatch):
    """Also where Dynamo keeps the program, because the code of the model's class is still there."""
    programs = spy_on_programs(monkeypatch)
    net = nn.Linear(1024, 1024).eval()
    storage = net.weight.untyped_storage()
    fast = torch.compile(net, backend="kiln", options={"freeze": "pack"})
    fast(torch.randn(256, 1024))
    assert programs[0].frozen[0] >= 4 << 20 and programs[0].holds_weights
    gone = weakref.ref(storage)
    del fast, net, storage
    gc.collect()
    assert not programs[0].holds_weights and gone() is None
    # Another model takes the program over.
    net = nn.Linear(1024, 1024).eval()
    x = torch.randn(256, 1024)
    assert_close(torch.compile(net, backend="kiln", options={"freeze": "pack"})(x), net(x), 1e-4)


GROWTH = textwrap.dedent(
    """
    import ctypes, gc, sys, torch
    backend, rounds = sys.argv[1], int(sys.argv[2])

    def resident():
        for _ in range(3):
            gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def recompile(number):
        def function(x):
            return (x * (number + 0.5)).softmax(-1) @ x.t()
        torch._dynamo.reset()
        # Some of them with gradients.
        x = torch.ones(8 + number % 57, 64, requires_grad=number % 8 == 0)
        result = torch.compile(function, backend=backend, dynamic=False)(x)
        if x.requires_grad:
            result.sum().backward()

    sizes = []
    for number in range(3 * rounds):
        recompile(number)
        if (number + 1) % rounds == 0:
            sizes.append(resident())
    print(sizes[2] - sizes[1])
    """
)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_recompiles_do_not_grow_memory():
    """New constants make new kernels each time; what goes must go. PyTorch's own growth is measured beside it."""
    rounds = 60

    def start(backend):
        environment = {**os.environ, "KILN_CACHE": "off", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", GROWTH, backend, str(rounds)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def growth(process):
        out, errors = process.communicate(timeout=900 + 3 * rounds)
        assert process.returncode == 0, errors[-4000:]
        return int(out.split()[-1])

    own, theirs = map(growth, (start("kiln"), start("aot_eager")))
    print(f"a recompile: {own / rounds / 1024:.2f} kB, with aot_eager {theirs / rounds / 1024:.2f}")
    # Memory comes in pieces: a few megabytes are no growth.
    assert own - theirs < 3 << 20, f"{own / rounds / 1024:.1f} kB a recompile, aot_eager {theirs / rounds / 1024:.1f}"


PROGRAMS = textwrap.dedent(
    """
    import ctypes, gc, sys, torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from kiln import _kiln
    from kiln.executor import compile_graph
    from kiln.options import DEFAULT
    rounds = int(sys.argv[1])

    def resident():
        gc.collect()
        # Up to a bound, kernels are kept for programs to come.
        _kiln.forget()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def function(x):
        return [(x * 0.5).softmax(-1) @ x.t(), torch.nonzero(x.sum(0)), x.cos()]

    x = torch.ones(24, 64)
    module = make_fx(function, tracing_mode="fake")(x)
    product = next(node for node in module.graph.nodes if node.target is torch.ops.aten.mul.Tensor)
    sizes = []
    for number in range(3 * rounds):
        product.args = (product.args[0], number + 0.5)
        compile_graph(module, f"graph{number}", DEFAULT)([x])
        if (number + 1) % rounds == 0:
            sizes.append(resident())
    print(_kiln.live_programs(), sizes[1] - sizes[0], sizes[2] - sizes[1])
    """
)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_programs_that_are_gone_leave_nothing():
    """Kiln's part of many recompiles, without PyTorch's. KILN_RECOMPILES says how many there are: 10,000 take some minutes."""
    rounds = int(os.environ.get("KILN_RECOMPILES", "900")) // 3
    environment = {**os.environ, "KILN_CACHE": "off", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAMS, str(rounds)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    alive, first, second = map(int, done.stdout.split()[-3:])
    print(f"{3 * rounds} compiles; the second third added {first / 1024:.0f} kB, the last {second / 1024:.0f} kB")
    assert alive == 0
    # Memory comes in pieces: two megabytes are no growth.
    assert min(first, second) < (2 << 20), f"{first / rounds:.0f} and {second / rounds:.0f} bytes a compile"
