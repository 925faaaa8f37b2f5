"""What ``ops``, ``modules`` and ``optims`` share: a run over groups of samples in workers, resumable, judged by a list."""

import argparse
import collections
import json
import pathlib
import time

from . import backend, known, sample, workers
from .zoo import chosen_names

COUNTED = (sample.RIGHT, sample.WRONG, sample.RAISED)


def parser(command, text):
    """The arguments that all have."""
    result = argparse.ArgumentParser(prog=f"bed {command}", description=text)
    result.add_argument("--backend", default="kiln")
    result.add_argument("--only", metavar="REGEX", help="names that have a match")
    result.add_argument("--shard", metavar="I/N", help="every N-th name, from the I-th on (from 0)")
    result.add_argument("--list", action="store_true", help="print the names and stop")
    result.add_argument("--jobs", type=int, default=1, help="processes")
    result.add_argument("--limit", type=float, default=120.0, help="seconds for one sample")
    result.add_argument("--samples", type=int, default=0, help="samples of each group at most; 0 for all")
    result.add_argument("--grad", action="store_true", help="gradients too")
    result.add_argument("--out", type=pathlib.Path, help=f"results, a line of JSON a group (default: bed-{command}-BACKEND.jsonl)")
    result.add_argument("--resume", action="store_true", help="keep the results of the file and run the other groups")
    result.add_argument("--known", type=pathlib.Path, help="list of known failures (default: that of the backend, if it has one)")
    result.add_argument("--shrink", action="store_true", help="delete the lines of the list that pass")
    return result


def prepare():
    """What is done once in a process."""
    import torch

    backend.prepare()
    torch.set_num_threads(1)
    return None


def tally(verdicts):
    """Counts of statuses, the first reasons of what is not right, and of right samples with nodes that ran in PyTorch how many there
    are and why; ``verdicts``: (sample's name, Verdict)."""
    counts, reasons, start = collections.Counter(), [], time.process_time()
    fallbacks, foreign = 0, collections.Counter()
    for name, verdict in verdicts:
        workers.alive()
        counts[verdict.status] += 1
        if verdict.status == sample.RIGHT and verdict.fallbacks:
            fallbacks += 1
            foreign.update({reason.partition(", at ")[0][:160] for reason in verdict.fallbacks})
        if verdict.status in (sample.WRONG, sample.RAISED) and len(reasons) < 5:
            reasons.append(f"{name}: {verdict.status}: {verdict.why}")
    result = {"counts": dict(counts), "reasons": reasons, "cpu_s": round(time.process_time() - start, 3)}
    return {**result, "fallbacks": fallbacks, "foreign": dict(foreign)} if fallbacks else result


def run(command, options, groups, work, preload):
    """Runs the groups, each a dictionary with ``case`` (its name in the list) and ``name``; gives the exit code.

    ``preload``: the module of PyTorch that has the samples.
    """
    names = set(chosen_names(list(dict.fromkeys(group["name"] for group in groups)), options.only, options.shard))
    groups = [group for group in groups if group["name"] in names]
    if options.list:
        print("\n".join(group["case"] for group in groups))
        print(f"{len(groups)} groups")
        return 0
    backend.require(options.backend)
    out = options.out or pathlib.Path(f"bed-{command}-{options.backend}.jsonl")
    if out.exists() and not options.resume:
        out.unlink()
    results = {}
    if out.exists():
        results = {result["key"]: result for result in map(json.loads, out.read_text().splitlines())}
    keep = {key_of(group) for group in groups}
    results = {key: result for key, result in results.items() if key in keep}
    tasks = [
        {**group, "backend": options.backend, "samples": options.samples, "grad": options.grad}
        for group in groups
        if key_of(group) not in results
    ]
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        outcomes = workers.run(
            tasks, work, prepare=prepare, jobs=options.jobs, limit=options.limit, recycle=60, preload=["torch._dynamo", preload]
        )
        for outcome in outcomes:
            result = {"key": key_of(outcome.task), "case": outcome.task["case"], "seconds": round(outcome.seconds, 3)}
            if outcome.status == "ok":
                result.update(outcome.value)
            else:
                result.update(counts={outcome.status: 1}, reasons=[f"{outcome.status}: {str(outcome.value)[:300]}"])
            results[result["key"]] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            if failed(result):
                print(f"{result['key']}: {result['reasons'][0][:200]}", flush=True)
    report(results.values(), time.monotonic() - started)
    return judged(options, command, list(results.values()))


def key_of(group):
    """The name of a group among all."""
    return " ".join(filter(None, [group["case"], group.get("layout", "")]))


def failed(result):
    """Whether a group has a sample that is not right."""
    return bool(set(result["counts"]) & {sample.WRONG, sample.RAISED, "crash", "timeout"})


def report(results, wall):
    """Prints the sums."""
    total, processor = collections.Counter(), 0.0
    fallbacks, foreign = 0, collections.Counter()
    for result in results:
        total.update(result["counts"])
        fallbacks += result.get("fallbacks", 0)
        foreign.update(result.get("foreign", {}))
        processor += result.get("cpu_s", 0.0)
    counted = sum(total[status] for status in (*COUNTED, "crash", "timeout"))
    print(f"{total[sample.RIGHT]} of {counted} samples right ({100 * total[sample.RIGHT] / max(counted, 1):.2f} %)")
    if fallbacks:
        print(f"{fallbacks} of them ({100 * fallbacks / max(counted, 1):.2f} %) with nodes that ran in PyTorch; most often:")
        print("\n".join(f"{count:6} × {reason}" for reason, count in foreign.most_common(12)))
    rest = ", ".join(f"{count} {status}" for status, count in total.most_common() if status != sample.RIGHT)
    if rest:
        print(f"others: {rest}")
    count = sum(total.values())
    print(f"{count} samples, {wall:.0f} s, {count / max(processor, 1e-9):.1f} samples/s of processor time")


def judged(options, command, results):
    """The exit code by the list of known failures."""
    reasons, cases = {}, set()
    for result in results:
        cases.add(result["case"])
        if failed(result):
            reasons.setdefault(result["case"], (result["reasons"] or [""])[0])
    path = options.known or known.FOLDER / f"{command}.txt"
    if options.known is None and options.backend != "kiln":
        return 1 if reasons else 0
    passed = cases - set(reasons)
    whole = not options.samples
    if options.shrink and whole:
        known.shrink(path, passed)
    return known.judge(path, reasons, passed, whole)
