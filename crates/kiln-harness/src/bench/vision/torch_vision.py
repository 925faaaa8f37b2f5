"""The yardstick for `kiln bench vision`: the same networks with the same weights in PyTorch (timm's, diffusers' U-Net, and a ResNet for
training steps), driven line by line.

Reads one JSON request a line, answers one JSON line. Requests:
  {"do": "setup", "case": {"kind": "forward", "network": "resnet50", "device": "cpu", "weights": file, "inputs": file, "answer": file},
   "threads": n, "modes": ["eager", "channels-last", "compile"]}
  {"do": "time", "mode": "eager", "seconds": s, "repeats": n, "limit": s}

The answer of the first mode (logits, noise, or the loss of the first step) is written to the file of that name.
"""
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file


class Layer(nn.Module):
    def __init__(self, i, o, window, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, window, stride, window // 2, bias=False)
        self.norm = nn.BatchNorm2d(o)

    def forward(self, x):
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    def __init__(self, i, width, stride):
        super().__init__()
        self.a, self.b, self.c = Layer(i, width, 1), Layer(width, width, 3, stride), Layer(width, 4 * width, 1)
        self.shortcut = Layer(i, 4 * width, 1, stride) if stride > 1 or i != 4 * width else None

    def forward(self, x):
        y = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, i, blocks = Layer(3, 64, 7, 2), 64, []
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                blocks.append(Bottleneck(i, 64 << stage, 2 if block == 0 and stage > 0 else 1))
                i = 256 << stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(i, 1000)

    def forward(self, x):
        return self.head(self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)).mean((2, 3)))


class Unet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        from diffusers import UNet2DConditionModel

        self.network = UNet2DConditionModel(
            in_channels=4, out_channels=4, block_out_channels=tuple(sizes["widths"]), layers_per_block=sizes["layers"],
            attention_head_dim=sizes["heads"], cross_attention_dim=sizes["text"], norm_num_groups=sizes["groups"])

    def forward(self, x, times, text):
        return self.network(x, times, text).sample


def load(network, weights):
    """Loads weights; one that is missing is an error."""
    missing = [name for name in network.load_state_dict(weights, strict=False).missing_keys if "num_batches" not in name]
    if missing:
        raise ValueError(f"no weights for {missing[:3]}")


def build(case):
    weights = load_file(case["weights"])
    if case["network"] == "unet":
        network = Unet(case["sizes"])
        network.network.load_state_dict(weights)
    elif case["kind"] == "train":
        network = ResNet()
        load(network, weights)
    else:
        import timm

        network = timm.create_model(case["network"])
        load(network, weights)
    dtype = next(x.dtype for x in weights.values() if x.is_floating_point())
    return network.to(case["device"], dtype).train(case["kind"] == "train")


def side(case, mode, inputs):
    """The function of a mode: without arguments, giving what is compared."""
    network = build(case)
    if mode == "channels-last" or case["device"] != "cpu":
        network = network.to(memory_format=torch.channels_last)
        inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
    compiled = mode not in ("eager", "channels-last")
    torch._dynamo.reset()
    how = {"dynamic": False} if mode in ("compile", "default") else {"dynamic": False, "mode": mode}
    if case["kind"] == "forward":
        f = torch.compile(network, **how) if compiled else network

        def forward():
            with torch.no_grad():
                return f(*inputs)

        return forward
    *inputs, target = inputs
    unet = case["network"] == "unet"
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4) if unet else torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9)
    of = F.mse_loss if unet else F.cross_entropy
    loss = lambda: of(network(*inputs), target)
    loss = torch.compile(loss, **how) if compiled else loss

    def step():
        found = loss()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.detach()

    return step


functions, device = {}, "cpu"


def synchronize():
    if device != "cpu":
        torch.cuda.synchronize()


def setup(request):
    global device
    case = request["case"]
    device = case["device"]
    torch.set_num_threads(request["threads"])
    torch.backends.cudnn.benchmark = True
    torch._inductor.config.freezing = case["kind"] == "forward" and device == "cpu"
    inputs = [x.to(device) for _, x in sorted(load_file(case["inputs"]).items())]
    functions.clear()
    answer = {}
    for number, mode in enumerate(request["modes"]):
        functions[mode] = side(case, mode, inputs)
        begin = time.perf_counter()
        found = functions[mode]()
        synchronize()
        answer[mode + "_first_s"] = time.perf_counter() - begin
        if number == 0:
            save_file({"answer": found.float().reshape(-1).contiguous().cpu()}, case["answer"])
    return answer


def measure(request):
    f, samples = functions[request["mode"]], []
    f()
    synchronize()
    deadline, latest = time.perf_counter() + request["seconds"], time.perf_counter() + request["limit"]
    while time.perf_counter() < deadline or len(samples) < 3 or (len(samples) < request["repeats"] and time.perf_counter() < latest):
        begin = time.perf_counter()
        f()
        synchronize()
        samples.append(time.perf_counter() - begin)
    return {"samples_s": samples}


import torch._inductor.config

serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
