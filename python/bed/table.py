"""The zoo's CSV: the columns of PyTorch's dashboards first, then ours."""

import csv
import pathlib

DASHBOARD = [
    "dev", "name", "batch_size", "speedup", "abs_latency", "compilation_latency", "compression_ratio", "eager_peak_mem",
    "dynamo_peak_mem", "calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks",
]
OURS = [
    "backend", "family", "accuracy", "error", "eager_error", "fallback_nodes", "eager_ms", "frontend_s", "first_call_s", "backend_s",
    "other_backend", "other_accuracy", "other_error", "other_ms", "other_first_call_s", "other_backend_s", "speedup_over_other",
    "aot_eager_accuracy", "aot_eager_error", "why", "fallbacks",
    "conditions", "twice_the_batch",
]
COLUMNS = DASHBOARD + OURS


def text_of(value):
    """A cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def append(path, row):
    """Adds a row, and the header to a new file."""
    path = pathlib.Path(path)
    new = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        writer.writerow([text_of(row.get(column)) for column in COLUMNS])


def read(path):
    """The rows, with numbers as floats and empty cells as None."""
    with pathlib.Path(path).open(newline="") as file:
        return [{key: _value(key, value) for key, value in row.items()} for row in csv.DictReader(file)]


def _value(key, value):
    if value in ("", None):
        return None
    if key in ("why", "fallbacks", "name", "conditions"):
        return value
    try:
        return float(value)
    except ValueError:
        return value
