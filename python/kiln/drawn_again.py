"""Random numbers that a backward graph draws again: those of activation checkpointing.

PyTorch gives such an op the state of its generator a second time, which only PyTorch's own kernels understand. Here the joint graph
draws one seed, which is saved for the backward graph, and each such op takes that seed and a number of its own in the generator's
place: it gives the same numbers wherever it runs, so both graphs stay in Kiln. ``kiln::seeded_NAME`` stands for such an op, with these two
arguments before the op's own, and, while a graph is cut into two, ``kiln::undrawn_NAME`` for a call that draws nothing.
"""

import functools
import operator

import torch
from torch._functorch.partitioners import must_recompute
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy

from . import _kiln
from .lower import STANDS_FOR, Lowering, NotNative
from .options import DEFAULT

aten = torch.ops.aten

_library = torch.library.Library("kiln", "FRAGMENT")
# The op that each `undrawn` one stands for.
_undrawn = {}
# Of one seed this many numbers are each op's own.
_STREAMS = 16
# Seeds are below it: so many a draw of one whole number tells apart.
_SEEDS = 2**40


def may_draw(target):
    """Whether an op may take random numbers from a generator."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _argument(node, name, otherwise=None):
    """The value of a node's argument by the name that the schema gives it."""
    for number, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            given = node.args[number] if number < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None and argument.has_default_value() else given
    return otherwise


def _draws_nothing(node):
    """Whether a node's op may draw and this call does not: attention without dropout."""
    return _argument(node, "dropout_p") == 0


@functools.cache
def _native():
    return frozenset(_kiln.ops())


def _is_drawn_by_kiln(node):
    return str(node.target) in _native() and "attention" not in node.target._schema.name and _argument(node, "generator") is None


@functools.cache
def _stand_in(op, kind):
    """The library's op of a kind for one of PyTorch's."""
    name = f"{kind}_{op._schema.name.partition('::')[2]}_{op._overloadname}"
    arguments = str(op._schema)[str(op._schema).index("(") :]
    if kind == "seeded":
        arguments = "(Tensor kiln_seed, int kiln_stream, " + arguments[1:]
    _library.define(name + arguments)
    _library.impl(name, functools.partial(_run_seeded, op) if kind == "seeded" else op, "CompositeExplicitAutograd")
    if kind == "seeded":
        _library.impl(name, lambda seed, stream, *args, **kwargs: op(*args, **kwargs), "Meta")
    made = getattr(torch.ops.kiln, name).default
    (STANDS_FOR if kind == "seeded" else _undrawn)[made] = op
    return made


def take_seeds(joint, as_eager):
    """Gives the ops of a joint graph that are to be computed again a seed, but for those whose numbers have to be PyTorch's."""
    seed = None
    drawn = 0
    for node in list(joint.graph.nodes):
        if node.op != "call_function" or not must_recompute(node) or not may_draw(node.target):
            continue
        if _draws_nothing(node):
            node.target = _stand_in(node.target, "undrawn")
        elif not as_eager and _is_drawn_by_kiln(node):
            if seed is None:
                seed = _seed_before(joint.graph, node)
            node.args = (seed, drawn * _STREAMS, *node.args)
            node.target = _stand_in(node.target, "seeded")
            drawn += 1
    joint.recompile()


def _seed_before(graph, node):
    """A new node before another: the seed."""
    fake = node.meta["val"]
    fake = fake[0] if isinstance(fake, (list, tuple)) else fake
    settings = dict(dtype=torch.int64, device=fake.device, pin_memory=False)
    with graph.inserting_before(node):
        seed = graph.call_function(aten.randint.default, (_SEEDS, []), settings)
    with fake.fake_mode:
        seed.meta["val"] = torch.empty((), dtype=torch.int64, device=fake.device)
    seed.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return seed


def give_back(module):
    """Puts PyTorch's ops back for calls that draw nothing."""
    for node in module.graph.nodes:
        if node.target in _undrawn:
            node.target = _undrawn[node.target]
    module.recompile()


# Programs of one seeded op each, by what they are made of.
_programs = {}


def _run_seeded(op, seed, stream, *args, **kwargs):
    """A seeded op outside of a program. The other graph's may be inside of one, so a program of this op alone draws the numbers."""
    tensors = [seed, *(arg for arg in args if isinstance(arg, torch.Tensor))]
    described = [(arg.shape, arg.stride(), arg.dtype, arg.device) if isinstance(arg, torch.Tensor) else arg for arg in args]
    key = repr((op, int(stream), described, sorted(kwargs.items())))
    with _disable_current_modes(), torch.no_grad():
        if key not in _programs:
            _programs[key] = _program(op, seed, stream, args, kwargs)
        if _programs[key] is None:
            return _run_in_torch(op, int(seed) + int(stream), args, kwargs)
        results = _programs[key](tensors)
    return tuple(results) if len(op._schema.returns) > 1 else results[0]


def _program(op, seed, stream, args, kwargs):
    """A program of one op; none where Kiln cannot run it."""
    graph = torch.fx.Graph()
    lowering = Lowering(seed.device)

    def given(value):
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("given")
        node.meta["val"] = value
        lowering.parameter(node)
        return node

    try:
        node = graph.call_function(_stand_in(op, "seeded"), (given(seed), int(stream), *map(given, args)), kwargs)
        with torch.random.fork_rng(devices=[seed.device] if seed.device.type == "cuda" else []):
            node.meta["val"] = op(*args, **kwargs)
        parts = [node]
        if isinstance(node.meta["val"], (list, tuple)):
            parts = [graph.call_function(operator.getitem, (node, number)) for number in range(len(node.meta["val"]))]
            for number, part in enumerate(parts):
                part.meta["val"] = node.meta["val"][number]
        lowering.call(node)
        for part in parts:
            if part is not node:
                lowering.call(part)
            lowering.output(part)
        return lowering.compile("seeded", DEFAULT)()
    except (NotNative, _kiln.Unsupported):
        return None


def _run_in_torch(op, seed, args, kwargs):
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), kwargs.get("device") or torch.device("cpu"))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return op(*args, **kwargs)
