"""Classification of images by a ResNet of transformers. Where PyTorch's convolution is measured to be faster than Kiln's for its sizes,
it is called between two programs; the report has the times."""

import torch
from side_by_side import side_by_side
from transformers import ResNetConfig, ResNetForImageClassification

import kiln

torch.manual_seed(0)
config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], num_labels=10)
model = ResNetForImageClassification(config).eval()
fast = torch.compile(model, backend="kiln")

images = torch.randn(2, 3, 64, 64)
with torch.inference_mode():
    want, got = model(images).logits, fast(images).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    print("classes:", got.argmax(-1).tolist())
    side_by_side(lambda: model(images), lambda: fast(images))
print(kiln.report())
