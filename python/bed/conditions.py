"""Conditions under which a model is compared: dtypes, autocast, symbolic sizes, channels last, options of the backend."""

import ast
import contextlib
import dataclasses

import torch

from .tensors import mapped, tensors

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def add_arguments(parser):
    """The flags of a command line."""
    parser.add_argument("--dtype", default="f32", choices=list(DTYPES), help="of parameters, buffers and inputs that are floats")
    parser.add_argument("--autocast", action="store_true", help="calls under torch.autocast to bfloat16")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes; also compared with twice the batch, where the model takes it")
    parser.add_argument("--channels-last", action="store_true", help="images and the weights of convolutions have their channels last")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend; may be repeated")


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What a command line asks for. It goes to another process."""

    dtype: str = "f32"
    autocast: bool = False
    dynamic: bool = False
    channels_last: bool = False
    options: tuple = ()

    @classmethod
    def of(cls, arguments):
        """Of what `add_arguments` has added."""
        return cls(arguments.dtype, arguments.autocast, arguments.dynamic, arguments.channels_last, tuple(map(_option, arguments.option)))

    def __str__(self):
        parts = [self.dtype] if self.dtype != "f32" else []
        parts += [name.replace("_", "-") for name in ("autocast", "dynamic", "channels_last") if getattr(self, name)]
        return " ".join(parts + [f"{name}={value}" for name, value in self.options])

    @property
    def is_short(self):
        """Whether floats of fewer than 32 bits are computed with."""
        return self.dtype != "f32" or self.autocast

    def model(self, model):
        """A model under these conditions."""
        if self.dtype != "f32":
            model = model.to(DTYPES[self.dtype])
        return model.to(memory_format=torch.channels_last) if self.channels_last else model

    def input(self, tensor):
        """An input under these conditions."""
        if tensor.dtype == torch.float32 and self.dtype != "f32":
            tensor = tensor.detach().to(DTYPES[self.dtype]).requires_grad_(tensor.requires_grad)
        if self.channels_last and tensor.ndim == 4:
            tensor = tensor.detach().contiguous(memory_format=torch.channels_last).requires_grad_(tensor.requires_grad)
        return tensor

    def call(self, device):
        """A context for calls."""
        return torch.autocast(device, torch.bfloat16) if self.autocast else contextlib.nullcontext()

    def compiled(self, is_chosen):
        """Arguments of ``torch.compile``; options are for the backend that was chosen, not for the one that it is compared with."""
        keywords = {"dynamic": True} if self.dynamic else {}
        return {**keywords, "options": dict(self.options)} if is_chosen and self.options else keywords


def _option(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise SystemExit(f"bed: --option {text}: it is NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def with_twice_the_batch(inputs):
    """Inputs with the first axis of those tensors doubled where it is as long as the first one's; None where there is no batch."""
    batch = next((tensor.shape[0] for tensor in tensors(inputs) if tensor.ndim), None)
    if batch is None:
        return None

    def doubled(tensor):
        if tensor.ndim == 0 or tensor.shape[0] != batch:
            return tensor
        return torch.cat([tensor.detach(), tensor.detach().flip(0)]).requires_grad_(tensor.requires_grad)

    return mapped(inputs, doubled)
