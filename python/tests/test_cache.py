"""The disk cache: a second process compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent(
    """
    import json, sys, torch, kiln
    from torch import nn

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10), nn.Softmax(-1))
    x = torch.randn(2, 3, 12, 12)
    net(x)
    torch.compile(net, backend="kiln", dynamic=False)(x).sum().backward()
    with torch.no_grad():
        torch.compile(net.eval(), backend="kiln", dynamic=True)(torch.randn(3, 3, 12, 12))
    print(json.dumps({**kiln.cache.stats(), "hit_graphs": kiln.report().cache_hits, "graphs": kiln.report().graphs}))
    """
)


def run(folder, script, **environment):
    environment = {**os.environ, "KILN_CACHE_DIR": str(folder), "KILN_CACHE": "on", **environment}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing(tmp_path):
    first = tmp_path / "one" / "script.py"
    first.parent.mkdir()
    first.write_text(SCRIPT)
    cold = run(tmp_path / "cache", first)
    assert cold["kernels_compiled"] > 0 and cold["hit_graphs"] == 0
    # Another rank, another place, another working directory.
    second = tmp_path / "two" / "deeper" / "other.py"
    second.parent.mkdir(parents=True)
    second.write_text("\n\n" + SCRIPT)
    warm = run(tmp_path / "cache", second, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert warm["kernels_compiled"] == 0, warm
    assert warm["hit_graphs"] == warm["graphs"] == cold["graphs"]
    assert warm["stored"] == 0 and warm["misses"] == 0, warm
    # The folder itself may move.
    shutil.copytree(tmp_path / "cache", tmp_path / "moved")
    assert run(tmp_path / "moved", first)["kernels_compiled"] == 0
