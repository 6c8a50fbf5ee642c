"""All modules that enter definitions; importing them fills the tables of `witness.arithmetic.registry`."""

import importlib

MODULES = (
    "elementwise",
    "comparisons",
    "creation",
    "reductions",
    "placing",
    "scattering",
    "product_operators",
    "updates",
    "loss_scaling",
    "bags",
    "randomness",
    "dropout",
    "reflections",
    "elementary_operators",
    "activation_operators",
    "piecewise_operators",
    "convolution",
    "pooling",
    "folding",
    "resizing",
    "normalisation",
    "batch_normalisation",
    "weight_normalisation",
    "softmax",
    "losses",
    "cross_entropy",
    "contractions",
    "attention",
    "multi_head",
    "recurrent",
)
"""In no particular order: no two enter the same operation."""


def load() -> None:
    """Imports every module of definitions."""
    for name in MODULES:
        importlib.import_module(f"witness.arithmetic.{name}")
