"""``work``: whole models at their real sizes, in eager PyTorch, under Inductor's modes and under Kiln. One line of JSON for each."""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIDES = ["eager", "kiln", "kiln:reduce-overhead", "inductor", "inductor:reduce-overhead", "inductor:max-autotune"]


def arguments(argv):
    from . import workloads

    parser = argparse.ArgumentParser(prog="bed work", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(workloads.WORKS)} (default: all)")
    parser.add_argument("--sides", default=",".join(SIDES), help="eager, or BACKEND[:MODE], with commas between (default: all of Kiln's and Inductor's)")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, help="another batch size than the usual one")
    parser.add_argument("--small", action="store_true", help="few layers and small sizes: whether it runs, not how fast")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long the steady state is measured")
    parser.add_argument("--profile", action="store_true", help="the kernels of one call with their times, in the file of --out")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one side of a work")
    parser.add_argument("--out", type=pathlib.Path, help="a file that the lines are added to")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    unknown = sorted(set(parsed.works) - set(workloads.WORKS))
    if unknown:
        parser.error(f"no such work: {', '.join(unknown)}")
    parsed.works = parsed.works or list(workloads.WORKS)
    return parsed


def command(given, work, side):
    """The command of one side of a work: a process of its own, so that memory and caches are."""
    line = [sys.executable, str(HERE), "work", work, "--one", "--sides", side, "--device", given.device, "--seconds", str(given.seconds)]
    line += [option for option, on in [("--small", given.small), ("--profile", given.profile)] if on]
    return line + (["--batch", str(given.batch)] if given.batch else [])


def run(given, work, side):
    """The figures of one side, or why there are none."""
    try:
        done = subprocess.run(command(given, work, side), capture_output=True, text=True, timeout=given.limit)
    except subprocess.TimeoutExpired:
        return {"work": work, "side": side, "error": f"no answer in {given.limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
    return {"work": work, "side": side, "error": f"exit code {done.returncode}: {last[:300]}"}


def shown(row, eager):
    """A row as a line of text."""
    if "error" in row:
        return f"{row['work']:16} {row['side']:26} {row['error']}"
    ratio = f"{eager / row['median_ms']:.2f}x eager" if eager else ""
    right = f"error {row['difference']:.1e} (eager's {row['rounding']:.1e})" if "difference" in row else ""
    return (
        f"{row['work']:16} {row['side']:26} {row['median_ms']:9.3f} ms (least {row['min_ms']:.3f}) {ratio:12} "
        f"first {row['first_call_s']:6.2f} s  {right} {'' if row.get('right', True) else 'WRONG'}"
    )


def main(argv):
    """Runs the command; 1 where a side was wrong or failed."""
    given = arguments(argv)
    if given.one:
        from . import workloads

        print(json.dumps(workloads.measure(given.works[0], given.sides, given.device, given.batch, given.small, given.seconds, given.profile)))
        return 0
    bad = False
    for work in given.works:
        eager = None
        for side in given.sides.split(","):
            row = run(given, work, side)
            eager = row.get("median_ms") if side == "eager" else eager
            bad |= "error" in row or not row.get("right", True)
            print(shown(row, eager), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return int(bad)
