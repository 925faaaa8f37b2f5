"""Times two functions side by side, for the examples."""

import statistics
import time


def side_by_side(eager, compiled, rounds=10):
    """Calls both in turn and prints the medians and their ratio."""
    times = {eager: [], compiled: []}
    for _ in range(rounds):
        for function, taken in times.items():
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    before, after = (statistics.median(taken) * 1e3 for taken in times.values())
    print(f"eager {before:.2f} ms, kiln {after:.2f} ms: {before / after:.2f}×")
