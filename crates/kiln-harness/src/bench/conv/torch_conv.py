"""The yardstick for `kiln bench conv`: the same convolutions of the same numbers in PyTorch, driven line by line.

Reads one JSON request a line, answers one JSON line. Requests:
  {"do": "setup", "case": {..., "inputs": file, "answer": file, "compile_limit": s}, "threads": n,
   "modes": ["eager", "channels-last", "compile"]}
  {"do": "time", "mode": "eager", "seconds": s, "repeats": n, "limit": s}

The inputs are read from a file that has them one after the other; the answer of the first mode is written to a file as floats. The mode
"compile" is torch.compile; where all inputs but the first are weights, it has them as parameters and freezes them. A mode that fails, or is
not compiled within its seconds, has no samples, and the answer to "setup" says why.
"""
import math, signal, time
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch._inductor.config

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Network(nn.Module):
    """A function whose inputs are parameters, but for the first."""

    def __init__(self, f, weights):
        super().__init__()
        self.f, self.names = f, [f"weight_{number}" for number in range(len(weights))]
        # Dynamo does not unpack a ParameterList.
        for name, weight in zip(self.names, weights):
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def forward(self, x):
        return self.f(x, *[getattr(self, name) for name in self.names])


def conv(case, r):
    """A convolution, its transpose, a gradient, or a block around it."""
    x, w, groups, part = case["shape"], case["weight"], case["groups"], case["part"]
    spatial = len(x) - 2
    stride, padding, ones = [case["stride"]] * spatial, [case["padding"]] * spatial, [1] * spatial
    f = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[spatial]
    transposed = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[spatial]
    apply = lambda x, w, b=None: f(x, w, b, stride, padding, 1, groups)
    per_channel = lambda v: v.view(1, -1, *ones)
    norm = lambda x, scale, shift: x * per_channel(scale) + per_channel(shift)
    if part == "forward":
        return apply, [r(*x), r(*w), r(w[0])]
    if part == "transposed":
        return lambda x, w, b: transposed(x, w, b, stride, padding, 0, groups), [r(*x), r(*w), r(w[1] * groups)]
    if part.endswith("gradient"):
        x, w = r(*x), r(*w)
        g = r(*apply(x, w).shape)
        wanted = [part == "input gradient", part == "weight gradient", False]
        back = lambda x, w, g: torch.ops.aten.convolution_backward(
            g, x, w, None, stride, padding, ones, False, [0] * spatial, groups, wanted)
        return back, [x, w, g]
    if part == "trained layer":
        trained = lambda x, w, s, b: F.relu(F.batch_norm(apply(x, w), None, None, s, b, training=True))
        return trained, [r(*x), r(*w), r(w[0]), r(w[0])]
    if part == "basic block":
        def basic(x, w1, s1, b1, w2, s2, b2):
            return F.relu(norm(apply(F.relu(norm(apply(x, w1), s1, b1)), w2), s2, b2) + x)
        return basic, [r(*x), r(*w), r(w[0]), r(w[0]), r(*w), r(w[0]), r(w[0])]
    if part == "squeeze-excite":
        c, sums = w[0], tuple(range(2, 2 + spatial))
        squeezed, outputs = c // 24, c // 6
        def scaled(x, w1, s1, b1, down, b2, up, b3, w4, s4, b4):
            y = F.silu(norm(apply(x, w1), s1, b1))
            gate = torch.sigmoid(f(F.silu(f(y.mean(sums, keepdim=True), down, b2)), up, b3))
            return norm(f(y * gate, w4), s4, b4)
        return scaled, [r(*x), r(*w), r(c), r(c), r(squeezed, c, 1, 1), r(squeezed), r(c, squeezed, 1, 1), r(c),
                        r(outputs, c, 1, 1), r(outputs), r(outputs)]
    if part == "group norm residual":
        c = x[1]
        def residual(x, s1, b1, w1, c1, s2, b2, w2, c2):
            y = apply(F.silu(F.group_norm(x, 32, s1, b1, 1e-5)), w1, c1)
            return apply(F.silu(F.group_norm(y, 32, s2, b2, 1e-5)), w2, c2) + x
        half = lambda: [r(c), r(c), r(*w), r(c)]
        return residual, [r(*x), *half(), *half()]
    def inverted(x, w1, s1, b1, w2, s2, b2, w3, s3, b3):
        y = F.relu6(norm(f(x, w1), s1, b1))
        y = F.relu6(norm(apply(y, w2), s2, b2))
        return norm(f(y, w3), s3, b3) + x
    c, inner = x[1], w[0]
    return inverted, [r(*x), r(inner, c, 1, 1), r(inner), r(inner), r(*w), r(inner), r(inner), r(c, inner, 1, 1), r(c), r(c)]


def image(case, r):
    """Pooling, resizing or a norm of images, alone or with the gradient in them."""
    a, shape, op, gradient = torch.ops.aten, case["shape"], case["op"], case["gradient"]
    n, c, h, w = shape
    twice, pixels = [2 * h, 2 * w], h * w
    pools = {"max pool 3×3 s2": (3, 2, 1), "max pool 2×2": (2, 2, 0), "avg pool 2×2": (2, 2, 0), "avg pool 3×3 s1": (3, 1, 1)}
    adaptive = {"global avg pool": 1, "adaptive avg pool to 7": 7}
    if op in pools:
        k, s, p = ([i] * 2 for i in pools[op])
        if op.startswith("max"):
            def forward(x): return F.max_pool2d(x, k, s, p)
            def both(x, g):
                y, i = a.max_pool2d_with_indices(x, k, s, p)
                return y, a.max_pool2d_with_indices_backward(g, x, k, s, p, [1, 1], False, i)
        else:
            def forward(x): return F.avg_pool2d(x, k, s, p)
            def both(x, g): return forward(x), a.avg_pool2d_backward(g, x, k, s, p, False, True, None)
    elif op in adaptive:
        def forward(x): return F.adaptive_avg_pool2d(x, adaptive[op])
        def both(x, g): return forward(x), a._adaptive_avg_pool2d_backward(g, x)
    elif op == "nearest ×2":
        def forward(x): return F.interpolate(x, scale_factor=2.0, mode="nearest")
        def both(x, g): return forward(x), a.upsample_nearest2d_backward(g, twice, shape, 2.0, 2.0)
    elif op in ("bilinear ×2", "bicubic ×2"):
        mode = op.split()[0]
        back = getattr(a, f"upsample_{mode}2d_backward")
        def forward(x): return F.interpolate(x, scale_factor=2.0, mode=mode)
        def both(x, g): return forward(x), back(g, twice, shape, False, 2.0, 2.0)
    elif op == "pixel shuffle ×2":
        def forward(x): return F.pixel_shuffle(x, 2)
        def both(x, g): return forward(x), F.pixel_unshuffle(g, 2)
    else:
        if op == "batch norm of training":
            norm = lambda x, w, b: a.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
            back = lambda g, x, m, v, w: a.native_batch_norm_backward(g, x, w, None, None, m, v, True, 1e-5, [True, False, False])[0]
        else:
            groups = 32 if op == "group norm" else c
            norm = lambda x, w, b: a.native_group_norm(x, w, b, n, c, pixels, groups, 1e-5)
            back = lambda g, x, m, v, w: a.native_group_norm_backward(g, x, m, v, w, n, c, pixels, groups, [True, False, False])[0]
        def forward(x, w, b): return norm(x, w, b)[0]
        def both(x, w, b, g):
            y, m, v = norm(x, w, b)
            return y, back(g, x, m, v, w)
        values = [r(*shape), r(c), r(c)]
        return (both, values + [r(*shape)]) if gradient else (forward, values)
    x = r(*shape)
    return (both, [x, r(*forward(x).shape)]) if gradient else (forward, [x])


def reader(case):
    """Gives the next input, of a shape; with channels last where the file has them so."""
    dtype = DTYPES[case["dtype"]]
    with open(case["inputs"], "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()), dtype=dtype)
    place = 0

    def read(*shape):
        nonlocal place
        count = math.prod(shape)
        found = numbers[place : place + count]
        place += count
        if case.get("last") and len(shape) == 4:
            n, c, y, x = shape
            return found.clone().view(n, y, x, c).permute(0, 3, 1, 2)
        return found.clone().view(shape)

    return read


def channels_last(x):
    """The same numbers with channels last in memory, if there are more axes than one behind them."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.to(memory_format=formats[x.dim()]) if x.dim() in formats else x


def first(found):
    return found if isinstance(found, torch.Tensor) else next(x for x in found if x is not None)


sides = {}


def side(case, mode, f, inputs):
    """What a mode calls, without arguments."""
    if mode == "channels-last":
        inputs = [channels_last(x) for x in inputs]
    if mode != "compile":
        return lambda: f(*inputs)
    torch._dynamo.reset()
    torch._inductor.config.freezing = case["has_weights"]
    x, *weights = inputs
    if case["has_weights"]:
        network = torch.compile(Network(f, weights).eval(), dynamic=False)
        return lambda: network(x)
    compiled = torch.compile(f, dynamic=False)
    return lambda: compiled(*inputs)


def late(signum, frame):
    raise TimeoutError("not compiled in time")


def setup(request):
    case = request["case"]
    torch.set_num_threads(request["threads"])
    f, inputs = (image if case["kind"] == "image" else conv)(case, reader(case))
    sides.clear()
    answer, notes = {}, []
    for mode in request["modes"]:
        begin = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, case["compile_limit"] if mode == "compile" else 0)
            call = side(case, mode, f, inputs)
            with torch.no_grad():
                found = first(call())
            answer[mode + "_first_s"] = time.perf_counter() - begin
            sides[mode] = call
        except Exception as error:
            if mode != "compile":
                raise
            text = str(error).strip().splitlines()
            notes.append(f"{mode}: {type(error).__name__}: {text[0] if text else ''}")
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if mode == "eager":
            if case.get("last") and found.dim() == 4:
                found = found.permute(0, 2, 3, 1)
            with open(case["answer"], "wb") as file:
                file.write(found.float().contiguous().numpy().tobytes())
    if notes:
        answer["note"] = "; ".join(notes)
    return answer


def measure(request):
    samples = []
    call, seconds = sides.get(request["mode"]), request["seconds"]
    if call is None:
        return {"samples_s": samples}
    with torch.no_grad():
        begin = time.perf_counter()
        call()
        once = max(time.perf_counter() - begin, 1e-7)
        # Several calls a sample when one is too short for the clock.
        calls = max(1, int(20e-6 / once))
        deadline = time.perf_counter() + seconds
        latest = time.perf_counter() + request["limit"]
        while time.perf_counter() < deadline or len(samples) < 3 or (len(samples) < request["repeats"] and time.perf_counter() < latest):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            samples.append((time.perf_counter() - begin) / calls)
    return {"samples_s": samples}


signal.signal(signal.SIGALRM, late)
serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
