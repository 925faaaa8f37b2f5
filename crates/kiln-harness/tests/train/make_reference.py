"""Makes gpt.safetensors and vit.safetensors: tiny models of `kiln bench train` in PyTorch, with a batch, their parameters, the loss,
every gradient, and the losses and parameters of three AdamW steps. Run with a Python that has torch."""
import json, pathlib, sys
import torch

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parent.parent / "src/bench/train"))
import torch_train

CASES = [
    {"kind": "gpt", "layers": 2, "hidden": 20, "heads": 2, "context": 7, "batch": 2, "vocabulary": 11},
    {"kind": "vit", "layers": 2, "hidden": 20, "heads": 2, "image": 8, "patch": 4, "batch": 3, "classes": 5},
]

NAMES = {torch.float32: "F32", torch.int64: "I64"}


def save_file(tensors, path):
    """A safetensors file: the length of a header, the header, the elements."""
    header, data = {}, b""
    for name, t in tensors.items():
        elements = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(elements)]}
        data += elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


for case in CASES:
    torch.manual_seed(1)
    model, x, y = torch_train.build(case)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    tensors = {"x": x, "y": y}
    tensors |= {f"parameter.{name}": p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            tensors |= {f"gradient.{name}": p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    tensors["losses"] = torch.stack(losses)
    tensors |= {f"trained.{name}": p.detach().clone() for name, p in model.named_parameters()}
    save_file(tensors, here / f"{case['kind']}.safetensors")
