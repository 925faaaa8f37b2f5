"""Convolutions, products and attentions whose kernel in PyTorch is faster than Kiln's: measured for each shape, remembered on disk.

Such a node is a step between two programs. It loses the fusion with its neighbours, so it has to win by more than that costs. Times are
kept in `torch_kernels.jsonl` in the folder of the disk cache, one line for each op, its arguments, the number of threads, the processor
and both versions; a file that others write at the same time is read to the last whole line.
"""

import dataclasses
import functools
import hashlib
import json
import math
import operator
import os
import pathlib
import platform
import threading
import time

import torch
from torch.fx.node import Node
from torch.utils._python_dispatch import _disable_current_modes

from . import _kiln
from .lower import Lowering, NotNative, arguments_of

aten = torch.ops.aten

# PyTorch has to be this much faster, after what its step costs: a call from Python, and one more pass over the results.
_MARGIN = 1.15
_STEP_SECONDS = 20e-6
_BYTES_PER_SECOND = 10e9
# Below this many multiplications nothing is measured: a step costs more than any kernel could win. Products of matrices lose less to
# PyTorch's than convolutions do.
_SMALLEST_CONVOLUTION = 1_000_000
_SMALLEST_PRODUCT = 16_000_000
# How long the nodes of one graph are measured, and one node.
_GRAPH_SECONDS = 5.0
_NODE_SECONDS = 0.05
_MOST_ROUNDS = 8
# Fewer say little where other processes run.
_FEWEST_ROUNDS = 3
# Where the first round says so clearly, it is the last.
_CLEARLY = 3.0


def faster_in_torch(nodes, foreign, options):
    """The nodes to run in PyTorch, each with the measured times as text, and how many were not measured for lack of time."""
    if not options.torch_kernels or options.fullgraph_native:
        return {}, 0
    computed = {node for node in nodes if node not in foreign and _has_memory_of_its_own(node)}
    keys = {node: key for node in nodes if node not in foreign and (key := _key(node, computed)) is not None}
    keys = {node: key for node, key in keys.items() if not _is_more_than_measured(node, options)}
    if not keys:
        return {}, 0
    table = Table.of(_file() if options.disk_cache else None)
    until = time.perf_counter() + _GRAPH_SECONDS
    # The largest first, for there may not be time for all.
    for node in sorted(keys, key=_multiplications, reverse=True):
        if table.get(keys[node]) is None and time.perf_counter() < until:
            times = measure(node, options, computed)
            if times is not None:
                table.put(keys[node], times)
    chosen, missed = {}, 0
    for node, key in keys.items():
        times = table.get(key)
        if times is None:
            missed += 1
        elif _wins(node, *times):
            chosen[node] = f"measured: torch {times[0] * 1e3:.2f} ms, kiln {times[1] * 1e3:.2f} ms"
    return chosen, missed


# How many nodes before a product are looked at.
_MOST_NODES = 32


def _is_more_than_measured(node, options):
    """Whether a product in its graph is another one than the product alone that is measured: of weights that are packed once, or of
    integers that are scaled while they are read."""
    if _CANDIDATES[node.target][0] is not _of_product:
        return False
    return bool(options.freeze) or any(map(_is_from_integers, node.args[-2:]))


# What quantised weights are kept in. Masks and indices are of other types.
_QUANTISED = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32})


def _is_from_integers(node):
    """Whether an operand is computed from such numbers, as far as its nearest ancestors say."""
    waiting = [node]
    for at in waiting:
        fake = at.meta.get("val")
        if not isinstance(fake, torch.Tensor) or fake.ndim == 0:
            continue
        if fake.dtype in _QUANTISED:
            return True
        if fake.is_floating_point() and at.target not in _CANDIDATES:
            waiting += [arg for arg in at.all_input_nodes if arg not in waiting and len(waiting) < _MOST_NODES]
    return False


def parts(node):
    """The nodes that take a node's result apart."""
    return [user for user in node.users if user.target is operator.getitem]


def _has_memory_of_its_own(node):
    """Whether a node's result is computed, and no view of something else."""
    if node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node.target, torch._ops.OpOverload) and not any(result.alias_info for result in node.target._schema.returns)


def _in_program(arg, computed):
    """An argument of a node as its program has it: what is computed there is row-major, whatever strides PyTorch's result would have."""
    fake = arg.meta["val"]
    return fake.contiguous() if arg in computed and isinstance(fake, torch.Tensor) else fake


def _wins(node, torch_seconds, kiln_seconds):
    bytes_made = sum(fake.numel() * fake.element_size() for fake in _fakes(node))
    return torch_seconds * _MARGIN + _STEP_SECONDS + 2 * bytes_made / _BYTES_PER_SECOND < kiln_seconds


def _fakes(node):
    fakes = node.meta.get("val")
    return [fake for fake in (fakes if isinstance(fakes, (list, tuple)) else [fakes]) if isinstance(fake, torch.Tensor)]


def _of_convolution(node):
    if node.target is aten.convolution.default:
        image, weight, transposed, made = node.args[0], node.args[1], node.args[6], node.meta["val"]
        grads = 1
    else:
        made, image, weight, transposed = node.args[0].meta["val"], node.args[1], node.args[2], node.args[7]
        grads = sum(node.args[10][:2])
    places = image.meta["val"].numel() if transposed else made.numel()
    return grads * places * math.prod(weight.meta["val"].shape[1:])


def _of_product(node):
    first = node.args[-2].meta["val"]
    return node.meta["val"].numel() * first.shape[-1]


def _of_attention(node):
    arguments = dict(arguments_of(node))
    query, key, value = (arguments[name].meta["val"] for name in ("query", "key", "value"))
    products = 2 if "grad_out" in arguments else 1
    return products * math.prod(query.shape[:3]) * key.shape[2] * (query.shape[3] + value.shape[3])


# The ops that are measured, with their multiplications and how many these have to be.
_CANDIDATES = {
    **dict.fromkeys((aten.convolution.default, aten.convolution_backward.default), (_of_convolution, _SMALLEST_CONVOLUTION)),
    # Not of batches: these are the halves of attentions, which Kiln makes one kernel of.
    **dict.fromkeys((aten.mm.default, aten.addmm.default), (_of_product, _SMALLEST_PRODUCT)),
    **dict.fromkeys(
        (aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention_for_cpu_backward.default),
        (_of_attention, _SMALLEST_PRODUCT),
    ),
}


def _multiplications(node):
    """The multiplications of a candidate."""
    return _CANDIDATES[node.target][0](node)


def _key(node, computed=frozenset()):
    """What the times of a node depend on; none for a node that is not measured."""
    if node.target not in _CANDIDATES:
        return None
    described = []
    for name, given in arguments_of(node):
        value = given.meta.get("val") if isinstance(given, Node) else given
        if isinstance(value, torch.Tensor):
            numbers = (*value.shape, *value.stride())
            if not all(type(number) is int for number in numbers) or value.device.type != "cpu":
                return None
            value = [str(value.dtype), list(value.shape), list(value.stride()), given in computed and not value.is_contiguous()]
        elif isinstance(value, torch.SymInt):
            return None
        described.append([name, value])
    if _multiplications(node) < _CANDIDATES[node.target][1]:
        return None
    return json.dumps([str(node.target), described, torch.get_num_threads(), *_machine()], default=str)


@functools.cache
def _machine():
    """The processor, and the versions of what runs on it."""
    name = platform.processor() or platform.machine()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    build = hashlib.blake2b(pathlib.Path(_kiln.__file__).read_bytes(), digest_size=16).hexdigest()
    return name, os.environ.get("KILN_CPU_ISA", ""), build, torch.__version__


def measure(node, options, computed=frozenset()):
    """Seconds of a node alone, in PyTorch and in Kiln, in turn on the same arguments; none if Kiln cannot run it alone. Those of the
    arguments that are ``computed`` in Kiln's program have the strides that they have there."""
    with _disable_current_modes(), torch.no_grad():
        made = {arg: _random_like(arg.meta["val"]) for arg in node.all_input_nodes}
        args = torch.fx.node.map_arg(node.args, lambda arg: made[arg])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda arg: made[arg])
        try:
            program = _program(node, options, computed)
        except (NotNative, _kiln.Unsupported):
            return None
        given = [value.contiguous() if arg in computed else value for arg, value in made.items()]
        ways = (lambda: node.target(*args, **kwargs), lambda: program(list(given)))
        # The first call of each prepares; Kiln's is timed nevertheless, for it may take long.
        ways[0]()
        best = [_seconds(way) for way in ways]
        until = time.perf_counter() + _NODE_SECONDS
        for turn in range(_MOST_ROUNDS):
            is_clear = max(best) > _CLEARLY * min(best) and max(best) > _NODE_SECONDS
            if is_clear or (turn >= _FEWEST_ROUNDS and time.perf_counter() > until):
                break
            best = [min(seconds, _seconds(way)) for seconds, way in zip(best, ways)]
    return best


def _seconds(way):
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def _random_like(fake):
    """A tensor with the strides of another, of numbers that leave the user's random numbers alone."""
    generator = torch.Generator().manual_seed(0)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(fake.shape, fake.stride()))
    return torch.randn(max(reach, 1), generator=generator).to(fake.dtype).as_strided(fake.shape, fake.stride())


def _program(node, options, computed):
    """A program of one node."""
    lowering = Lowering(torch.device("cpu"))
    for arg in node.all_input_nodes:
        lowering.parameter(arg, _in_program(arg, computed))
    lowering.call(node)
    for user in [node] if isinstance(node.meta["val"], torch.Tensor) else parts(node):
        if user is not node:
            lowering.call(user)
        lowering.output(user)
    return lowering.compile("measured", dataclasses.replace(options, mode="default", verify=False))()


def _file():
    """The file of the times; none where there is no disk cache."""
    folder = _kiln.cache_folder()
    return None if folder is None else pathlib.Path(folder) / "torch_kernels.jsonl"


def forget():
    """Removes the file of the times and what this process knows of them."""
    file = _file()
    with Table._lock:
        Table._tables.clear()
    if file is not None:
        file.unlink(missing_ok=True)


class Table:
    """Times by key, of this process and of the file."""

    _lock = threading.Lock()
    _tables = {}

    def __init__(self, file):
        self.file = file
        self.times = {}
        self.read = 0

    @classmethod
    def of(cls, file):
        """The table of a file, with what others have written meanwhile; one without a file is the process's own."""
        with cls._lock:
            table = cls._tables.setdefault(file, cls(file))
        table._refresh()
        return table

    def _refresh(self):
        if self.file is None:
            return
        try:
            with open(self.file, "rb") as file:
                file.seek(self.read)
                text = file.read()
        except OSError:
            return
        whole = text.rfind(b"\n") + 1
        self.read += whole
        for line in text[:whole].splitlines():
            try:
                key, torch_seconds, kiln_seconds = json.loads(line)
                self.times[key] = (float(torch_seconds), float(kiln_seconds))
            except (ValueError, TypeError):
                continue

    def get(self, key):
        return self.times.get(key)

    def put(self, key, times):
        self.times[key] = tuple(times)
        if self.file is None:
            return
        line = json.dumps([key, *times]) + "\n"
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError:
            # Without the file it is measured again in the next process.
            pass
