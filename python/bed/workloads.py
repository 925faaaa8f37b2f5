"""The models of ``bed work``: built on the device with random weights, measured in one process."""

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from . import backend
from .models.unet import UNet

SHORT = torch.bfloat16
# How many times eager's own error, against float32, a result may have.
MOST_ERROR = 1.5


@dataclasses.dataclass
class Work:
    """What is compiled, what it is called with, and of a training step the loss."""

    model: torch.nn.Module
    inputs: dict
    loss: Callable | None = None
    # What one call is called with after another: a decoder's next position.
    advance: Callable | None = None


def _llama(small, layers=32):
    import transformers

    sizes = dict(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=2, vocab_size=512)
    full = dict(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=layers, vocab_size=128256
    )
    config = transformers.LlamaConfig(**(sizes if small else full), max_position_embeddings=8192, rope_theta=500000.0)
    return transformers.LlamaForCausalLM(config).eval()


def _decode(device, batch, small):
    import transformers

    model = _llama(small)
    batch = batch or 1
    cache = transformers.StaticCache(config=model.config, max_cache_len=1024)
    tokens = torch.randint(model.config.vocab_size, (batch, 128), device=device)
    with torch.no_grad():
        model(input_ids=tokens, past_key_values=cache, use_cache=True, cache_position=torch.arange(128, device=device))
    inputs = dict(input_ids=tokens[:, :1], past_key_values=cache, use_cache=True, cache_position=torch.tensor([128], device=device))

    def advance(given):
        given["cache_position"].add_(1).clamp_(max=1023)

    return Work(model, inputs, advance=advance)


def _forward(length):
    def make(device, batch, small):
        model = _llama(small)
        tokens = torch.randint(model.config.vocab_size, (batch or 1, length // 16 if small else length), device=device)
        return Work(model, dict(input_ids=tokens, use_cache=False))

    return make


def _bert(device, batch, small):
    import transformers

    config = transformers.BertConfig(**(dict(num_hidden_layers=2) if small else {}))
    tokens = torch.randint(30000, (batch or (2 if small else 64), 128), device=device)
    return Work(transformers.BertModel(config).eval(), dict(input_ids=tokens))


def _whisper(device, batch, small):
    import transformers

    layers = 1 if small else 12
    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=layers, decoder_layers=1, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072
    )
    model = transformers.WhisperModel(config).eval().encoder
    return Work(model, dict(input_features=torch.randn(batch or (1 if small else 8), 80, 3000, device=device)))


def _resnet(device, batch, small, train=False):
    import transformers

    config = transformers.ResNetConfig(depths=[1, 1, 1, 1] if small else [3, 4, 6, 3], num_labels=1000)
    model = transformers.ResNetForImageClassification(config).to(memory_format=torch.channels_last)
    images = torch.randn(batch or (2 if small else 64), 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    labels = torch.arange(images.shape[0], device=device) % 1000
    loss = (lambda result: F.cross_entropy(result.logits.float(), labels)) if train else None
    return Work(model.train(train), dict(pixel_values=images), loss)


def unet(channels):
    """The denoiser of Stable Diffusion 1.5, of diffusers if that is installed."""
    try:
        import diffusers
    except ImportError:
        return UNet(channels)
    inner = len(channels) - 1
    return diffusers.UNet2DConditionModel(
        sample_size=64,
        block_out_channels=channels,
        down_block_types=("CrossAttnDownBlock2D",) * inner + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * inner,
        cross_attention_dim=768,
        attention_head_dim=8,
    )


def _unet(device, batch, small):
    model = unet((32, 64) if small else (320, 640, 1280, 1280)).eval()
    model = model.to(memory_format=torch.channels_last)
    batch = batch or 2
    return Work(
        model,
        dict(
            sample=torch.randn(batch, 4, 64, 64, device=device).to(memory_format=torch.channels_last),
            timestep=torch.full((batch,), 500, device=device),
            encoder_hidden_states=torch.randn(batch, 77, 768, device=device),
        ),
    )


def _gpt2_train(device, batch, small):
    import transformers

    config = transformers.GPT2Config(n_layer=2 if small else 12, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    tokens = torch.randint(50000, (batch or (2 if small else 16), 64 if small else 1024), device=device)

    def loss(result):
        return F.cross_entropy(result.logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    return Work(transformers.GPT2LMHeadModel(config).train(), dict(input_ids=tokens, use_cache=False), loss)


def _vit_train(device, batch, small):
    import transformers

    # 16.7 million weights.
    config = transformers.ViTConfig(
        image_size=224,
        patch_size=16,
        hidden_size=384,
        num_hidden_layers=2 if small else 9,
        num_attention_heads=6,
        intermediate_size=1536,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=1000,
    )
    images = torch.randn(batch or (2 if small else 256), 3, 224, 224, device=device)
    labels = torch.arange(images.shape[0], device=device) % 1000
    model = transformers.ViTForImageClassification(config).train()
    return Work(model, dict(pixel_values=images), lambda result: F.cross_entropy(result.logits.float(), labels))


WORKS = {
    "llama-decode": _decode,
    "llama-512": _forward(512),
    "llama-2048": _forward(2048),
    "bert": _bert,
    "resnet50": _resnet,
    "unet": _unet,
    "whisper": _whisper,
    "gpt2-train": _gpt2_train,
    "vit-train": _vit_train,
    "resnet50-train": lambda device, batch, small: _resnet(device, batch, small, train=True),
}


def build(name, device, batch, small):
    """A work on a device: weights in bfloat16 for inference, in float32 under autocast for training."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if name.endswith("-train") else SHORT)
    try:
        with torch.device(device):
            return WORKS[name](device, batch, small)
    finally:
        torch.set_default_dtype(torch.float32)


class Steps:
    """Calls of a work on one side."""

    def __init__(self, work, function, device):
        self.work, self.function, self.device = work, function, device
        parameters = list(work.model.parameters())
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True) if work.loss else None

    def result(self):
        """The result of a call, or the loss of a step before its weights change."""
        if not self.work.loss:
            with torch.inference_mode():
                found = self.function(**self.work.inputs)
            return found[0] if isinstance(found, tuple) else next(iter(found.values()))
        with torch.autocast(self.device, SHORT):
            return self.work.loss(self.function(**self.work.inputs))

    def step(self):
        """One call, or one training step."""
        found = self.result()
        if self.optimizer:
            found.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        elif self.work.advance:
            with torch.inference_mode():
                self.work.advance(self.work.inputs)

    def wait(self):
        """Until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def _distance(got, want):
    """The root mean square of the difference, of that of the values."""
    got, want = got.detach().double(), want.detach().double()
    return ((got - want).square().mean().sqrt() / want.square().mean().sqrt().clamp(min=1e-30)).item()


def measure(name, side, device, batch, small, seconds, profile=False):
    """The figures of one side: first call, steady state, peak memory, and how far its result is from that of eager in float32, beside how
    far eager's own is. Of a training step it is the loss, against eager's."""
    chosen, _, mode = side.partition(":")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    work = build(name, device, batch, small)
    row = {"work": name, "side": side, "torch": torch.__version__, "device": device}
    steps = Steps(work, work.model, device)
    exact = None
    if chosen != "eager":
        exact, row["rounding"] = _reference(work, device)
        backend.find(chosen)
        steps.function = torch.compile(work.model, backend=chosen, mode=mode or None)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps.wait()
    start = time.perf_counter()
    got = steps.result()
    if work.loss:
        got.backward()
        work.model.zero_grad(set_to_none=True)
    steps.wait()
    row["first_call_s"] = time.perf_counter() - start
    if exact is not None:
        row["difference"] = _distance(got, exact)
        row["right"] = row["difference"] <= max(MOST_ERROR * row["rounding"], 1e-3)
        del exact
    for _ in range(5):
        steps.step()
    times, until = [], time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 300):
        steps.wait()
        start = time.perf_counter()
        steps.step()
        steps.wait()
        times.append((time.perf_counter() - start) * 1e3)
    row["median_ms"], row["min_ms"], row["calls"] = statistics.median(times), min(times), len(times)
    if device == "cuda":
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if profile:
            row["profile"] = _profile(steps)
    if chosen == "kiln":
        import kiln

        report = kiln.report()
        row["fallbacks"], row["refused"], row["launches"] = len(report.fallbacks), report.refused, report.launches
        if profile:
            row["events"] = [event.launches for event in kiln.events() if event.launches]
    return row


def _profile(steps):
    """The kernels of one call in the order in which they ran: how long each took, in microseconds, and its name. Kiln's are all called
    ``kernel``; the events of the report list them in the same order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        steps.step()
        steps.wait()
    ran = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [[round(event.device_time, 1), event.name[:60]] for event in sorted(ran, key=lambda event: event.time_range.start)]


def _copied(inputs, dtype):
    """Inputs that a call may change, caches among them, with their floats in this type."""

    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        for layer in getattr(value, "layers", []):
            layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
        return value

    return {key: moved(value) for key, value in copy.deepcopy(inputs).items()}


def _reference(work, device):
    """The result that others are compared with, and how far eager's is from it: in float32 for inference, and the loss of eager itself,
    run twice, for training."""
    if work.loss:
        steps = Steps(work, work.model, device)
        want, again = steps.result().detach().clone(), steps.result().detach()
        return want, _distance(again, want)

    def result(model, dtype):
        with torch.inference_mode():
            found = model(**_copied(work.inputs, dtype))
        return (found[0] if isinstance(found, tuple) else next(iter(found.values()))).float()

    eager = result(work.model, SHORT)
    exact = result(copy.deepcopy(work.model).float(), torch.float32)
    return exact, _distance(eager, exact)
