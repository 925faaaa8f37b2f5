"""A compiled FX graph: programs of Kiln, and PyTorch's own ops between them."""

import threading

import sympy
import torch
from torch.fx.node import Node, map_arg

from . import _kiln, aliases, devices
from .collectives import is_collective
from .lower import Lowering, NotNative, source_of
from .partition import foreign_nodes, is_captured_otherwise, is_computed, is_control_flow, is_sized_by_call, levels, used_nodes
from .partition import symbols as symbols_of_node
from .report import emit, log_runtime
from .sizes import Sizes, fixed, hints, limited, settled
from .torch_kernels import faster_in_torch, parts


def compile_graph(module, name, options, frozen=(), explainer=None):
    """A function of the list of the graph's arguments that gives the list of its results. ``frozen`` are the numbers of the arguments
    that change rarely; ``explainer`` gets to see every program before its first call."""
    parameters = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    symbols = limited(parameters)
    if symbols:
        return BySize(lambda: _compile(module, name, options, frozen, explainer), Sizes(parameters), symbols, parameters)
    return _compile(module, name, options, frozen, explainer)


class BySize:
    """A graph some of whose sizes can have few values: compiled for each of these."""

    def __init__(self, make, places, symbols, parameters):
        self.make = make
        self.places = {symbol: places.places[symbol] for symbol in symbols}
        hinted = hints(size for value in parameters for size in (value.shape if isinstance(value, torch.Tensor) else [value]))
        self.runs = {}
        if all(symbol.name in hinted for symbol in symbols):
            self._run(tuple(hinted[symbol.name] for symbol in symbols))

    def _run(self, values):
        run = self.runs.get(values)
        if run is None:
            with fixed(dict(zip(self.places, map(sympy.Integer, values)))):
                run = self.runs[values] = self.make()
        return run

    def __call__(self, arguments):
        values = tuple(arguments[at] if axis is None else arguments[at].shape[axis] for at, axis in self.places.values())
        return self._run(values)(arguments)


def _compile(module, name, options, frozen, explainer):
    with fixed(settled([node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")])):
        return _compile_settled(module, name, options, frozen, explainer)


def _compile_settled(module, name, options, frozen, explainer):
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    constants = {node: _attribute(module, node.target) for node in graph.nodes if node.op == "get_attr"}
    for node, value in constants.items():
        node.meta.setdefault("val", value)
        # Other operators than those of control flow look into the graphs that they are given.
        if isinstance(value, torch.fx.GraphModule) and all(map(is_control_flow, node.users)):
            constants[node] = _subgraph(value, f"{name}.{node.target}", options, explainer)
    parameters = [*placeholders, *constants]
    unused = aliases.only_views(graph, parameters)
    nodes = [node for node in graph.nodes if is_computed(node) and node not in unused]
    frozen = {placeholders[number] for number in frozen} | set(constants)
    device = devices.of_graph([*parameters, *nodes])
    foreign, lowering = foreign_nodes(nodes, parameters, device, options)
    for reason in filter(None, foreign.values()):
        if options.fullgraph_native:
            raise _kiln.Unsupported(f"{name}: {reason}")
        emit("fallback", name, reason)
    measured, missed = faster_in_torch(nodes, foreign, options)
    for node, text in measured.items():
        file, line = source_of(node)
        emit("torch_kernel", name, f"{node.target}: {text}" + (f", at {file}:{line}" if file else ""))
        foreign.update(dict.fromkeys((node, *parts(node))))
    if missed:
        emit("torch_kernel", name, f"{missed} nodes were not measured: there was no time left")
    for node in filter(is_captured_otherwise, foreign):
        return _refuse(module, name, f"PyTorch captures results of {node.target} with other dtypes than it gives")
    try:
        plan = Plan(module, name, placeholders, constants, nodes, foreign, device)
        if not foreign and plan.is_plain:
            made = _plain(plan, lowering, name, options, frozen)
        else:
            made = plan.compile(name, options, frozen)
        places = [plan.sizes.places[symbol] for symbol in lowering.not_negative if symbol in plan.sizes.places]
        if options.background:
            return _unless_negative(InBackground(module, name, made), module, name, places)
        return _unless_negative(_finish(made, name, len(nodes), foreign, explainer), module, name, places)
    except (NotNative, _kiln.Unsupported) as error:
        if options.fullgraph_native:
            raise _kiln.Unsupported(f"{name}: {error}") from None
        return _refuse(module, name, str(error))


def _unless_negative(run, module, name, places):
    """A function that runs the graph in PyTorch where a number among its arguments is negative, which no program takes for a size."""
    numbers = [at for at, axis in places if axis is None]
    if not numbers:
        return run

    def called(arguments):
        if all(arguments[at] >= 0 for at in numbers):
            return run(arguments)
        emit("refused", name, "a size or place is negative: this call runs in PyTorch")
        return module(*arguments)

    return called


def _subgraph(module, name, options, explainer):
    """A branch or a body of control flow, compiled; the operator that calls it runs in PyTorch."""
    results = module.graph.find_nodes(op="output")[0].args[0]
    described = all("val" in node.meta for node in module.graph.find_nodes(op="placeholder"))
    if not isinstance(results, (list, tuple)) or not described:
        return module
    run = compile_graph(module, name, options, (), explainer)
    return lambda *arguments: tuple(run(list(arguments)))


def _finish(made, name, nodes, foreign=(), explainer=None):
    """Makes the programs, and the function that runs them."""
    programs = [make() for make in made.programs]
    launches = sum(program.launches for program in programs)
    kernels = sum(program.made[0] for program in programs)
    seconds = sum(program.made[1] for program in programs)
    collectives = sum(is_collective(node) for node in foreign)
    text = f"{nodes} nodes, {len(programs)} programs, {launches} launches"
    text += f", {collectives} collectives" if collectives else ""
    text += f", {kernels} kernels compiled in {seconds * 1e3:.1f} ms"
    totals = dict(graphs=1, programs=len(programs), launches=launches, collectives=collectives, kernels_compiled=kernels)
    emit("compiled", name, text, "\n".join(program.describe() for program in programs), **totals)
    if programs and all(program.made[2] for program in programs):
        emit("cache_hit", name, f"{len(programs)} programs read from the disk cache")
    log_runtime()
    if explainer is not None:
        programs = [explainer.watch(name, program) for program in programs]
    return made.function(programs)


class Made:
    """What is left to do once a graph is described: functions that make the programs, and one that makes the graph's of them."""

    def __init__(self, programs, function):
        self.programs = programs
        self.function = function


class InBackground:
    """A graph that PyTorch runs until another thread has made its programs."""

    def __init__(self, module, name, made):
        self.module = module
        self.name = name
        self.run = None
        nodes = len(module.graph.nodes)
        self.thread = threading.Thread(target=self._make, args=(made, nodes), name="kiln-compile", daemon=True)
        self.thread.start()

    def _make(self, made, nodes):
        try:
            run = _finish(made, self.name, nodes)
        except Exception as error:
            emit("refused", self.name, f"compiling in the background failed: {error}")
            return
        emit("background", self.name, "calls run in Kiln from now on")
        self.run = run
        self.module = None

    def __call__(self, arguments):
        run, module = self.run, self.module
        if run is not None:
            return run(arguments)
        return module(*arguments) if module is not None else self.run(arguments)


def _attribute(module, path):
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _refuse(module, name, reason):
    """The graph as PyTorch runs it."""
    emit("refused", name, reason)

    def run(arguments):
        return module(*arguments)

    return run


def _plain(plan, lowering, name, options, frozen):
    """A graph that is one program and returns what the program does."""
    for node in plan.outputs:
        lowering.output(node)
    make = lowering.compile(name, options, frozen)
    taken = [plan.placeholders.index(node) for node in lowering.parameters]
    numbers = [number for number, _ in lowering.given_numbers.values()]
    if taken == list(range(len(plan.placeholders))) and not numbers:
        taken = None

    def function(programs):
        program = programs[0]
        if taken is None:
            return (lambda arguments: program(arguments, devices.seed(plan.device))) if program.draws else program

        def run(arguments):
            given = [arguments[number] for number in taken]
            if numbers:
                given += _as_tensors(numbers, plan.sizes, plan.sizes.values(arguments))
            return program(given, devices.seed(plan.device)) if program.draws else program(given)

        return run

    return Made([make], function)


def _as_tensors(numbers, sizes, values):
    """Numbers as a program takes them: as tensors of one element, by the values of symbols."""
    return [torch.tensor(sizes.evaluate(number, values), dtype=_DTYPES[type(number)]) for number in numbers]


_DTYPES = {torch.SymInt: torch.int64, torch.SymFloat: torch.float64}


class Step:
    """A program, or the foreign nodes after one."""

    def __init__(self, nodes, program_nodes):
        self.foreign = nodes
        self.nodes = program_nodes
        self.program = None
        self.parameters = []
        self.numbers = []
        self.symbols = []
        self.outputs = []
        # Which outputs are conjugated or negated when they are read.
        self.lazy = []
        self.last = []


class Plan:
    """How a graph is run: steps over an environment of values by node."""

    def __init__(self, module, name, placeholders, constants, nodes, foreign, device):
        graph = module.graph
        self.device = device
        self.name = name
        # PyTorch finds the sizes of some ops' results by calling them with zeros. Where they depend on data, it runs the graph instead.
        self.instead = module if any(map(is_sized_by_call, foreign)) else None
        self.placeholders = placeholders
        self.constants = constants
        self.nodes = nodes
        self.results = graph.find_nodes(op="output")[0].args[0]
        self.sizes = Sizes([node.meta.get("val") for node in placeholders])
        wanted = [node for node in used_nodes(self.results) if isinstance(node.meta.get("val"), torch.Tensor)]
        parameters = set(placeholders) | set(constants)
        self.views = aliases.views_of_parameters(wanted, parameters)
        own = [node for node in dict.fromkeys(wanted) if node not in parameters and node not in self.views]
        self.views_of_outputs = {} if foreign else aliases.views_of_outputs(own)
        self.outputs = [node for node in wanted if node not in self.views and node not in self.views_of_outputs]
        tensors = isinstance(self.results, (list, tuple)) and all(
            isinstance(item, Node) and isinstance(item.meta.get("val"), torch.Tensor) for item in self.results
        )
        # Whether the results of one program are the results of the graph.
        self.is_plain = tensors and not (self.views or self.views_of_outputs or constants or any(map(aliases.is_lazy, self.outputs)))
        self.steps = []
        if not (not foreign and self.is_plain):
            for native, others in levels(nodes, foreign):
                self.steps.append(Step(others, native))

    def compile(self, name, options, frozen):
        """Describes the programs."""
        makers = []
        made = {node: number for number, step in enumerate(self.steps) for node in (*step.nodes, *step.foreign)}
        final = set(self.outputs)
        for number, step in enumerate(self.steps):
            if not step.nodes:
                continue
            inside = set(step.nodes)
            lowering = Lowering(self.device)
            symbols = set()
            for node in step.nodes:
                for arg in node.all_input_nodes:
                    is_tensor = isinstance(arg.meta.get("val"), torch.Tensor)
                    if arg not in inside and is_tensor and arg not in lowering.numbers:
                        lowering.parameter(arg)
            for node in step.nodes:
                lowering.call(node)
                symbols |= symbols_of_node(node)
            step.parameters = list(lowering.parameters)
            step.numbers = [number for number, _ in lowering.given_numbers.values()]
            for node in step.parameters:
                symbols |= symbols_of_node(node)
            step.symbols = sorted(symbols, key=str)
            for symbol in step.symbols:
                lowering.graph.size_parameter(str(symbol))
            for node in step.nodes:
                later = any(user not in inside and (user in made or user.op == "output") for user in node.users)
                if isinstance(node.meta.get("val"), torch.Tensor) and (node in final or later):
                    if node in self.views or node in self.views_of_outputs:
                        if not any(user not in inside and user in made for user in node.users):
                            continue
                    lowering.output(node)
            step.outputs = list(lowering.outputs)
            step.lazy = [(at, node.meta["val"]) for at, node in enumerate(step.outputs) if aliases.is_lazy(node)]
            makers.append(lowering.compile(f"{name}.{number}", options, frozen))
        self._free()

        def function(programs):
            programs = iter(programs)
            for step in self.steps:
                if step.nodes:
                    step.program = next(programs)
            return self.run

        return Made(makers, function)

    def _free(self):
        """Which values are not needed after each step."""
        last = {}
        for number, step in enumerate(self.steps):
            for node in step.parameters:
                last[node] = number
            for node in step.foreign:
                last[node] = number
                for arg in node.all_input_nodes:
                    last[arg] = number
        kept = set(used_nodes(self.results)) | set(self.views.values()) | set(self.constants)
        for node, number in last.items():
            if node not in kept:
                self.steps[number].last.append(node)

    def run(self, arguments):
        """Runs the graph on a list of arguments, which it empties."""
        if self.instead is None:
            return self._run(arguments)
        kept = list(arguments)
        try:
            return self._run(arguments)
        except _OtherSizes as error:
            # Arguments are overwritten by what follows, so that they are as they were.
            emit("refused", self.name, str(error))
            self._run = lambda arguments: self.instead(*arguments)
            return self._run(kept)

    def _run(self, arguments):
        values = dict(zip(self.placeholders, arguments))
        symbols = self.sizes.values(arguments)
        arguments.clear()
        values.update(self.constants)
        for step in self.steps:
            if step.program is not None:
                given = [_as_traced(values[node], node) for node in step.parameters]
                if step.numbers:
                    given += _as_tensors(step.numbers, self.sizes, symbols)
                given += [symbols[symbol] for symbol in step.symbols]
                results = step.program(given, devices.seed(self.device)) if step.program.draws else step.program(given)
                for at, fake in step.lazy:
                    results[at] = aliases.lazily(results[at], fake)
                values.update(zip(step.outputs, results))
            for node in step.foreign:
                self._call(node, values, symbols)
            for node in step.last:
                values.pop(node, None)
        return self._results(values, symbols)

    def _call(self, node, values, symbols):
        def value(arg):
            if arg in values:
                return values[arg]
            return self.sizes.evaluate(arg.meta["val"], symbols)

        def number(item):
            if isinstance(item, (list, tuple)):
                return type(item)(number(part) for part in item)
            if isinstance(item, dict):
                return {key: number(part) for key, part in item.items()}
            return self.sizes.evaluate(item, symbols)

        args = [number(item) for item in map_arg(node.args, value)]
        kwargs = {key: number(item) for key, item in map_arg(node.kwargs, value).items()}
        result = _as_typed(node.target(*args, **kwargs), node.meta.get("val"))
        if self.instead is not None:
            _check_sizes(node, result, node.meta.get("val"))
        values[node] = result
        self._bind(node.meta.get("val"), result, symbols)

    def _bind(self, fake, result, symbols):
        """Sizes that only the result of an op tells."""
        if isinstance(fake, (torch.SymInt, torch.SymFloat)) and fake.node.expr.is_symbol:
            symbols.setdefault(fake.node.expr, result)
        elif isinstance(fake, torch.SymBool) and len(fake.node.expr.free_symbols) == 1:
            # A truth that is read is whether a symbol is one.
            symbols.setdefault(next(iter(fake.node.expr.free_symbols)), int(result))
        elif isinstance(fake, torch.Tensor) and isinstance(result, torch.Tensor):
            for size, number in zip(fake.shape, result.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                    symbols.setdefault(size.node.expr, number)
        elif isinstance(fake, (list, tuple)):
            for part, of in zip(fake, result):
                self._bind(part, of, symbols)

    def _results(self, values, symbols):
        def evaluate(size):
            return self.sizes.evaluate(size, symbols)

        def result(item):
            if not isinstance(item, Node):
                return evaluate(item)
            if item in values:
                return values[item]
            base = self.views.get(item) or self.views_of_outputs.get(item)
            if base is not None:
                return aliases.view(values[base], base.meta["val"], item.meta["val"], evaluate)
            return evaluate(item.meta["val"])

        return [result(item) for item in self.results]


class _OtherSizes(Exception):
    """A result with other sizes than the graph was captured with."""


def _check_sizes(node, result, fake):
    if isinstance(fake, torch.Tensor) and isinstance(result, torch.Tensor):
        fixed = [(own, size) for own, size in zip(result.shape, fake.shape) if not isinstance(size, torch.SymInt)]
        if any(own != size for own, size in fixed):
            raise _OtherSizes(f"{node.target} gave sizes {tuple(result.shape)}, captured as {tuple(fake.shape)}")
    elif isinstance(fake, (list, tuple)) and isinstance(result, (list, tuple)):
        for part, of in zip(result, fake):
            _check_sizes(node, part, of)


def _as_typed(result, fake):
    """The result of an op of PyTorch's in the dtype that it was captured with; its rules of shapes do not always say what its kernels do."""
    if isinstance(fake, torch.Tensor) and isinstance(result, torch.Tensor):
        return result if result.dtype == fake.dtype else result.to(fake.dtype)
    if isinstance(fake, (list, tuple)) and isinstance(result, (list, tuple)):
        return [_as_typed(part, of) for part, of in zip(result, fake)]
    return result


def _as_traced(tensor, node):
    """A tensor with the dtype and the strides that the graph was captured with; ops of PyTorch may give others."""
    fake = node.meta["val"]
    if tensor._is_zerotensor():
        # It has no memory.
        tensor = tensor.clone()
    if node.op == "placeholder":
        return tensor
    if tensor.dtype != fake.dtype:
        tensor = tensor.to(fake.dtype)
    if any(isinstance(n, torch.SymInt) for n in (*fake.shape, *fake.stride())) or tensor.stride() == fake.stride():
        return tensor
    copy = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=tensor.device)
    copy.copy_(aliases.lazily(tensor, fake))
    return aliases.lazily(copy, fake)
