"""``inductor``: PyTorch's test/inductor/test_torchinductor.py on the CPU, with the backend in place of Inductor.

KILN_PYTORCH_SRC names a source tree of PyTorch (its folder ``test/inductor`` is enough). The denominator is a list of the cases that
backend="aot_eager" passes: what fails there asks for Inductor's own code or options.
"""

import argparse
import os
import pathlib
import re
import sys
import unittest
import unittest.mock

from . import backend, known, workers
from .zoo import chosen_names

PRELOAD = ["torch._inductor.test_case", "torch.testing._internal.common_device_type"]
# These build C++ extensions.
LEFT_OUT = re.compile("aoti_eager")


def arguments(argv):
    parser = argparse.ArgumentParser(prog="bed inductor", description=__doc__)
    parser.add_argument("--backend", default="kiln")
    parser.add_argument("--only", metavar="REGEX", help="cases whose name has a match")
    parser.add_argument("--shard", metavar="I/N", help="every N-th case, from the I-th on (from 0)")
    parser.add_argument("--list", action="store_true", help="print the cases of the denominator and stop")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a case")
    parser.add_argument("--known", type=pathlib.Path, help="list of known failures (default: that of the backend, if it has one)")
    parser.add_argument("--shrink", action="store_true", help="delete the lines of the list that pass")
    parser.add_argument("--dynamic", action="store_true", help="with symbolic sizes from the first call on; has lists of its own")
    parser.add_argument("--record-cases", action="store_true", help="run all cases with aot_eager and write the denominator")
    parser.add_argument("--resume", action="store_true", help="with --record-cases: keep the cases that the file has")
    return parser.parse_args(argv)


def cases_file(options):
    """The denominator."""
    return known.FOLDER / ("inductor_dynamic_cases.txt" if options.dynamic else "inductor_cases.txt")


def source():
    """The folder ``test`` of the source tree; None without the variable."""
    path = os.environ.get("KILN_PYTORCH_SRC")
    if not path:
        return None
    folder = pathlib.Path(path) / "test"
    if not (folder / "inductor" / "test_torchinductor.py").is_file():
        raise SystemExit(f"bed: KILN_PYTORCH_SRC={path} has no test/inductor/test_torchinductor.py")
    return folder


def load():
    """A test class with the cases of the file, and the file's module, whose name ``compile_fx`` is the compiler."""
    import torch
    from torch._inductor.codecache import CppCodeCache

    sys.path.insert(0, str(source()))
    # Nothing is compiled by Inductor, so nobody needs to know what its C++ compiler can do.
    torch._inductor.config.cpp.vec_isa_ok = True
    with unittest.mock.patch.object(CppCodeCache, "load"):
        from inductor import test_torchinductor as file

    class Cases(file.TestCase):
        common = file.check_model
        device = "cpu"

    file.copy_tests(file.CommonTemplate, Cases, "cpu")
    torch._inductor.config.fallback_random = True
    return file, Cases


def redirect(file, name):
    """Puts the backend in Inductor's place: in the file's own helpers, and where a case calls ``torch.compile`` itself."""
    import torch

    compiler, options = backend.find(name), backend.options(name)
    keywords = {"options": options} if options else {}
    original = torch.compile

    def compile(model=None, **given):
        if given.get("backend", "inductor") == "inductor":
            given["backend"] = name
            given.pop("mode", None)
            given.pop("options", None)
        if model is None:
            return lambda function: original(function, **given)
        return original(model, **given)

    file.compile_fx = lambda module, inputs, **_: compiler(module, inputs, **keywords)
    torch.compile = compile


def names_of(cases):
    """The names of a test class, in order."""
    return sorted(name for name in dir(cases) if name.startswith("test_") and not LEFT_OUT.search(name))


def prepare():
    """What is done once in a process."""
    return {}


def work(context, task):
    """``(status, reason)`` of one case; status: passed, failed, skipped."""
    if "cases" not in context:
        context["file"], context["cases"] = load()
        redirect(context["file"], task["backend"])
    import torch

    result = unittest.TestResult()
    with torch._dynamo.config.patch(assume_static_by_default=not task["dynamic"]):
        unittest.TestSuite([context["cases"](task["name"])]).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    for _, text in result.failures + result.errors + [(None, "unexpected success")] * len(result.unexpectedSuccesses):
        lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
        return "failed", next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Unsupported|Failed)", line)), lines[-1])
    return "passed", ""


def run(names, options, each):
    """Runs the cases with the backend; ``each(name, status, reason)`` is called as they end."""
    tasks = [{"name": name, "backend": options.backend, "dynamic": options.dynamic} for name in names]
    outcomes = workers.run(tasks, work, prepare=prepare, jobs=options.jobs, limit=options.limit, recycle=100, preload=PRELOAD)
    for outcome in outcomes:
        status, reason = outcome.value if outcome.status == "ok" else (outcome.status, str(outcome.value)[:300])
        each(outcome.task["name"], status, reason)


def record(options):
    """Writes the denominator."""
    options.backend = "aot_eager"
    path = cases_file(options)
    kept = list(known.read(path)) if options.resume else []
    names = [name for name in chosen_names(names_of(load()[1]), options.only, options.shard) if name not in kept]

    def each(name, status, reason):
        print(f"{name} {status} {reason[:160]}", flush=True)
        if status == "passed":
            kept.append(name)
            path.write_text("\n".join(sorted(kept)) + "\n")

    run(names, options, each)
    print(f"{len(kept)} cases in {path.name}")
    return 0


def main(argv):
    options = arguments(argv)
    if options.list:
        names = chosen_names(list(known.read(cases_file(options))), options.only, options.shard)
        print("\n".join(names))
        print(f"{len(names)} cases")
        return 0
    if source() is None:
        print("bed: skipped: KILN_PYTORCH_SRC does not name a source tree of PyTorch")
        return 0
    if options.record_cases:
        return record(options)
    backend.require(options.backend)
    names = chosen_names(list(known.read(cases_file(options))), options.only, options.shard)
    if not names:
        print(f"bed: no case to run: {cases_file(options).name} is written by --record-cases", file=sys.stderr)
        return 2
    passed, failed = set(), {}

    def each(name, status, reason):
        if status == "passed":
            passed.add(name)
        else:
            failed[name] = f"{status}: {reason}"
            print(f"{name} {failed[name][:200]}", flush=True)

    run(names, options, each)
    print(f"{len(passed)} of {len(names)} cases passed ({100 * len(passed) / max(len(names), 1):.1f} %)")
    path = options.known or known.FOLDER / ("inductor_dynamic.txt" if options.dynamic else "inductor.txt")
    if options.known is None and options.backend != "kiln":
        return 1 if failed else 0
    if options.shrink:
        known.shrink(path, passed)
    return known.judge(path, failed, passed)
