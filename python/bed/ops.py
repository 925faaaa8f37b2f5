"""``ops``: the samples of PyTorch's op_db, contiguous and not, under a backend against eager."""

import itertools

from . import sample, suite, together

DTYPES = ("float32", "bfloat16", "int64", "bool")
LAYOUTS = ("contiguous", "noncontiguous")


def table():
    """The ops of op_db by full name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db}


def calls(op, dtype, layout, gradient):
    """(name, call) for each sample."""
    import torch

    torch.manual_seed(0)
    gradient = gradient and dtype.is_floating_point and op.supports_autograd
    for number, values in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradient)):
        try:
            values = values.noncontiguous() if layout == "noncontiguous" else values
        except Exception:
            continue
        yield f"sample {number} {layout}", sample.Call(op.op, (values.input, *values.args), values.kwargs, gradient)


def work(_context, task):
    """The tally of one op, dtype and layout."""
    import torch

    op, dtype = table()[task["name"]], getattr(torch, task["dtype"])
    compiled = {}
    chosen = calls(op, dtype, task["layout"], task["grad"])
    if task["samples"]:
        chosen = itertools.islice(chosen, task["samples"])
    return suite.tally(together.check_all(chosen, task["backend"], compiled))


def main(argv):
    import torch

    parser = suite.parser("ops", __doc__)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    options = parser.parse_args(argv)
    groups = [
        {"name": name, "dtype": dtype, "layout": layout, "case": f"{name} {dtype}"}
        for name, op in table().items()
        for dtype in options.dtypes.split(",")
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
        for layout in options.layouts.split(",")
    ]
    return suite.run("ops", options, groups, work, "torch.testing._internal.common_methods_invocations")
