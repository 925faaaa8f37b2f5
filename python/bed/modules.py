"""``modules``: the samples of PyTorch's module_db under a backend against eager, in training and evaluation."""

import itertools

from . import sample, suite

DTYPES = ("float32", "bfloat16")
MODES = ("eval", "train")


def table():
    """The modules of module_db by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def calls(info, dtype, training, gradient):
    """(name, call) for each sample. Parameters and buffers are inputs of the call, so that what it writes into them is compared."""
    import torch

    torch.manual_seed(0)
    for number, values in enumerate(info.module_inputs_func(info, "cpu", dtype, gradient, training)):
        if values.forward_input is None:
            continue
        built, given = values.constructor_input, values.forward_input
        module = info.module_cls(*built.args, **built.kwargs).to(dtype).train(training)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

        def function(state, args, kwargs, module=module):
            return torch.func.functional_call(module, state, args, kwargs)

        yield f"sample {number}", sample.Call(function, (state, tuple(given.args), dict(given.kwargs)), {}, gradient)


def work(_context, task):
    """The tally of one module, dtype and mode."""
    import torch

    info, dtype = table()[task["name"]], getattr(torch, task["dtype"])
    chosen = calls(info, dtype, task["layout"] == "train", task["grad"])
    if task["samples"]:
        chosen = itertools.islice(chosen, task["samples"])
    return suite.tally((name, sample.check(call, task["backend"])) for name, call in chosen)


def main(argv):
    import torch

    parser = suite.parser("modules", __doc__)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    options = parser.parse_args(argv)
    groups = [
        {"name": name, "dtype": dtype, "layout": mode, "case": f"{name} {dtype}"}
        for name, info in table().items()
        for dtype in options.dtypes.split(",")
        if getattr(torch, dtype) in info.supported_dtypes("cpu")
        for mode in MODES
    ]
    return suite.run("modules", options, groups, work, "torch.testing._internal.common_modules")
