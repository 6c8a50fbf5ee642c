"""Tests of the arithmetic begin from torch's own settings, whatever another test of this process has left behind."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _stock_settings() -> Iterator[None]:
    """Deterministic algorithms off, oneDNN on; as they were, afterwards."""
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    onednn = torch.backends.mkldnn.enabled
    torch._C._set_deterministic_algorithms(False, warn_only=False)
    torch.backends.mkldnn.enabled = True
    yield
    torch._C._set_deterministic_algorithms(mode != 0, warn_only=mode == 1)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.backends.mkldnn.enabled = onednn
