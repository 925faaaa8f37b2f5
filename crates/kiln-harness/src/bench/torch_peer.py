"""The yardstick: PyTorch on the same machine, driven line by line by `kiln bench --peer torch`.

Reads one JSON request a line, answers one JSON line. Requests:
  {"do": "setup", "case": {...}, "threads": n, "modes": ["eager", "compile"]}   builds inputs, compiles, warms up
  {"do": "time", "mode": "eager", "seconds": s}                                 times calls for about s seconds
"""
import math, time
import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}


def rms_norm(x, w):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + rotated * sin


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
        y = apply(r(*x), r(*w))
        wanted = [part == "input gradient", part == "weight gradient", False]
        back = lambda x, w, g: torch.ops.aten.convolution_backward(
            g, x, w, None, stride, padding, ones, False, [0] * spatial, groups, wanted)
        return back, [r(*x), r(*w), r(*y.shape)]
    if part == "trained layer":
        trained = lambda x, w, s, b: F.relu(F.batch_norm(apply(x, w), None, None, s, b, training=True))
        return trained, [r(*x), r(*w), r(w[0]), r(w[0])]
    if part == "basic block":
        def basic(x, w1, s1, b1, w2, s2, b2):
            return F.relu(norm(apply(F.relu(norm(apply(x, w1), s1, b1)), w2), s2, b2) + x)
        return basic, [r(*x), r(*w), r(w[0]), r(w[0]), r(*w), r(w[0]), r(w[0])]
    def inverted(x, w1, s1, b1, w2, s2, b2, w3, s3, b3):
        y = F.relu6(norm(f(x, w1), s1, b1))
        y = F.relu6(norm(apply(y, w2), s2, b2))
        return norm(f(y, w3), s3, b3) + x
    c, inner = x[1], w[0]
    return inverted, [r(*x), r(inner, c, 1, 1), r(inner), r(inner), r(*w), r(inner), r(inner), r(c, inner, 1, 1), r(c), r(c)]


def aten(case):
    """A call of an op with the arguments of a row of census.txt."""
    g = torch.Generator().manual_seed(0)
    dtypes = {**DTYPES, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "c64": torch.complex64}
    tensors = []

    def argument(value):
        if isinstance(value, list):
            return [argument(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "dtype" in value:
            return dtypes[value["dtype"]]
        dtype, shape, low, high = dtypes[value["tensor"]], value["shape"], value["low"], value["high"]
        x = low + (high - low) * torch.rand(*shape, *([2] if dtype.is_complex else []), generator=g, dtype=torch.float64)
        if dtype.is_complex:
            x = torch.view_as_complex(x)
        elif not dtype.is_floating_point:
            x = x.floor()
        x = x.to(dtype)
        tensors.append(x.sort().values if value["sorted"] else x)
        return tensors[-1]

    named = {name: argument(value) for name, value in case["arguments"].items()}
    space, name, overload = case["op"].split(".")
    op = getattr(getattr(getattr(torch.ops, space), name), overload)
    # Inputs are arguments of the function, so that torch.compile does not take them for constants.
    def place(value, given):
        if isinstance(value, list):
            return [place(item, given) for item in value]
        return next(given) if isinstance(value, torch.Tensor) else value

    def call(*given):
        given = iter(given)
        return op(**{name: place(value, given) for name, value in named.items()})

    return call, tensors


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


def build(case):
    """Function and inputs of a case."""
    if case["kind"] == "aten":
        return aten(case)
    if found := model(case):
        return found
    kind, shape, dt = case["kind"], case["shape"], DTYPES[case["dtype"]]
    g = torch.Generator().manual_seed(0)
    r = lambda *s, d=dt: torch.randn(*s, generator=g).to(d)
    if kind == "conv":
        f, inputs = conv(case, r)
        last = lambda x: x.to(memory_format=torch.channels_last) if case["last"] and x.dim() == 4 else x
        return f, [last(x) for x in inputs]
    if kind == "image":
        return image(case, r)
    if kind == "gelu":
        return lambda x, w, b: F.gelu(x, approximate="tanh") * w + b, [r(*shape), r(shape[-1]), r(shape[-1])]
    if kind == "rms_norm":
        return rms_norm, [r(*shape), r(shape[-1])]
    if kind == "residual_rms_norm":
        def both(x, y, w):
            h = x + y
            return h, rms_norm(h, w)
        return both, [r(*shape), r(*shape), r(shape[-1])]
    if kind == "layer_norm":
        return lambda x, w, b: F.layer_norm(x, (shape[-1],), w, b, 1e-5), [r(*shape), r(shape[-1]), r(shape[-1])]
    if kind == "softmax":
        return lambda x: F.softmax(x, -1), [r(*shape)]
    if kind == "rope":
        t, h, d = shape
        return rope, [r(t, h, d), r(t, 1, d), r(t, 1, d)]
    if kind == "swiglu":
        return lambda a, b: F.silu(a) * b, [r(*shape), r(*shape)]
    places = lambda count, size: torch.arange(count) * 7919 % size
    if kind == "topk":
        return lambda x: torch.topk(x, shape[2], -1), [r(*shape[:2])]
    if kind == "sort":
        return lambda x: torch.sort(x, dim=-1, stable=True), [r(*shape)]
    if kind in ("cumsum", "cumsum_down"):
        axis = 1 if kind == "cumsum" else 0
        return lambda x: torch.cumsum(x, axis), [r(*shape)]
    if kind in ("scatter_add", "gather"):
        index = places(shape[0] * shape[1], shape[1]).view(*shape)
        if kind == "gather":
            return lambda x, i: torch.gather(x, 1, i), [r(*shape), index]
        return lambda x, i, y: torch.scatter_add(x, 1, i, y), [r(*shape), index, r(*shape)]
    if kind in ("index_add", "embedding"):
        rows, width, count = shape
        index = places(count, rows)
        if kind == "embedding":
            return lambda x, i: F.embedding(i, x), [r(rows, width), index]
        return lambda x, i, y: torch.index_add(x, 0, i, y), [r(rows, width), index, r(count, width)]
    if kind == "nearest":
        return lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), [r(*shape)]
    if kind in ("linear", "matmul") and dt == torch.int8:
        m, k, n = shape
        b = lambda *s: torch.randint(-128, 128, s, generator=g, dtype=dt)
        x, w = b(m, k), b(n, k) if kind == "linear" else b(k, n)
        right = (lambda w: w.t()) if kind == "linear" else (lambda w: w)
        # Which sizes `_int_mm` takes depends on the device and the release: only what it refuses is widened.
        try:
            torch._int_mm(x, right(w))
            multiply = torch._int_mm
        except RuntimeError:
            multiply = lambda x, w: x.int() @ w.int()
        return lambda x, w: multiply(x, right(w)), [x, w]
    if kind == "linear":
        m, k, n = shape
        return lambda x, w: F.linear(x, w), [r(m, k), r(n, k)]
    if kind == "matmul":
        m, k, n = shape
        return lambda x, w: x @ w, [r(m, k), r(k, n)]
    if kind in ("attention", "causal_attention"):
        b, h, t, s, d = shape
        causal = kind == "causal_attention"
        return (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)), [r(b, h, t, d), r(b, h, s, d), r(b, h, s, d)]
    if kind in ("attention_gradients", "causal_attention_gradients"):
        b, h, t, s, d = shape
        causal, a = kind.startswith("causal"), torch.ops.aten

        def both(q, k, v, g):
            y, rows = a._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
            return y, *a._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, y, rows, 0.0, causal)

        return both, [r(b, h, t, d), r(b, h, s, d), r(b, h, s, d), r(b, h, t, d)]
    if kind in ("masked_attention", "paged_attention"):
        b, h, kv, t, s, d, seen = shape[:7]
        mask = (torch.arange(s) < seen).expand(1, 1, t, s).contiguous()
        attend = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)
        if kind == "masked_attention":
            return attend, [r(b, h, t, d), r(b, kv, s, d), r(b, kv, s, d), mask]
        page = shape[7]
        count = b * s // page
        table = torch.arange(count) * 37 % count
        rows = lambda pool, table: pool[table].view(b, s // page, kv, page, d).transpose(1, 2).reshape(b, kv, s, d)
        paged = lambda q, k, v, table, m: attend(q, rows(k, table), rows(v, table), m)
        return paged, [r(b, h, t, d), r(count, kv, page, d), r(count, kv, page, d), table, mask]
    raise ValueError(f"unknown case {kind}")


functions, inputs = {}, []


def setup(request):
    global inputs
    torch.set_num_threads(request["threads"])
    torch._dynamo.reset()
    f, inputs = build(request["case"])
    functions.clear()
    answer = {}
    with torch.inference_mode():
        for mode in request["modes"]:
            functions[mode] = f if mode == "eager" else torch.compile(f, dynamic=False)
            begin = time.perf_counter()
            functions[mode](*inputs)
            answer[mode + "_first_s"] = time.perf_counter() - begin
            for _ in range(2):
                functions[mode](*inputs)
    return answer


def measure(request):
    f, seconds = functions[request["mode"]], request["seconds"]
    samples = []
    with torch.inference_mode():
        begin = time.perf_counter()
        f(*inputs)
        once = max(time.perf_counter() - begin, 1e-7)
        # Several calls a sample when one is too short for the clock.
        calls = max(1, int(20e-6 / once))
        deadline = time.perf_counter() + seconds
        latest = time.perf_counter() + request["limit"]
        while time.perf_counter() < deadline or len(samples) < 3 or (len(samples) < request["repeats"] and time.perf_counter() < latest):
            begin = time.perf_counter()
            for _ in range(calls):
                f(*inputs)
            samples.append((time.perf_counter() - begin) / calls)
    return {"samples_s": samples}


serve(lambda request: setup(request) if request["do"] == "setup" else measure(request), torch=torch.__version__)
