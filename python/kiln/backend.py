"""The backend that PyTorch finds by the entry point ``torch_dynamo_backends``."""

import functools
import itertools

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._functorch.partitioners import min_cut_rematerialization_partition

from . import _kiln, aliases, drawn_again
from .decompositions import decompositions
from .executor import compile_graph
from .flex import inline_flex_attention
from .masks import simplify_masks
from .options import Options
from .partition import draws_as_eager, is_sized_by_call
from .race import never_slower
from .report import emit, log_runtime

_numbers = itertools.count()


def _static_inputs():
    """The numbers of the arguments that are parameters and buffers, as AOTAutograd knows them."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return list(metadata.static_input_indices or ()) if metadata is not None else []


def _mutated_inputs(count):
    """The numbers of the arguments that a graph writes into, as AOTAutograd knows them; all of them if it does not."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or len(metadata.input_info) != count:
        return list(range(count))
    return [number for number, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata]


def _boxed(run):
    """A function as AOTAutograd calls it: with one list of arguments."""
    def boxed(arguments):
        return run(arguments)

    boxed._boxed_call = True
    return boxed


def _gradients_handed_in(module):
    """The places of the gradients among a backward graph's arguments, each with what it was captured as."""
    found = []
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        fake = node.meta.get("val")
        if node.name.startswith("tangents") and isinstance(fake, torch.Tensor):
            found.append((place, fake))
    return found


def _sized_by_call(module):
    """Whether a graph has ops whose sizes are only known once they are called."""
    return any(node.op == "call_function" and is_sized_by_call(node) for node in module.graph.nodes)


def _partition(options, joint, *args, **kwargs):
    """Forward and backward graph. Where sizes of the forward graph may be others than they were captured as, the other graph is told."""
    drawn_again.take_seeds(joint, draws_as_eager(options))
    # Of what PyTorch draws a second time the state is a tensor: a generator is no argument of a graph here.
    with torch._functorch.config.patch(graphsafe_rng_functionalization=False):
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    for module in (forward, backward):
        drawn_again.give_back(module)
    if _sized_by_call(joint):
        backward.meta["kiln_sizes_may_differ"] = True
    return forward, backward


def _where_sizes_hold(run, module):
    """A function of a list of arguments that runs the graph in PyTorch where tensors have other sizes than they were captured with."""
    fakes = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    fixed = [(at, fake.shape) for at, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    fixed = [(at, shape) for at, shape in fixed if all(isinstance(size, int) for size in shape)]

    def called(arguments):
        hold = all(arguments[at].shape == shape for at, shape in fixed)
        return run(arguments) if hold else module(*arguments)

    return called


def _compiler(kind, number, options, explainer):
    def compile_one(module, _example_inputs):
        inline_flex_attention(module, decompositions())
        frozen = _static_inputs() if options.freeze and kind == "inference" else ()
        placeholders = len(module.graph.find_nodes(op="placeholder"))
        frozen = [place for place in frozen if place < placeholders]
        run = compile_graph(module, f"{kind}{number}", options, frozen, explainer)
        if module.meta.get("kiln_sizes_may_differ"):
            run = _where_sizes_hold(run, module)
        # Nothing guards what gradients are like that others hand in.
        gradients = _gradients_handed_in(module) if kind == "backward" else ()
        return _boxed(aliases.handed_in(run, gradients) if gradients else run)

    return compile_one


def _break_of(module):
    """Why a graph ends before the function does: what, file and line; none if it does not."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frame = reason.user_stack[-1] if reason.user_stack else None
    what = reason.reason.strip().splitlines()[0]
    return (what, frame.filename, frame.lineno or 0) if frame is not None else (what, "", 0)


def _recompile_reason():
    """The guard that failed, if this function was captured before; none if it was not."""
    context = torch._guards.CompileContext.try_get()
    identity = context.compile_id if context is not None else None
    if identity is None or not identity.frame_compile_id:
        return None
    try:
        metrics = torch._dynamo.utils.get_metrics_context()._metrics
        return metrics.get("recompile_reason") or "a guard failed"
    except AttributeError:
        return "a guard failed"


def _guard_tangents():
    """Has Dynamo capture a function again where arguments may have tangents that they had not before. It guards this only for
    functions that ask for forward-mode derivatives themselves."""
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def _precision_is(precision, builder, guard):
    """Adds a guard: the precision of float32 products that PyTorch is set to."""
    read = torch.get_float32_matmul_precision
    builder.guard_manager.root.add_lambda_guard(
        lambda _: read() == precision, [f"torch.get_float32_matmul_precision() == {precision!r}"], guard.user_stack
    )


def _guard_precision(options):
    """Has Dynamo capture a function again where products are to have another precision. Its own guard tells the highest from the others
    and not these from each other."""
    precision = torch.get_float32_matmul_precision()
    context = torch._guards.TracingContext.try_get()
    if context is not None and options.precision is None and precision != "highest":
        guard = functools.partial(_precision_is, precision)
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(guard))


def _with_tangents(module, name, options):
    """A graph whose arguments may have tangents (`torch.autograd.forward_ad.dual_level`), which programs would not see."""
    reason = "arguments may have forward-mode tangents, which only PyTorch's ops carry on; torch.func.jvp inside of the function is compiled"
    if options.fullgraph_native:
        raise _kiln.Unsupported(f"{name}: {reason}")
    emit("refused", name, reason)
    return module.forward


def compile_captured(module, example_inputs, options, explainer=None):
    """Compiles what Dynamo captured."""
    if options.cache_dir is not None:
        _kiln.set_cache_folder(options.cache_dir)
    log_runtime()
    number = next(_numbers)
    if (reason := _recompile_reason()) is not None:
        emit("recompile", f"graph{number}", reason)
    if (found := _break_of(module)) is not None:
        what, file, line = found
        emit("graph_break", f"graph{number}", f"{what}, at {file}:{line}" if file else what)
        if explainer is not None:
            explainer.add_break(what, file, line)
    _guard_tangents()
    _guard_precision(options)
    if torch.autograd.forward_ad._current_level >= 0:
        return _with_tangents(module, f"graph{number}", options)
    simplify_masks(module)
    wrapped = aot_autograd(
        fw_compiler=_compiler("forward", number, options, explainer),
        bw_compiler=_compiler("backward", number, options, explainer),
        inference_compiler=_compiler("inference", number, options, explainer),
        decompositions=decompositions(),
        partition_fn=functools.partial(_partition, options),
        keep_inference_input_mutations=True,
    )
    compiled = wrapped(module, example_inputs)
    if options.never_slower:
        return never_slower(module, compiled, _mutated_inputs(len(example_inputs)), f"graph{number}")
    return compiled


def kiln(module, example_inputs, *, options=None, mode=None, **_):
    """Compiles what Dynamo captured: ``torch.compile(model, backend="kiln", mode=…)``, or ``options=…``."""
    return compile_captured(module, example_inputs, Options.parse(options, mode))


# ``torch._dynamo.reset()`` calls it.
kiln.reset = _kiln.forget
