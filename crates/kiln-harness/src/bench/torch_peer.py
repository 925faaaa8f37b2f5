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


def build(case):
    """Function and inputs of a case."""
    if case["kind"] == "aten":
        return aten(case)
    if found := model(case):
        return found
    kind, shape, dt = case["kind"], case["shape"], DTYPES[case["dtype"]]
    g = torch.Generator().manual_seed(0)
    r = lambda *s, d=dt: torch.randn(*s, generator=g).to(d)
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
