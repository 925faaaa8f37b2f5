"""``zoo``: real models under a backend. One row of a CSV for each, whatever happens to it."""

import argparse
import math
import pathlib
import re
import sys

from . import backend, measure, models, page, table, workers
from .conditions import Conditions, add_arguments


def arguments(argv):
    parser = argparse.ArgumentParser(prog="bed zoo", description=__doc__)
    parser.add_argument("--backend", default="kiln")
    parser.add_argument("--against", default="inductor", help="a second backend in the same process, or none (default: inductor)")
    parser.add_argument("--only", metavar="REGEX", help="models whose name has a match")
    parser.add_argument("--shard", metavar="I/N", help="every N-th model, from the I-th on (from 0)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--train", action="store_true", help="training steps (forward, loss, backward) instead of forward calls")
    parser.add_argument("--large", action="store_true", help="other models, fewer and large enough for their times to mean something")
    parser.add_argument("--threads", type=int, help="threads of PyTorch and of the backends (default: PyTorch's own number)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a model")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time; more than 1 spoils the times")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of the steady state; 0 for none")
    parser.add_argument("--slice", type=float, default=0.05, help="seconds for each backend in a round")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file (default: bed-zoo-BACKEND[-large][-train].csv)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the CSV file and run the other models")
    add_arguments(parser)
    return parser.parse_args(argv)


def chosen_names(names, only, shard):
    """The names of a command line's ``--only`` and ``--shard``."""
    names = [name for name in names if not only or re.search(only, name)]
    if shard:
        at, _, count = shard.partition("/")
        names = names[int(at) :: int(count)]
    return names


def geomean(values):
    """The geometric mean of positive numbers; None of none."""
    values = [value for value in values if value and value > 0]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(rows):
    """The figures of a table of rows, as lines."""
    ran = [row for row in rows if row.get("accuracy") not in ("eager_fail_to_run", "eager_two_runs_differ")]
    right = [row for row in ran if row.get("accuracy") == "pass"]
    lines = [f"{len(right)} of {len(ran)} right ({len(rows) - len(ran)} more do not run or repeat in eager)"]
    rounded = sum(str(row.get("why") or "").startswith(measure.ILL_CONDITIONED) for row in right)
    if rounded:
        lines.append(f"{rounded} of these by eager's error over several roundings of the weights")
    captured = [row for row in ran if row.get("accuracy") != "pass" and row.get("aot_eager_accuracy") not in (None, "pass")]
    if captured:
        names = ", ".join(row["name"] for row in captured)
        lines.append(f"{len(captured)} of the others are not right with aot_eager either, which runs PyTorch's own kernels: {names}")
    known = [row for row in ran if row.get("fallback_nodes") is not None]
    if known:
        whole = sum(row["fallback_nodes"] == 0 for row in known)
        lines.append(f"{whole} of {len(known)} without a fallback node")
    whole = sum(row.get("graph_breaks") == 0 for row in ran)
    lines.append(f"{whole} of {len(ran)} without a graph break")
    ratios = [
        ("speed-up over eager", [row.get("speedup") for row in right]),
        ("speed-up over the other backend", [row.get("speedup_over_other") for row in right]),
        (
            "first call, other / this",
            [row["other_first_call_s"] / row["first_call_s"] for row in right if row.get("first_call_s") and row.get("other_first_call_s")],
        ),
        (
            "backend's part of the first call, other / this",
            [row["other_backend_s"] / row["backend_s"] for row in right if row.get("backend_s") and row.get("other_backend_s")],
        ),
    ]
    for text, values in ratios:
        if geomean(values):
            lines.append(f"{text}: {geomean(values):.2f}× (geomean of {sum(bool(v) for v in values)})")
    for column, text in [("speedup", "eager"), ("speedup_over_other", "the other backend")]:
        slower = sorted((row[column], row["name"]) for row in right if row.get(column) and row[column] < 1)
        if slower:
            lines.append(f"slower than {text}: " + ", ".join(f"{name} {ratio:.2f}×" for ratio, name in slower))
    return lines


def main(argv):
    options = arguments(argv)
    if not options.list:
        backend.require(options.backend)
    found, missing = (models.load_large(), []) if options.large else models.load()
    for package in missing:
        print(f"bed: without {package}, which is not installed", file=sys.stderr)
    names = chosen_names(list(found), options.only, options.shard)
    if options.list:
        for name in names:
            print(f"{name:45} {found[name].family}")
        print(f"{len(names)} models")
        return 0
    conditions = Conditions.of(options)
    against = None if options.against == "none" else options.against
    out = options.out or pathlib.Path(f"bed-zoo-{options.backend}{'-large' * options.large}{'-train' * options.train}.csv")
    if out.exists() and not options.resume:
        out.unlink()
    rows = table.read(out) if out.exists() else []
    done = {row["name"] for row in rows}
    tasks = [
        {
            "name": name,
            "backend": options.backend,
            "against": against,
            "large": options.large,
            "threads": options.threads,
            "train": options.train,
            "device": options.device,
            "rounds": options.rounds,
            "slice_s": options.slice,
            "conditions": conditions,
        }
        for name in names
        if name not in done
    ]
    outcomes = workers.run(
        tasks, measure.work, prepare=measure.prepare, jobs=options.jobs, limit=options.limit, preload=["torch._dynamo", "transformers"]
    )
    for number, outcome in enumerate(outcomes, 1):
        name = outcome.task["name"]
        if outcome.status == "ok":
            row = outcome.value
        else:
            row = {"dev": options.device, "name": name, "family": found[name].family, "backend": options.backend}
            row["conditions"] = str(conditions)
            row.update(accuracy="fail_to_run" if outcome.status == "raised" else outcome.status, why=str(outcome.value)[:300])
        table.append(out, row)
        rows.append(row)
        print(f"[{number}/{len(tasks)}] {name:40} {line_of(row)} ({outcome.seconds:.0f} s)", flush=True)
    print("\n".join(summary(rows)))
    page.write(out.with_suffix(".html"), rows, summary(rows))
    print(f"{out}, {out.with_suffix('.html')}")
    return 0 if all(row.get("accuracy") in ("pass", "eager_fail_to_run", "eager_two_runs_differ") for row in rows) else 1


def line_of(row):
    """A row for the terminal."""
    parts = [str(row.get("accuracy"))]
    if row.get("unique_graphs") is not None:
        parts.append(f"{row['unique_graphs']:.0f} graphs")
    if row.get("fallback_nodes"):
        parts.append(f"{row['fallback_nodes']:.0f} fallbacks")
    if row.get("backend_s") is not None:
        parts.append(f"first call {row['first_call_s']:.2f} s ({row['backend_s']:.2f} s of it the backend)")
    if row.get("speedup"):
        parts.append(f"{row['abs_latency']:.3f} ms, {row['speedup']:.2f}× eager")
    if row.get("speedup_over_other"):
        parts.append(f"{row['speedup_over_other']:.2f}× {row['other_backend']}")
    if row.get("accuracy") != "pass":
        parts.append(str(row.get("why", ""))[:160])
    return ", ".join(parts)
