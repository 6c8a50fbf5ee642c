"""Programs that come with the package, for demonstrations and as models of how to write one. Imports no torch.

A verifier replays a reference program with its own copy, so it needs to trust nobody's code.
"""

from types import MappingProxyType

REFERENCE = MappingProxyType({"gpt": "witness.programs.gpt:GPT", "mlp": "witness.programs.mlp:MLP"})
"""`module:Class` by the name that the command line knows."""
