"""Several samples in one graph, so that what a capture costs apart from its nodes is paid once for them.

Only good news is taken from such a graph: where anything of it raises, differs from eager or ran in PyTorch, its samples are run one by
one, and their verdicts are those.
"""

import itertools

from . import backend, sample

# Samples in one graph.
COUNT = 8
# After so many graphs that told nothing, the other samples of a group are run one by one.
PATIENCE = 2


class Together:
    """Calls side by side, with what `sample.direct` and `sample.perform` ask of one."""

    gradient = False

    def __init__(self, calls):
        self.calls = calls
        self.inputs = [tensor for call in calls for tensor in call.inputs]

    def flat(self):
        """All calls as a function of all inputs, which gives the outputs of all."""
        functions = [(call.flat(), len(call.inputs)) for call in self.calls]

        def samples(*inputs):
            left = iter(inputs)
            return tuple(output for function, count in functions for output in function(*itertools.islice(left, count)))

        return samples

    def are_right(self, name):
        """Whether all are right under a backend that ran all of their nodes."""
        try:
            eager = [sample.perform(call.flat(), call.inputs, False) for call in self.calls]
            backend.forget(name)
            result = sample.perform(sample.direct(self, name), self.inputs, False)
            if backend.fallbacks(name)[1]:
                return False
            outputs, inputs = iter(result.outputs), iter(result.inputs)
            for call, expected in zip(self.calls, eager):
                own = [list(itertools.islice(part, len(of))) for part, of in ((outputs, expected.outputs), (inputs, expected.inputs))]
                if sample.compare(call, expected, sample.Result(*own, [])):
                    return False
            return next(outputs, None) is None
        except Exception:
            return False


def check_all(named, name, compiled):
    """(sample's name, verdict) of each (sample's name, call), in order; ``compiled`` as for `sample.check`."""
    named, failed = iter(named), 0
    while some := list(itertools.islice(named, COUNT if failed < PATIENCE else 1)):
        calls = [call for _, call in some]
        if len(calls) > 1 and not any(call.gradient for call in calls):
            if Together(calls).are_right(name):
                yield from ((label, sample.Verdict(sample.RIGHT)) for label, _ in some)
                continue
            failed += 1
        yield from ((label, sample.check(call, name, compiled)) for label, call in some)
