"""A module that starts torch's thread pool when it is imported, as none that is preloaded may."""

import torch

TOTAL = float(torch.ones(1 << 22).sum())
