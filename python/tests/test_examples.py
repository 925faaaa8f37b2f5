"""The examples run, agree with eager (they assert it) and say what Kiln did."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
NEEDS = {"01": "transformers", "02": "transformers", "03": "transformers", "04": "transformers", "05": "diffusers"}


def examples():
    return sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))


@pytest.mark.parametrize("name", examples())
def test_an_example_runs(name):
    needed = NEEDS.get(name[:2])
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    command = [sys.executable]
    if name.startswith("06"):
        command += ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command.append(str(EXAMPLES / name))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert "×" in done.stdout and " programs, " in done.stdout, done.stdout
    assert "in PyTorch: " not in done.stdout and "graphs run in PyTorch" not in done.stdout, done.stdout
