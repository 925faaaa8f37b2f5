"""One call of PyTorch under a backend against the same call in eager: outputs, dtypes, strides, mutated inputs, gradients.

The denominator is what can be captured at all: a call that backend="aot_eager" gets wrong too, or that eager does not repeat, is not
held against the backend.
"""

import dataclasses

import torch
from torch._prims_common import check_significant_strides
from torch.utils._python_dispatch import TorchDispatchMode

from . import accuracy, backend
from .tensors import copied, mapped, tensors, to_double

RIGHT, WRONG, RAISED = "right", "wrong", "raised"
# Not in the denominator.
NO_EAGER, NO_CAPTURE, RANDOM = "eager raises", "not captured", "random"

TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (1.6e-2, 1e-3), torch.float16: (2e-3, 1e-4), torch.complex64: (1e-4, 1e-5)}


@dataclasses.dataclass
class Verdict:
    """What became of a sample, and why."""

    status: str
    why: str = ""
    # Why nodes ran in PyTorch instead; empty where none did, or where the backend does not say.
    fallbacks: tuple = ()


class Call:
    """A function with nested arguments. Everything that is no tensor is a constant of the graph."""

    def __init__(self, function, args, kwargs, gradient=False):
        self.function, self.arguments, self.gradient = function, (args, kwargs), gradient
        self.inputs = []
        mapped(self.arguments, self.inputs.append)

    def flat(self):
        """The same as a function of a flat list of tensors, which gives a flat tuple of tensors."""

        def sample(*inputs):
            left = iter(inputs)
            args, kwargs = mapped(self.arguments, lambda _: next(left))
            return tuple(tensors(self.function(*args, **kwargs)))

        return sample

    def constants(self):
        """A text that tells two calls with tensors of the same kind apart."""
        return repr(mapped(self.arguments, lambda _: "·"))

    def double(self):
        """The same in float64. A float dtype among the named arguments is float64 too: with it a function that makes tensors has an
        exact result to compare with."""
        args, kwargs = mapped(self.arguments, to_double)
        if isinstance(kwargs.get("dtype"), torch.dtype) and kwargs["dtype"].is_floating_point:
            kwargs = {**kwargs, "dtype": torch.float64}
        return Call(self.function, args, kwargs, self.gradient)


@dataclasses.dataclass
class Result:
    """What a call gave: outputs, inputs after the call, gradients of the float inputs."""

    outputs: list
    inputs: list
    gradients: list


def perform(function, inputs, gradient, seed=0):
    """Calls a flat function with copies of the inputs."""
    inputs = [copied(tensor) for tensor in inputs]
    torch.manual_seed(seed)
    with torch.set_grad_enabled(gradient):
        outputs = list(function(*inputs))
    gradients = []
    if gradient:
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        if differentiable and wanted:
            generator = torch.Generator().manual_seed(1)
            ahead = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype) for tensor in differentiable]
            gradients = torch.autograd.grad(differentiable, wanted, ahead, allow_unused=True)
    return Result(outputs, inputs, [tensor for tensor in gradients if tensor is not None])


def direct(call, name):
    """Compiles without Dynamo: a graph of one node, which AOTAutograd traces inside of the backend."""
    graph = torch.fx.Graph()
    parameters = tuple(graph.placeholder(f"x{number}") for number in range(len(call.inputs)))
    graph.output(graph.call_function(call.flat(), parameters))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    options = backend.options(name)
    with torch.set_grad_enabled(call.gradient):
        return backend.find(name)(module, [copied(tensor) for tensor in call.inputs], **({"options": options} if options else {}))


def through_dynamo(call, name):
    """Compiles as users do."""
    torch._dynamo.reset()
    function = call.flat()
    return backend.compile(lambda *inputs: function(*inputs), name, dynamic=False)


def compare(call, eager, actual):
    """Empty where a result is right, else what differs. Float values are right as `accuracy` says."""
    for part in ("outputs", "inputs", "gradients"):
        expected, found = getattr(eager, part), getattr(actual, part)
        if len(expected) != len(found):
            return f"{part}: {len(found)} tensors instead of {len(expected)}"
        for number, (one, other) in enumerate(zip(expected, found)):
            text = _kinds_differ(one, other, strides=part == "outputs")
            if text:
                return f"{part}[{number}]: {text}"
    pairs = [pair for part in ("outputs", "inputs", "gradients") for pair in zip(getattr(eager, part), getattr(actual, part))]
    if all(_close(one, other) for one, other in pairs):
        return ""
    exact = _exact(call)
    for part in ("outputs", "inputs", "gradients"):
        one, other = ([t.detach() for t in getattr(result, part)] for result in (eager, actual))
        reference = [t.detach() for t in getattr(exact, part)] if exact else None
        if reference and [t.shape for t in reference] != [t.shape for t in one]:
            reference = None
        tolerance = max([TOLERANCE.get(tensor.dtype, (1e-7, 0.0))[0] for tensor in one], default=0.0)
        fine, why = accuracy.agree(one, other, reference or one, tolerance)
        if not fine:
            return f"{part}: {why}"
    return ""


def _kinds_differ(one, other, strides):
    if one.shape != other.shape:
        return f"sizes {list(other.shape)} instead of {list(one.shape)}"
    if one.dtype != other.dtype:
        return f"{other.dtype} instead of {one.dtype}"
    if one.layout != other.layout:
        return f"{other.layout} instead of {one.layout}"
    if one.layout == torch.strided and strides and one.numel() and not check_significant_strides(one, other, only_cuda=False)[0]:
        return f"strides {list(other.stride())} instead of {list(one.stride())}"
    return ""


def _close(one, other):
    try:
        relative, absolute = TOLERANCE.get(one.dtype, (0.0, 0.0) if not one.dtype.is_floating_point else (1e-7, 1e-7))
        torch.testing.assert_close(other.detach(), one.detach(), rtol=relative, atol=absolute, equal_nan=True, check_stride=False)
    except AssertionError:
        return False
    return True


def _exact(call):
    try:
        double = call.double()
        return perform(double.flat(), double.inputs, call.gradient)
    except Exception:
        return None


def check(call, name, compiled=None):
    """The verdict on a call. ``compiled`` keeps compiled functions by signature, so that equal samples share one."""
    try:
        eager = perform(call.flat(), call.inputs, call.gradient)
    except Exception as error:
        return Verdict(NO_EAGER, _brief(error))
    verdict = _try(call, eager, name, direct, compiled)
    if verdict.status == RAISED:
        first, verdict = verdict, _try(call, eager, name, through_dynamo, compiled)
        if verdict.status == RAISED:
            verdict.why = first.why
    if verdict.status == RIGHT or name == "aot_eager":
        return verdict
    if _is_random(call, eager):
        return Verdict(RANDOM)
    known = _try(call, eager, "aot_eager", direct)
    if known.status == RAISED:
        known = _try(call, eager, "aot_eager", through_dynamo)
    return verdict if known.status == RIGHT else Verdict(NO_CAPTURE, known.why)


def _try(call, eager, name, way, compiled=None):
    try:
        key, foreign = None, ()
        if compiled is not None:
            kinds = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad, t.storage_offset()) for t in call.inputs if t.layout == torch.strided]
            key = (way.__name__, repr(kinds), call.constants())
        function, foreign = compiled.get(key, (None, ())) if key else (None, ())
        fresh = function is None
        if fresh:
            backend.forget(name)
            function = way(call, name)
        actual = perform(function, call.inputs, call.gradient)
        if fresh:
            foreign = tuple(backend.fallbacks(name)[1])
            if key and " at 0x" not in key[2]:
                compiled[key] = (function, foreign)
        why = compare(call, eager, actual)
    except Exception as error:
        return Verdict(RAISED, _brief(error), foreign)
    return Verdict(WRONG, why, foreign) if why else Verdict(RIGHT, "", foreign)


def _is_random(call, eager):
    """Whether eager itself gives other values with another seed, or where memory that nobody has written has other contents."""
    try:
        if compare(call, eager, perform(call.flat(), call.inputs, call.gradient, seed=1)):
            return True
        found = []
        for value in (0, 1):
            with _Filled(value):
                found.append(perform(call.flat(), call.inputs, call.gradient))
    except Exception:
        return False
    return bool(compare(call, *found))


class _Filled(TorchDispatchMode):
    """Fills new memory with a number."""

    _NEW = frozenset(
        getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
    )

    def __init__(self, value):
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, op, _types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        return result.fill_(self.value) if op.overloadpacket in self._NEW else result


def _brief(error):
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
