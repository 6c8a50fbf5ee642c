"""All modules that enter definitions; importing them fills the tables of `witness.arithmetic.registry`."""

import importlib

MODULES = (
    "rounding.elementwise",
    "rounding.comparisons",
    "rounding.distinct",
    "rounding.creation",
    "summation.reductions",
    "summation.placing",
    "summation.scattering",
    "matrix.product_operators",
    "rounding.updates",
    "rounding.loss_scaling",
    "layers.bags",
    "generator.randomness",
    "generator.dropout",
    "generator.reflections",
    "elementary.elementary_operators",
    "elementary.activation_operators",
    "elementary.piecewise_operators",
    "layers.convolution",
    "layers.pooling",
    "layers.folding",
    "layers.resizing",
    "layers.normalisation",
    "layers.batch_normalisation",
    "layers.weight_normalisation",
    "layers.softmax",
    "layers.losses",
    "layers.cross_entropy",
    "matrix.contractions",
    "layers.attention",
    "layers.multi_head",
    "layers.recurrent",
)
"""In no particular order: no two enter the same operation."""


def load() -> None:
    """Imports every module of definitions."""
    for name in MODULES:
        importlib.import_module(f"witness.arithmetic.{name}")
