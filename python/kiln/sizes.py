"""Sizes of PyTorch's symbolic shapes: as text for Kiln, and as numbers at a call."""

import torch


def text(size):
    """A size as Kiln takes it: a number, or the text of its expression."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression) if expression.is_number else str(expression)
    return int(size)


def is_symbolic(size):
    """Whether a size depends on symbols."""
    return isinstance(text(size), str)


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
            expression = size.node.expr.xreplace(values)
            kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
            return kind(expression)
        return size
