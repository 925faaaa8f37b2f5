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
case("rmsprop", lambda p: O.RMSprop(p, lr=0.1))
case("rmsprop_all", lambda p: O.RMSprop(p, lr=0.1, alpha=0.8, momentum=0.9, centered=True, weight_decay=0.05))
case("adagrad", lambda p: O.Adagrad(p, lr=0.1))
case("adagrad_all", lambda p: O.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.3))
case("adadelta", lambda p: O.Adadelta(p, lr=1.0))
case("adadelta_all", lambda p: O.Adadelta(p, lr=0.5, rho=0.7, eps=1e-3, weight_decay=0.05))
case("nadam", lambda p: O.NAdam(p, lr=0.1))
case("nadam_all", lambda p: O.NAdam(p, lr=0.1, betas=(0.8, 0.95), momentum_decay=0.02, weight_decay=0.05))
case("radam", lambda p: O.RAdam(p, lr=0.1))
case("radam_all", lambda p: O.RAdam(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.05))
case("adamax", lambda p: O.Adamax(p, lr=0.1))
case("adamax_all", lambda p: O.Adamax(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.05))
f = lambda p: O.AdamW([{"params": p[:1], "lr": 0.2, "weight_decay": 0.3}, {"params": p[1:]}], lr=0.1)
case("groups", f)


def schedule(name, make, lr=0.5, steps=30):
    """The rate before each step."""
    optimizer = O.SGD([torch.zeros(1)], lr=lr)
    scheduler, rates = make(optimizer), []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    RESULT[f"schedule/{name}"] = torch.tensor(rates, dtype=torch.float64)


S = O.lr_scheduler
schedule("step", lambda o: S.StepLR(o, 7, 0.3))
schedule("multi_step", lambda o: S.MultiStepLR(o, [3, 11, 12], 0.3))
schedule("exponential", lambda o: S.ExponentialLR(o, 0.9))
schedule("linear", lambda o: S.LinearLR(o, 0.2, 0.9, 12))
schedule("polynomial", lambda o: S.PolynomialLR(o, 20, 1.5))
schedule("cosine", lambda o: S.CosineAnnealingLR(o, 20, 0.05))
schedule("restarts", lambda o: S.CosineAnnealingWarmRestarts(o, 4, 2, 0.05))
schedule("one_cycle", lambda o: S.OneCycleLR(o, 0.7, total_steps=31, cycle_momentum=False))
schedule("lambda", lambda o: S.LambdaLR(o, lambda step: 1 / (1 + step)))

LOSSES = [3.0, 2.0, 2.5, 2.1, 2.2, 2.3, 1.0, 1.0, 1.2, 1.1, 1.3, 0.99995, 1.5, 1.6, 1.7, 1.8, 0.5]
optimizer = O.SGD([torch.zeros(1)], lr=0.5)
plateau, rates = S.ReduceLROnPlateau(optimizer, factor=0.3, patience=2, cooldown=1, min_lr=0.02), []
for loss in LOSSES:
    plateau.step(loss)
    rates.append(optimizer.param_groups[0]["lr"])
RESULT["schedule/plateau/losses"] = torch.tensor(LOSSES, dtype=torch.float64)
RESULT["schedule/plateau"] = torch.tensor(rates, dtype=torch.float64)

case("clipped", lambda p: O.SGD(p, lr=0.1), clip=2.0)

checkpoint.save(pathlib.Path(__file__).with_name("optim.safetensors"), RESULT)
