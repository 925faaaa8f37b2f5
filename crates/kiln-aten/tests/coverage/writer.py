"""How cases of `reference.txt` are written; `make_reference.py` says in which form."""

import math

import torch

ops = torch.ops
DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}
# Where and how a tensor is kept is no part of what it holds.
IGNORED = {"layout", "device", "pin_memory", "memory_format", "generator", "requires_grad", "non_blocking"}
lines = []


def number(value, dtype):
    """The fewest digits, nine at the most for what is not f64, that give the number back."""
    if math.isnan(value) or math.isinf(value) or dtype == torch.float64:
        return repr(value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if torch.tensor(float(text), dtype=dtype).item() == value:
            break
    return text


def tensor(value):
    value = value.detach().resolve_conj().resolve_neg()
    shape = ",".join(map(str, value.shape))
    name = DTYPES[value.dtype]
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.is_floating_point():
        elements = [number(v, value.dtype) for v in value.double().flatten().tolist()]
    else:
        elements = [str(int(v)) for v in value.flatten().tolist()]
    if len(set(elements)) == 1:
        elements = elements[:1]
    return " ".join([f"{name}[{shape}]", *elements])


def attribute(value):
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(attribute, value)) + "]"
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, float):
        # Always with a point or an exponent: a Python float and a Python int promote differently.
        return repr(value)
    return str(value)


def resolve(name):
    found = ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def is_tensor(kind):
    return "Tensor" in str(kind)


def write(name, arguments, results):
    words, inputs = [f"case {name}"], []
    for label, value, tensors in arguments:
        if tensors:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                inputs.append(f"in {label} " + ("none" if one is None else tensor(one)))
        else:
            words.append(f"{label}={attribute(value)}")
    lines.extend(["", " ".join(words), *inputs, *results])


def arguments_of(op, args, kwargs):
    given = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.name in IGNORED:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        # A number may stand where a tensor is expected, as it does in captured graphs.
        plain = isinstance(value, (bool, int, float))
        given.append((argument.name, value, is_tensor(argument.type) and not plain))
    return given


def case(name, *args, undefined=(), keep=None, **kwargs):
    """An op as its schema has it. `keep` limits the results to those, `undefined` names those whose elements are not."""
    op = resolve(name)
    given = arguments_of(op, args, kwargs)
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    results = op(*copies, **kwargs)
    results = results if isinstance(results, (list, tuple)) else [results]
    text = []
    for i, result in enumerate(results):
        if result is None or (keep is not None and i not in keep):
            text.append("nothing")
        elif i in undefined:
            text.append(f"undefined {DTYPES[result.dtype]}[{','.join(map(str, result.shape))}]")
        else:
            text.append("out " + tensor(result))
    write(name, given, text)


def random_case(name, *args, moments, **kwargs):
    """An op that draws. `moments`: for each result mean, variance, lowest, highest."""
    op = resolve(name)
    results = op(*args, **kwargs)
    results = results if isinstance(results, (list, tuple)) else [results]
    text = []
    for result, (mean, variance, low, high) in zip(results, moments, strict=True):
        shape = ",".join(map(str, result.shape))
        text.append(f"random {DTYPES[result.dtype]}[{shape}] {mean} {variance} {low} {high}")
    write(name, arguments_of(op, args, kwargs), text)


def own_case(name, arguments, *results):
    """An op that is not PyTorch's own: (name, value) pairs and what it must give."""
    given = [(label, value, isinstance(value, torch.Tensor)) for label, value in arguments]
    write(name, given, ["out " + tensor(r) for r in results])
