"""The table of models, and what their builders share: small sizes, token ids, masks, images."""

import dataclasses
from typing import Callable

import torch

BATCH, TOKENS, VOCABULARY = 2, 16, 512

MODELS = {}
# Those whose times mean something.
LARGE = {}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model by name. ``build()`` gives a dictionary.

    ``model``: the module; ``args`` and ``kwargs``: what it is called with; ``train_kwargs``: instead of ``kwargs`` in training;
    ``loss``: ``"ce"`` or ``"mse"`` for a model that returns no loss.
    """

    name: str
    family: str
    build: Callable[[], dict]


def register(name, family, build, table=MODELS):
    """Adds a model to a table."""
    if name in table:
        raise ValueError(f"two models are called {name}")
    table[name] = Model(name, family, build)


def token_ids(b=BATCH, s=TOKENS, v=VOCABULARY, lo=5):
    """Random token ids, none of them a special one."""
    return torch.randint(lo, v, (b, s))


def padding_mask(b=BATCH, s=TOKENS, left=True):
    """An attention mask whose first row has three tokens of padding."""
    mask = torch.ones(b, s, dtype=torch.long)
    if left:
        mask[0, :3] = 0
    else:
        mask[0, -3:] = 0
    return mask


def image(n=32, b=BATCH, c=3):
    """Random images of n × n pixels."""
    return torch.randn(b, c, n, n)


def config(kind, **values):
    """A configuration of transformers."""
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **values)
