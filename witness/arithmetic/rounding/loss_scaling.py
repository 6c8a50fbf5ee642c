"""Loss scaling for float16 (`torch.amp.GradScaler`): gradients divided by the scale, and the scale moved on.

A gradient is multiplied by the inverse of the scale, in float32, and `found` becomes 1 where an element is not finite.
The scale is multiplied by the backoff factor where one was found, else by the growth factor after so many steps without
(unless that overflows): in float64, rounded once.
"""

from __future__ import annotations

import math

import torch

from witness.arithmetic.layers.derivatives import widened
from witness.arithmetic.registry import operator


@operator("_amp_foreach_non_finite_check_and_unscale_", halves=True, in_place=True)
def unscale_(gradients: list[torch.Tensor], found: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    """Divides gradients by the scale, in place, and tells whether one is not finite."""
    for g in gradients:
        if not bool(torch.isfinite(g).all()):
            found.fill_(1.0)
        g.copy_(widened(g) * inverse_scale.to(g.device))


@operator("_amp_update_scale_", halves=True, in_place=True)
def update_scale_(
    scale: torch.Tensor, streak: torch.Tensor, found: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """The next scale, and the number of steps since the last that was not finite."""
    if found.item():
        scale.fill_(scale.item() * backoff)
        streak.fill_(0)
        return scale
    steps = int(streak.item()) + 1
    if steps == interval:
        grown = torch.tensor(scale.item() * growth, dtype=torch.float64).to(scale.dtype)
        if math.isfinite(grown.item()):
            scale.copy_(grown)
        steps = 0
    streak.fill_(steps)
    return scale
