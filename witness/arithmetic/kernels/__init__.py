"""Compiled forms of the definitions beside them; see `witness.arithmetic.compiled`."""
