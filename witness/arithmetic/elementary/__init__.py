"""Elementary functions and activations: one text read as tensors and as compiled numbers."""
