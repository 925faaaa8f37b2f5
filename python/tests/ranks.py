"""What every rank of `test_distributed.py` runs: models that communicate, compiled and not, trained on the same batches."""

import contextlib
import copy
import datetime
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import kiln

STEPS = 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(16, 4))


def whole(parameter):
    """All of a parameter, of which a rank may hold a part."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def train(run, network, batches):
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [whole(p).detach().clone() for p in network.parameters()]


def batches(rank):
    torch.manual_seed(100 + rank)
    return [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(STEPS)]


def compare(prepare, data, **options):
    """Training with and without Kiln gives the same losses and the same weights."""
    want = prepare(model())
    got = prepare(model())
    reference = train(want, want, data)
    torch._dynamo.reset()
    kiln.clear_events()
    compiled = train(torch.compile(got, backend="kiln", **options), got, data)
    torch.testing.assert_close(compiled, reference, rtol=1e-4, atol=1e-5)
    report = kiln.report()
    assert report.graphs >= 2 and not report.fallbacks and not report.refused, str(report)
    return report


def data_parallel(rank):
    compare(DistributedDataParallel, batches(rank))


def sharded(rank):
    def shard(network):
        for layer in network:
            fully_shard(layer)
        return fully_shard(network)

    compare(shard, batches(rank))


def sharded_blocks(rank):
    """Each block is sharded, computes its activations again for the backward pass, and is compiled by itself: equal ones share a program."""

    def prepare(network, compiles=False):
        for at in (0, 1):
            network[at] = checkpoint_wrapper(network[at])
            if compiles:
                network[at].compile(backend="kiln")
            fully_shard(network[at])
        return fully_shard(network)

    data = batches(rank)
    want = prepare(model())
    reference = train(want, want, data)
    torch._dynamo.reset()
    kiln.clear_events()
    got = prepare(model(), compiles=True)
    torch.testing.assert_close(train(got, got, data), reference, rtol=1e-4, atol=1e-5)
    report = kiln.report()
    assert 2 <= report.graphs <= 4 and not report.fallbacks and not report.refused, str(report)


def tensor_parallel(_rank):
    mesh = init_device_mesh("cpu", (2,))

    def split(network):
        plan = {}
        for number in (0, 1):
            plan[f"{number}.up"] = ColwiseParallel()
            plan[f"{number}.down"] = RowwiseParallel()
        return parallelize_module(network, mesh, plan)

    # All ranks see the same batch, and each holds a half of every product.
    report = compare(split, batches(0), fullgraph=True)
    assert report.collectives >= 4 and report.programs > 2, str(report)


@torch.no_grad()
def functional(rank):
    """Every functional collective, between ops of Kiln, in one graph."""
    group = dist.group.WORLD

    def exchange(x):
        summed = collectives.all_reduce(x.sin(), "sum", group) * 2
        gathered = collectives.all_gather_tensor(summed + rank, 0, group).cos()
        scattered = collectives.reduce_scatter_tensor(gathered.exp(), "sum", 0, group) + 1
        spread = collectives.broadcast(scattered * (rank + 1), 0, group) - 1
        swapped = collectives.all_to_all_single(spread * (rank + 2), None, None, group).relu()
        # Started one after the other, waited for at the end.
        first = collectives.all_reduce(swapped, "max", group)
        second = collectives.all_reduce(swapped * 3, "min", group)
        return first + second, summed

    torch.manual_seed(rank)
    x = torch.randn(4, 6)
    want = exchange(x)
    torch._dynamo.reset()
    kiln.clear_events()
    got = torch.compile(exchange, backend="kiln", fullgraph=True)(x)
    torch.testing.assert_close(got, want)
    report = kiln.report()
    assert report.collectives >= 7 and not report.fallbacks and not report.refused, str(report)


@torch.no_grad()
def written(rank):
    """Collectives that write into their arguments."""

    def step(x):
        y = x.sin()
        dist.all_reduce(y)
        gathered = y.new_empty(10)
        dist.all_gather_into_tensor(gathered, y * 2)
        z = gathered.cos()
        dist.reduce_scatter_tensor(y, z)
        return z * 2 + y.sum()

    torch.manual_seed(rank)
    x = torch.randn(5)
    want = step(copy.deepcopy(x))
    torch._dynamo.reset()
    kiln.clear_events()
    torch.testing.assert_close(torch.compile(step, backend="kiln", fullgraph=True)(x), want)
    report = kiln.report()
    assert report.graphs == 1 and report.programs >= 2 and report.collectives >= 3, str(report)
    assert not report.refused and not report.fallbacks, str(report)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    rank = dist.get_rank()
    for case in sys.argv[1:]:
        globals()[case](rank)
        dist.barrier()
        if rank == 0:
            print(f"{case} ok", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
