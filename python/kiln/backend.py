"""The backend that PyTorch finds by the entry point ``torch_dynamo_backends``."""

import itertools

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from . import _kiln
from .decompositions import decompositions
from .executor import compile_graph
from .options import Options

_numbers = itertools.count()


def _compiler(kind, number, options):
    def compile_one(module, _example_inputs):
        run = compile_graph(module, f"{kind}{number}", options)

        def boxed(arguments):
            return run(arguments)

        boxed._boxed_call = True
        return boxed

    return compile_one


def kiln(module, example_inputs, *, options=None, mode=None, **_):
    """Compiles what Dynamo captured."""
    chosen = Options.parse(options)
    if _kiln.threads() != torch.get_num_threads():
        _kiln.set_threads(torch.get_num_threads())
    number = next(_numbers)
    wrapped = aot_autograd(
        fw_compiler=_compiler("forward", number, chosen),
        bw_compiler=_compiler("backward", number, chosen),
        inference_compiler=_compiler("inference", number, chosen),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return wrapped(module, example_inputs)
