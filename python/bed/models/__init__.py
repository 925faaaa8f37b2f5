"""296 models of transformers, timm, torchvision and diffusers, built small from configurations with random weights."""

import importlib
import importlib.util

from .registry import LARGE, MODELS, Model

FILES = {
    "decoders": "transformers",
    "seq2seq": "transformers",
    "encoders": "transformers",
    "vision": "transformers",
    "detection": "transformers",
    "multimodal": "transformers",
    "audio": "transformers",
    "series": "transformers",
    "timm_models": "timm",
    "torchvision_models": "torchvision",
    "diffusers_models": "diffusers",
}


def load():
    """The table of models by name, and the packages that are not installed, whose models it lacks."""
    missing = set()
    for file, package in FILES.items():
        if package in missing or importlib.util.find_spec(package) is None:
            missing.add(package)
        else:
            importlib.import_module(f".{file}", __name__)
    return MODELS, sorted(missing)


def load_large():
    """The table of models that are large enough for their times to mean something."""
    importlib.import_module(".large", __name__)
    return LARGE


__all__ = ["LARGE", "MODELS", "Model", "load", "load_large"]
