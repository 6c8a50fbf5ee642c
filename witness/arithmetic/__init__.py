"""Arithmetic whose bits do not depend on threads, vector width, BLAS, device or torch release: the exact profile."""
