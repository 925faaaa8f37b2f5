"""Data-parallel training, two ranks on the CPU:

    torchrun --standalone --nproc-per-node 2 python/examples/06_data_parallel.py

Each rank trains on batches of its own; gradients are averaged while the backward graphs run.
"""

import datetime

import torch
import torch.distributed as dist
from side_by_side import side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kiln

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank = dist.get_rank()


def trainer(compiled):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    run = torch.compile(model, backend="kiln") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = nn.functional.cross_entropy(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


eager, fast = trainer(compiled=False), trainer(compiled=True)
torch.manual_seed(1 + rank)
batches = [(torch.randn(64, 32), torch.randint(0, 10, (64,))) for _ in range(5)]
for x, y in batches:
    want, got = eager(x, y), fast(x, y)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    print(f"rank {rank}: loss {got.item():.5f}, in eager {want.item():.5f}")

if rank == 0:
    print("rank 0:", end=" ")
side_by_side(lambda: eager(*batches[0]), lambda: fast(*batches[0]))
if rank == 0:
    print(kiln.report())
dist.destroy_process_group()
