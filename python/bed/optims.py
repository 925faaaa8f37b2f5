"""``optims``: two compiled steps of every optimizer of PyTorch's optim_db against eager: parameters and states."""

import copy
import itertools

from . import accuracy, backend, sample, suite
from .tensors import tensors


def table():
    """The optimizers of optim_db by name."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


# Sizes of the parameters; those of optimizers that are for matrices alone.
SIZES = ((4, 3), (5,), (2, 3, 2))
MATRICES = ((4, 3), (3, 5))


def after_two_steps(info, keywords, compile_step):
    """The parameters and the state, as a list of tensors."""
    import torch

    torch.manual_seed(0)
    sizes = MATRICES if info.optim_cls.__name__ == "Muon" else SIZES
    parameters = [torch.randn(size, requires_grad=True) for size in sizes]
    optimizer = info.optim_cls(parameters, **copy.deepcopy(keywords))
    step = compile_step(optimizer.step)
    generator = torch.Generator().manual_seed(2)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        step()
    states = [optimizer.state[parameter] for parameter in parameters]
    return accuracy.on_cpu(parameters + [tensor for state in states for tensor in tensors(state)])


def verdict(info, keywords, name):
    """Eager against the backend; what aot_eager cannot do is not counted."""
    import torch

    def under(chosen):
        torch._dynamo.reset()
        return after_two_steps(info, keywords, lambda step: backend.compile(step, chosen))

    try:
        eager = after_two_steps(info, keywords, lambda step: step)
    except Exception as error:
        return sample.Verdict(sample.NO_EAGER, str(error))
    backend.forget(name)
    result = _judge(eager, lambda: under(name))
    result.fallbacks = tuple(backend.fallbacks(name)[1])
    if result.status == sample.RIGHT or name == "aot_eager":
        return result
    known = _judge(eager, lambda: under("aot_eager"))
    return result if known.status == sample.RIGHT else sample.Verdict(sample.NO_CAPTURE, known.why)


def _judge(eager, compiled):
    try:
        fine, why = accuracy.agree(eager, compiled(), eager, tolerance=1e-4)
    except Exception as error:
        return sample.Verdict(sample.RAISED, f"{type(error).__name__}: {error}"[:200])
    return sample.Verdict(sample.RIGHT) if fine else sample.Verdict(sample.WRONG, why)


def work(_context, task):
    """The tally of one optimizer and implementation."""
    info = table()[task["name"]]
    inputs = info.optim_inputs_func(device="cpu")
    if task["samples"]:
        inputs = itertools.islice(inputs, task["samples"])
    flags = {} if task["layout"] == "default" else {task["layout"]: True}
    return suite.tally((entry.desc, verdict(info, {**entry.kwargs, **flags}, task["backend"])) for entry in inputs)


def main(argv):
    options = suite.parser("optims", __doc__).parse_args(argv)
    groups = [
        {"name": name, "layout": way, "case": name}
        for name, info in table().items()
        for way in ("default", *(way for way in info.supported_impls if way in ("foreach", "fused")))
    ]
    return suite.run("optims", options, groups, work, "torch.testing._internal.common_optimizers")
