"""The option ``never_slower``: PyTorch against Kiln on the arguments of the first call."""

import threading
import time

import torch

from .report import emit

_SECONDS = 0.3
_TURNS = 50
_FEWEST = 3


def never_slower(module, compiled, mutated, name):
    """A function that is the faster of the two. ``mutated`` are the numbers of the arguments that they write into: what the
    measurement changes is put back."""
    lock = threading.Lock()
    chosen = None

    def run(*arguments):
        nonlocal chosen
        if chosen is None:
            with lock:
                if chosen is None:
                    chosen = _faster(module, compiled, arguments, mutated, name)
        return chosen(*arguments)

    return run


def _faster(module, compiled, arguments, mutated, name):
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        emit("remark", name, "never_slower: not measured, for ranks would have to measure together")
        return compiled
    devices = sorted({argument.device.index or 0 for argument in arguments if isinstance(argument, torch.Tensor) and argument.is_cuda})
    if devices and torch.cuda.is_current_stream_capturing():
        emit("remark", name, "never_slower: not measured while a CUDA graph is recorded")
        return compiled
    tensors = [arguments[number] for number in mutated if isinstance(arguments[number], torch.Tensor)]
    saved = [tensor.detach().clone() for tensor in tensors]

    def timed(function):
        start = time.perf_counter()
        _step(function, arguments)
        for device in devices:
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    try:
        with torch.random.fork_rng(devices=devices):
            first, second = _race(lambda: timed(module), lambda: timed(compiled))
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved):
                tensor.copy_(value)
    if second <= first:
        emit("faster", name, f"Kiln {second * 1e3:.3f} ms, PyTorch {first * 1e3:.3f} ms")
        return compiled
    emit("slower", name, f"PyTorch runs it: {first * 1e3:.3f} ms, Kiln {second * 1e3:.3f} ms")
    return module


def _step(function, arguments):
    """A call, and the gradients of its results where there are any."""
    results = function(*arguments)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    ends = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad and r.grad_fn is not None]
    starts = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if ends and starts and torch.is_grad_enabled():
        torch.autograd.grad(ends, starts, [torch.ones_like(end) for end in ends], allow_unused=True)


def _race(one, other):
    """The best times of both, in turns; the first turn of each does not count."""
    best = [float("inf"), float("inf")]
    until = time.perf_counter() + _SECONDS
    for turn in range(_TURNS):
        for number, way in enumerate((one, other)):
            took = way()
            if turn > 0:
                best[number] = min(best[number], took)
        if turn >= _FEWEST and time.perf_counter() > until:
            break
    return best
