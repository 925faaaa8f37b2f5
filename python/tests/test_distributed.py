"""Models that communicate: two ranks on the CPU under torchrun."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

CASES = ["data_parallel", "sharded", "sharded_blocks", "tensor_parallel", "functional", "written"]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_two_ranks_train_as_without_kiln():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2", str(pathlib.Path(__file__).with_name("ranks.py")), *CASES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert done.stdout.split("\n")[:-1] == [f"{case} ok" for case in CASES], done.stdout + done.stderr[-4000:]
