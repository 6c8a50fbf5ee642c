"""Compiled Philox4x32-10: the ten rounds over a few dozen counters at a time, which vectorises."""

import numpy as np

from witness.arithmetic.compiled import kernel

LANES = 64
"""Counters that go through the rounds together; they stay in the first-level cache."""


@kernel("void(int64, int64, int64, uint32, uint32, uint32, uint32[::1])")
def fill(start, stop, first, key0, key1, attempt, out):  # type: ignore[no-untyped-def]
    """`out[4 b : 4 b + 4]` = the block of counter (first + b, attempt) for b in [start, stop)."""
    m0 = np.uint64(0xD2511F53)
    m1 = np.uint64(0xCD9E8D57)
    high = np.uint64(32)
    c0 = np.empty(LANES, np.uint32)
    c1 = np.empty(LANES, np.uint32)
    c2 = np.empty(LANES, np.uint32)
    c3 = np.empty(LANES, np.uint32)
    for base in range(start, stop, LANES):
        n = min(LANES, stop - base)
        for j in range(n):
            c0[j] = np.uint32(first + base + j)
            c1[j] = np.uint32((first + base + j) >> 32)
            c2[j] = attempt
            c3[j] = np.uint32(0)
        k0 = key0
        k1 = key1
        for _ in range(10):
            for j in range(n):
                p0 = np.uint64(c0[j]) * m0
                p1 = np.uint64(c2[j]) * m1
                a = np.uint32(np.uint32(p1 >> high) ^ c1[j] ^ k0)
                b = np.uint32(np.uint32(p0 >> high) ^ c3[j] ^ k1)
                c1[j] = np.uint32(p1)
                c3[j] = np.uint32(p0)
                c0[j] = a
                c2[j] = b
            k0 = np.uint32(k0 + np.uint32(0x9E3779B9))
            k1 = np.uint32(k1 + np.uint32(0xBB67AE85))
        for j in range(n):
            i = 4 * (base + j)
            out[i] = c0[j]
            out[i + 1] = c1[j]
            out[i + 2] = c2[j]
            out[i + 3] = c3[j]
