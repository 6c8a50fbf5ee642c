"""Sums by halving, and accumulation where the data chooses the place."""
