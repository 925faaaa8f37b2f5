"""Sizes of PyTorch's symbolic shapes: as text for Kiln, and as numbers at a call."""

import contextlib
import contextvars
import functools
import math

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.value_ranges import bound_sympy

# Symbols that are numbers, or known by others, in the graph at hand.
_fixed = contextvars.ContextVar("fixed", default={})


@contextlib.contextmanager
def fixed(values):
    """Takes symbols for numbers or for expressions of others."""
    known = _fixed.get()
    token = _fixed.set({symbol: value.xreplace(known) for symbol, value in values.items()} | known)
    try:
        yield
    finally:
        _fixed.reset(token)


def text(size):
    """A size as Kiln takes it: a number, or the text of its expression."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr.xreplace(_fixed.get())
        return int(expression) if expression.is_number else str(expression)
    return int(size)


def symbols_of(size):
    """The symbols that a size depends on."""
    return size.node.expr.xreplace(_fixed.get()).free_symbols


def is_symbolic(size):
    """Whether a size depends on symbols."""
    return isinstance(text(size), str)


def may_be_no_size(number):
    """Whether a whole number may be negative, or is made of one that may be, as far as PyTorch's guards say: an argument of the user's
    function, and no size."""
    return _may_be_no_size(number.node.expr.xreplace(_fixed.get()), number.node.shape_env)


def _may_be_no_size(expression, environment):
    if expression.is_number:
        return False
    ranges = environment.var_to_range
    known = {symbol: ranges[symbol] for symbol in expression.free_symbols if symbol in ranges}
    if len(known) < len(expression.free_symbols) or any(found.lower < 0 for found in known.values()):
        return True
    return bool(bound_sympy(expression, known).lower < 0)


def that_may_be_negative(size):
    """The symbols of a size that may be negative, as far as PyTorch's guards say: arguments of the user's function."""
    ranges = size.node.shape_env.var_to_range
    return {symbol for symbol in symbols_of(size) if symbol in ranges and ranges[symbol].lower < 0}


# Functions of PyTorch's symbolic numbers, and the op that computes them.
_FUNCTIONS = {
    "IntTrueDiv": "aten.div.Tensor",
    "FloatTrueDiv": "aten.div.Tensor",
    "FloatPow": "aten.pow.Tensor_Tensor",
    "Pow": "aten.pow.Tensor_Tensor",
    "PowByNatural": "aten.pow.Tensor_Tensor",
    **{f"OpaqueUnaryFn_{name}": f"aten.{name}.default" for name in ("sqrt", "exp", "log", "sin", "cos", "tanh")},
}


class NotComputed(Exception):
    """A number of which it is not known how it is computed."""


def computed(number, call):
    """A number that is no size, in float64: made by calls of ops, ``call(op, arguments, dtype)``, which gives an argument for others."""

    def filled(value):
        return call("aten.full.default", [("size", []), ("fill_value", value), ("dtype", ("dtype", "float64"))], "float64")

    def made(expression):
        name = type(expression).__name__
        if expression.is_number:
            return filled(float(expression))
        if expression.is_integer and expression.free_symbols and name not in _FUNCTIONS:
            if _may_be_no_size(expression, number.node.shape_env):
                raise NotComputed(f"the number {expression}")
            return filled(("size", str(expression)))
        if name == "ToFloat":
            return made(expression.args[0])
        parts = [made(part) for part in expression.args]
        if name in ("Add", "Mul"):
            total = parts[0]
            for part in parts[1:]:
                total = call(f"aten.{name.lower()}.Tensor", [("self", total), ("other", part)], "float64")
            return total
        if name not in _FUNCTIONS:
            raise NotComputed(f"the number {expression}")
        names = ("self",) if len(parts) == 1 else ("self", "exponent" if "pow" in _FUNCTIONS[name] else "other")
        return call(_FUNCTIONS[name], list(zip(names, parts)), "float64")

    return made(number.node.expr.xreplace(_fixed.get()))


def hints(values):
    """The sizes that symbols had while the graph was captured, of the sizes in ``values``."""
    found = {}
    for value in values:
        if not isinstance(value, torch.SymInt):
            continue
        environment = value.node.shape_env
        for symbol in value.node.expr.free_symbols:
            if symbol.name not in found:
                hint = environment.backed_var_to_val.get(symbol)
                if hint is not None:
                    found[symbol.name] = int(hint)
    return found


def _symbolic(parameters):
    sizes = [size for value in parameters for size in (value.shape if isinstance(value, torch.Tensor) else [value])]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def settled(parameters):
    """Symbols that PyTorch's guards settle by those of other arguments: the sum of several parts of an axis, or the last of its parts."""
    symbolic = _symbolic(parameters)
    if not symbolic:
        return {}
    environment = symbolic[0].node.shape_env
    told = set(Sizes(parameters).places)
    found = {}
    for guard in environment.guards:
        if isinstance(guard.expr, sympy.Eq):
            difference = environment.replace(guard.expr.lhs - guard.expr.rhs).xreplace(found)
            symbol, rest = _rest_of_sum(sympy.expand(difference))
            if symbol is not None and difference.free_symbols <= told:
                found = {other: value.xreplace({symbol: rest}) for other, value in found.items()} | {symbol: rest}
    return found


def _rest_of_sum(zero):
    """A symbol and what it is, where a sum of symbols and a number is zero: the total of the others, or else the last of them."""
    terms = [term for term in sympy.Add.make_args(zero) if not term.is_number]
    added = sorted((term for term in terms if term.is_Symbol), key=str)
    taken = sorted((-term for term in terms if (-term).is_Symbol), key=str)
    if len(added) + len(taken) == len(terms) > 1:
        if len(taken) == 1 or not added:
            return taken[-1], zero + taken[-1]
        if len(added) == 1 or not taken:
            return added[-1], added[-1] - zero
    return None, None


def limited(parameters):
    """The symbols of arguments that can have few values: those whose sizes PyTorch has found to be a number after some ops, as in a
    convolution whose flattened result meets a matrix. Values of such symbols are compiled for one by one."""
    symbolic = _symbolic(parameters)
    if not symbolic:
        return []
    environment = symbolic[0].node.shape_env
    found = set()
    for guard in environment.guards:
        if isinstance(guard.expr, sympy.Eq):
            sides = sorted(guard.expr.args, key=lambda side: not side.is_number)
            if sides[0].is_number and _has_few_solutions(sides[1]):
                found |= sides[1].free_symbols
    known = Sizes(parameters).places
    used = set().union(*(size.node.expr.free_symbols for size in symbolic))
    return sorted(found & used & set(known), key=str)


def _has_few_solutions(expression):
    """Whether an expression of sizes is a given number for few sizes only."""
    kinds = (sympy.Add, sympy.Mul, sympy.Pow, FloorDiv, sympy.Symbol, sympy.Integer)
    if not all(isinstance(part, kinds) for part in sympy.preorder_traversal(expression)):
        return False
    # Of several symbols, a product has few factors.
    return len(expression.free_symbols) == 1 or (isinstance(expression, sympy.Mul) and expression.as_coeff_Mul()[0] > 0)


class Sizes:
    """Evaluates sizes at a call, from the arguments of the call."""

    def __init__(self, parameters):
        """``parameters``: for each argument a fake tensor, a SymInt, or something else."""
        self.places = {}
        for number, value in enumerate(parameters):
            if isinstance(value, torch.SymInt):
                self._bind(value, (number, None))
        for number, value in enumerate(parameters):
            if isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        self._bind(size, (number, axis))

    def _bind(self, size, place):
        expression = size.node.expr
        if expression.is_symbol and expression not in self.places:
            self.places[expression] = place

    def values(self, arguments):
        """The values of all symbols."""
        found = {}
        for symbol, (number, axis) in self.places.items():
            found[symbol] = arguments[number] if axis is None else arguments[number].shape[axis]
        return found

    def evaluate(self, size, values):
        """A size as a number."""
        if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
            return kind(_evaluator(size.node.expr)(values))
        return size


@functools.lru_cache(maxsize=4096)
def _evaluator(expression):
    """A function of the values of symbols that gives the value of an expression. Sympy takes longer for sums than a kernel for tensors."""
    if expression.is_symbol:
        return lambda values: values[expression]
    if expression.is_number:
        return lambda values: expression
    parts = [_evaluator(part) for part in expression.args]
    if isinstance(expression, sympy.Add):
        return lambda values: sum(part(values) for part in parts)
    if isinstance(expression, sympy.Mul):
        return lambda values: math.prod(part(values) for part in parts)
    if isinstance(expression, FloorDiv):
        return lambda values: parts[0](values) // parts[1](values)
    return lambda values: expression.xreplace(values)
