"""What trainer and verifier agree on, to the byte.

Everything here is pure: no torch, no network, no disk, no clock, no ambient randomness. Time, nonces and keys are
arguments. A verifier in another language re-implements this package and nothing else.
"""

PROTOCOL_VERSION = "training-witness/v1"
