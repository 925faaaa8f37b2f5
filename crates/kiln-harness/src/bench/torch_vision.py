"""The yardstick for `kiln bench vision`: ResNet-50 in PyTorch with random weights, channels last, driven line by line.

Reads one JSON request a line, answers one JSON line. Requests:
  {"do": "setup", "case": {"batch": n, "image": n, "dtype": "bf16", "device": "cuda"}, "threads": n, "modes": ["eager", "default"]}
  {"do": "time", "mode": "eager", "seconds": s}
"""
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def layer(i, o, window, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, window, stride, window // 2, bias=False), nn.BatchNorm2d(o))


class Bottleneck(nn.Module):
    def __init__(self, i, width, stride):
        super().__init__()
        self.a, self.b, self.c = layer(i, width, 1), layer(width, width, 3, stride), layer(width, 4 * width, 1)
        self.shortcut = layer(i, 4 * width, 1, stride) if stride > 1 or i != 4 * width else None

    def forward(self, x):
        y = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, i, blocks = layer(3, 64, 7, 2), 64, []
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                blocks.append(Bottleneck(i, 64 << stage, 2 if block == 0 and stage > 0 else 1))
                i = 256 << stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(i, 1000)

    def forward(self, x):
        return self.head(self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)).mean((2, 3)))


functions, images = {}, None


def synchronize():
    if images.is_cuda:
        torch.cuda.synchronize()


def setup(request):
    global images
    case = request["case"]
    torch.set_num_threads(request["threads"])
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    device, dtype = case["device"], DTYPES[case["dtype"]]
    network = ResNet().eval().to(device, dtype).to(memory_format=torch.channels_last)
    images = torch.randn(case["batch"], 3, case["image"], case["image"], device=device, dtype=dtype)
    images = images.to(memory_format=torch.channels_last)
    functions.clear()
    answer = {}
    with torch.inference_mode():
        for mode in request["modes"]:
            torch._dynamo.reset()
            compiled = lambda mode: torch.compile(network, dynamic=False, mode=None if mode == "default" else mode)
            functions[mode] = network if mode == "eager" else compiled(mode)
            begin = time.perf_counter()
            functions[mode](images)
            synchronize()
            answer[mode + "_first_s"] = time.perf_counter() - begin
            for _ in range(3):
                functions[mode](images)
            synchronize()
    return answer


def measure(request):
    f, samples = functions[request["mode"]], []
    with torch.inference_mode():
        f(images)
        synchronize()
        deadline, latest = time.perf_counter() + request["seconds"], time.perf_counter() + request["limit"]
        while time.perf_counter() < deadline or len(samples) < 3 or (len(samples) < request["repeats"] and time.perf_counter() < latest):
            begin = time.perf_counter()
            f(images)
            synchronize()
            samples.append(time.perf_counter() - begin)
    return {"samples_s": samples}


serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
