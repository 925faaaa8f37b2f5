"""FX graphs of ATen ops → Kiln's description of them."""

import operator

import torch
from torch.fx.node import Node

from . import _kiln, devices, sizes
from .report import emit

# Where and how a tensor is kept is no part of what it holds.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "requires_grad", "non_blocking"})


# Ops that count in the memory of their argument, also outside of its own elements.
_IN_MEMORY = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default})


# Ops that have the row of another: those of Kiln's own library.
STANDS_FOR = {}


# Its arguments may be numbers, though its schema has tensors (PyTorch 2.15).
_FMA = getattr(torch.ops.prims.fma, "default", None) if hasattr(torch.ops.prims, "fma") else None


class NotNative(Exception):
    """A node that Kiln cannot be told of."""


def dtype_name(dtype):
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def is_size(node):
    """Whether a node is a number that depends on sizes and on nothing else."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _may_be_whole(fake):
    """Whether a tensor's elements are all of its memory, as far as its sizes are known."""
    numbers = (*fake.shape, fake.storage_offset(), fake.untyped_storage().nbytes())
    if any(sizes.is_symbolic(number) for number in numbers):
        return True
    return fake.storage_offset() == 0 and fake.numel() * fake.element_size() == fake.untyped_storage().nbytes()


def source_of(node):
    """The user's file and line."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    if not trace:
        return "", 0
    for line in reversed(trace.strip().splitlines()):
        line = line.strip()
        if line.startswith('File "'):
            file, _, rest = line[len('File "') :].partition('", line ')
            number = rest.split(",")[0]
            return file, int(number) if number.isdigit() else 0
    return "", 0


def arguments_of(node):
    """Pairs of the schema's names and the values of a node's arguments, default values included."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise NotNative(f"{target} is not an ATen op")
    given = []
    for number, argument in enumerate(target._schema.arguments):
        if argument.name in _PLACEMENT:
            continue
        if number < len(node.args):
            value = node.args[number]
        elif argument.name in node.kwargs or not argument.has_default_value():
            value = node.kwargs.get(argument.name)
        else:
            # A dtype that was not given is a number in a schema; rows have the same one.
            value = None if "ScalarType" in str(argument.real_type) else argument.default_value
        given.append((argument.name, value))
    return given


# Types of a schema's arguments that may be a number with which elements are computed.
_NUMBERS = frozenset({"Tensor", "number", "Optional[Tensor]", "Optional[number]"})


def _computed_with(node):
    """The names of a node's arguments that may be numbers with which elements are computed, and are no sizes or places."""
    return {argument.name for argument in node.target._schema.arguments if str(argument.type) in _NUMBERS}


class Lowering:
    """A Kiln graph of some nodes of an FX graph on a device, which is called with the values of others."""

    def __init__(self, device):
        self.graph = _kiln.Graph()
        self.device = device
        # By node, and by node and number for ops with several results.
        self.numbers = {}
        self.calls = []
        self.outputs = []
        self.hints = {}
        # The nodes whose values a call takes.
        self.parameters = []
        # After these, numbers that a call takes as tensors of one element, each with its tensor.
        self.given_numbers = {}
        # Symbols among sizes and places that no guard keeps from being negative, and that programs cannot take so.
        self.not_negative = set()

    def _value(self, fake, is_parameter=False):
        if not isinstance(fake, torch.Tensor):
            raise NotNative(f"a value of the type {type(fake).__name__}")
        if fake.device != self.device and not (is_parameter and devices.is_host_scalar(fake, self.device)):
            raise NotNative(f"tensors on {fake.device} beside those on {self.device}")
        if fake.is_sparse or fake.is_quantized or fake.is_mkldnn:
            raise NotNative("sparse or quantised tensors")
        shape, strides = tuple(fake.shape), tuple(fake.stride())
        for name, hint in sizes.hints((*shape, *strides)).items():
            if name not in self.hints:
                self.hints[name] = hint
                self.graph.hint(name, hint)
        try:
            return self.graph.value(dtype_name(fake.dtype), [sizes.text(n) for n in shape], [sizes.text(n) for n in strides])
        except _kiln.Unsupported as error:
            raise NotNative(str(error)) from None

    def parameter(self, node, fake=None):
        """Makes a node's value a parameter, a number unless it is a tensor; ``fake`` is it with other strides."""
        fake = node.meta.get("val") if fake is None else fake
        if isinstance(fake, torch.Tensor):
            number = self._value(fake, is_parameter=True)
            self.graph.parameter(number)
            number = self._lazily(node, number)
            self.numbers[node] = number
        elif isinstance(fake, torch.SymInt):
            self.graph.size_parameter(sizes.text(fake))
        else:
            raise NotNative(f"a parameter of the type {type(fake).__name__}")
        self.parameters.append(node)

    def _lazily(self, node, number):
        """What a tensor's memory stands for, and the other way round: PyTorch conjugates and negates some tensors when they are read."""
        fake = node.meta["val"]
        for lazy, op in [(fake.is_conj(), "aten._conj.default"), (fake.is_neg(), "aten.neg.default")]:
            if lazy:
                kept, number = number, self._value(fake)
                self.graph.call(op, [("self", ("tensor", kept))], [number], *source_of(node))
                self.calls.append(node)
        return number

    def _argument(self, value, user, computed_with=False):
        if isinstance(value, Node):
            if value in self.numbers:
                return ("tensor", self.numbers[value])
            fake = value.meta.get("val")
            if isinstance(fake, (torch.SymInt, torch.SymFloat)):
                return self._argument(fake, user, computed_with)
            if isinstance(fake, (bool, int, float)):
                return fake
            raise NotNative(f"{value} is not a tensor that Kiln knows")
        if isinstance(value, torch.SymInt):
            if computed_with and sizes.may_be_no_size(value):
                return self._given_number(value, "int64")
            self.not_negative |= sizes.that_may_be_negative(value)
            return ("size", sizes.text(value))
        if isinstance(value, torch.SymFloat):
            return self._computed(value, user)
        if isinstance(value, torch.dtype):
            return ("dtype", dtype_name(value))
        if isinstance(value, (list, tuple)):
            return [self._argument(item, user) for item in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise NotNative(f"an argument of the type {type(value).__name__}")

    def _computed(self, number, user):
        """A number that is computed from sizes and is no size, as a tensor of one element for the node that uses it."""
        fake = user.meta.get("val")

        def call(op, arguments, dtype):
            result = self.graph.value(dtype, [], [])
            self.graph.call(op, arguments, [result], *source_of(user))
            self.calls.append(user)
            return ("tensor", result)

        try:
            value = sizes.computed(number, call)
        except sizes.NotComputed:
            value = self._given_number(number, "float64")
        # Numbers do not widen the floats that they meet.
        if not isinstance(fake, torch.Tensor) or fake.dtype != torch.float64:
            value = call("prims.convert_element_type.default", [("a", value), ("dtype", ("dtype", "float32"))], "float32")
        return value

    def _filled(self, value, dtype, user):
        """An argument that has to be a tensor: of a number one element."""
        if isinstance(value, tuple):
            return value
        result = self.graph.value(dtype_name(dtype), [], [])
        given = [("size", []), ("fill_value", value), ("dtype", ("dtype", dtype_name(dtype)))]
        self.graph.call("aten.full.default", given, [result], *source_of(user))
        self.calls.append(user)
        return ("tensor", result)

    def _given_number(self, number, dtype):
        """A number that a call is given as a tensor of one element."""
        key = str(number.node.expr)
        if key not in self.given_numbers:
            result = self.graph.value(dtype, [], [])
            self.graph.parameter(result)
            self.given_numbers[key] = (number, result)
        return ("tensor", self.given_numbers[key][1])

    def call(self, node):
        """Adds the call of a node."""
        if node.target is operator.getitem:
            # Some results of some ops are no tensors.
            if node.meta.get("val") is not None:
                self.numbers[node] = self.numbers[(node.args[0], node.args[1])]
            return
        if node.target is torch.ops.aten._conj.default and isinstance(node.args[0], complex):
            self._conjugate_number(node)
            return
        if node.meta.get("unbacked_bindings"):
            raise NotNative(f"{node.target} gives a size that depends on data, at {':'.join(map(str, source_of(node)))}")
        if node.target in _IN_MEMORY and not _may_be_whole(node.args[0].meta["val"]):
            raise NotNative(f"{node.target} of a part of a tensor's memory")
        written = node.args[0].meta.get("val") if node.target is torch.ops.aten.copy_.default else None
        if written is not None and (written.is_conj() or written.is_neg()):
            raise NotNative("a tensor that is conjugated or negated when it is read, overwritten")
        given, numbers = arguments_of(node), _computed_with(node)
        arguments = [(name, self._argument(value, node, name in numbers)) for name, value in given]
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and not any(isinstance(arg.meta.get("val"), torch.Tensor) for arg in node.all_input_nodes):
            # What is made of no tensor has PyTorch's default dtype where none is given.
            arguments = [(name, ("dtype", dtype_name(fake.dtype)) if name == "dtype" and value is None else value) for name, value in arguments]
        if node.target is _FMA and isinstance(fake, torch.Tensor):
            arguments = [(name, self._filled(value, fake.dtype, node)) for name, value in arguments]
        results = []
        if isinstance(fake, (list, tuple)):
            for number, part in enumerate(fake):
                if not isinstance(part, torch.Tensor) or not any(user.args[1] == number for user in node.users):
                    results.append(None)
                    continue
                results.append(self._value(part))
                self.numbers[(node, number)] = results[-1]
        else:
            results.append(self._value(fake))
            self.numbers[node] = results[-1]
        self.graph.call(str(STANDS_FOR.get(node.target, node.target)), arguments, results, *source_of(node))
        self.calls.append(node)

    def _conjugate_number(self, node):
        """Adds a number that is no tensor, conjugated: what is left of a tensor of one element that PyTorch made of a number."""
        # It takes the width of what it is combined with.
        dtypes = {user.meta["val"].dtype.to_complex() for user in node.users}
        if len(dtypes) != 1:
            raise NotNative("a complex number beside tensors of several dtypes")
        number, dtype = node.args[0], dtypes.pop()
        real, result = dtype_name(dtype.to_real()), self.graph.value(dtype_name(dtype), [], [])
        parts = [self.graph.value(real, [], []) for _ in range(2)]
        for part, value in zip(parts, (number.real, -number.imag)):
            self.graph.call("aten.full.default", [("size", []), ("fill_value", value), ("dtype", ("dtype", real))], [part], *source_of(node))
        self.graph.call("aten.complex.default", [("real", ("tensor", parts[0])), ("imag", ("tensor", parts[1]))], [result], *source_of(node))
        self.calls += [node] * 3
        self.numbers[node] = result

    def output(self, node):
        """Makes a node's value an output."""
        self.graph.output(self._lazily(node, self.numbers[node]))
        self.outputs.append(node)

    def compile(self, name, options, frozen=()):
        """A function that makes the program. It needs nothing of the FX graph any more, so that it may run on another thread;
        ``frozen`` are the parameters that change rarely."""
        dtypes = [node.meta["val"].dtype for node in self.outputs]
        settings = options.for_rust()
        if self.device.type != "cpu" and (options.verify or options.tunes or options.freeze):
            emit("remark", name, f"verify, freeze and tuning are for the CPU so far: not done on {self.device}")
            settings.update(verify=False, tuning_seconds=None)
        elif options.freeze and frozen:
            tensors = [node for node in self.parameters if node in self.numbers]
            settings["frozen"] = [number for number, node in enumerate(tensors) if node in frozen]
            settings["pack"] = options.pack
        if self.device.type == "cuda":
            devices.find_libraries()
        graph, allocate, device = self.graph, devices.allocator(self.device), str(self.device)
        return lambda: graph.compile(allocate, dtypes, name=name, device=device, **settings)
