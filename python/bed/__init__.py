"""The test bed of ``torch.compile(model, backend="kiln")``: real models, PyTorch's op samples, PyTorch's own tests."""
