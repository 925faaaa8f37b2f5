"""Ten steps of PyTorch's optimizers on given gradients, for tests/optim.rs.

Run as `python optim.py`; it writes optim.safetensors beside itself: `first/0 …` (parameters), `gradient/STEP/0 …`, and for each
case `case/0 …` after the last step. The second parameter has no gradient at steps 2 and 3; the rate is halved after step 5.
"""

import pathlib

import checkpoint
import torch

torch.manual_seed(1)
SHAPES, STEPS = [(3, 4), (5,), ()], 10
FIRST = [torch.randn(shape) for shape in SHAPES]
GRADIENTS = [[torch.randn(shape) for shape in SHAPES] for _ in range(STEPS)]
RESULT = {f"first/{i}": value for i, value in enumerate(FIRST)}
RESULT |= {f"gradient/{step}/{i}": value for step, all in enumerate(GRADIENTS) for i, value in enumerate(all)}


def case(name, make, clip=None):
    parameters = [value.clone().requires_grad_(True) for value in FIRST]
    optimizer = make(parameters)
    for step in range(STEPS):
        for number, parameter in enumerate(parameters):
            absent = number == 1 and step in (2, 3)
            parameter.grad = None if absent else GRADIENTS[step][number].clone()
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
            RESULT[f"{name}/norm/{step}"] = norm
        optimizer.step()
        if step == 5:
            for group in optimizer.param_groups:
                group["lr"] /= 2
    for number, parameter in enumerate(parameters):
        RESULT[f"{name}/{number}"] = parameter.detach()


O = torch.optim
case("sgd", lambda p: O.SGD(p, lr=0.1))
case("sgd_decay", lambda p: O.SGD(p, lr=0.1, weight_decay=0.2))
case("sgd_momentum", lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01))
case("sgd_dampening", lambda p: O.SGD(p, lr=0.1, momentum=0.9, dampening=0.3))
case("sgd_nesterov", lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
case("adam", lambda p: O.Adam(p, lr=0.1))
case("adam_decay", lambda p: O.Adam(p, lr=0.1, weight_decay=0.2, betas=(0.8, 0.95), eps=1e-6))
case("adam_amsgrad", lambda p: O.Adam(p, lr=0.1, amsgrad=True, betas=(0.5, 0.6)))
case("adamw", lambda p: O.AdamW(p, lr=0.1))
case("adamw_decay", lambda p: O.AdamW(p, lr=0.1, weight_decay=0.3, betas=(0.0, 0.9)))
case("adamw_amsgrad", lambda p: O.AdamW(p, lr=0.1, amsgrad=True, betas=(0.5, 0.6)))
case("clipped", lambda p: O.SGD(p, lr=0.1), clip=2.0)

checkpoint.save(pathlib.Path(__file__).with_name("optim.safetensors"), RESULT)
