"""Training steps of a vision transformer of transformers: forward and backward are Kiln's, the optimizer is PyTorch's."""

import copy

import torch
from side_by_side import side_by_side
from transformers import ViTConfig, ViTForImageClassification

import kiln

torch.manual_seed(0)
config = ViTConfig(
    image_size=64, patch_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_labels=10,
)
model = ViTForImageClassification(config).train()


def trainer(model, run):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(images, labels):
        loss = run(pixel_values=images, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


twin = copy.deepcopy(model)
eager = trainer(model, model)
fast = trainer(twin, torch.compile(twin, backend="kiln"))

images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
for number in range(5):
    want, got = eager(images, labels), fast(images, labels)
    print(f"step {number}: loss {want:.5f} in eager, {got:.5f} in kiln")
    assert abs(want - got) < 1e-3 * max(1.0, abs(want)), "the losses went apart"

side_by_side(lambda: eager(images, labels), lambda: fast(images, labels))
print(kiln.report())
