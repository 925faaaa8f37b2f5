"""PyTorch's dashboard rule: right is what is no further from the float64 result than a small multiple of eager's distance."""

from torch._dynamo.utils import same


# What the dashboards take for float32 here, and for shorter floats.
TOLERANCE, SHORT_TOLERANCE = 1e-3, 1e-2


def agree(eager, actual, exact, tolerance=TOLERANCE):
    """Whether ``actual`` is right, and if not, why not: ``(bool, text)``. All are lists of tensors; ``exact`` is float64 or None."""
    if len(eager) != len(actual):
        return False, f"{len(actual)} tensors instead of {len(eager)}"
    why = []
    for number, (one, other) in enumerate(zip(eager, actual)):
        if one.shape != other.shape:
            return False, f"tensor {number}: sizes {list(other.shape)} instead of {list(one.shape)}"
        if one.dtype != other.dtype:
            return False, f"tensor {number}: {other.dtype} instead of {one.dtype}"
        reference = exact[number] if exact is not None else None
        messages = []

        def note(text, *values):
            messages.append(text % values if values else text)

        fine = same(
            one,
            other,
            fp64_ref=reference,
            cos_similarity=reference is None,
            tol=tolerance,
            equal_nan=True,
            use_larger_multiplier_for_smaller_tensor=True,
            log_error=note,
        )
        if not fine:
            why.append(f"tensor {number}: {messages[0] if messages else 'differs'}")
    return not why, "; ".join(why[:3])


def error(exact, actual):
    """The largest root mean square error among float tensors, relative to the float64 tensor; None without one."""
    if exact is None:
        return None
    worst = 0.0
    for reference, other in zip(exact, actual):
        if not reference.is_floating_point() or reference.numel() == 0 or reference.shape != other.shape:
            continue
        difference = (other.double() - reference).nan_to_num()
        scale = reference.nan_to_num().square().mean().sqrt().clamp_min(1e-12)
        worst = max(worst, float(difference.square().mean().sqrt() / scale))
    return worst


def on_cpu(values):
    """The tensors, detached and copied."""
    return [value.detach().cpu().clone() for value in values]
