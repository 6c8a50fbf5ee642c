"""Compiled normal quantile and logarithm: the operations of `generator.quantile`, a cache line at a time."""

import numpy as np

from witness.arithmetic.compiled import kernel

CHUNK = 512
"""Numbers between two passes; a sixth of them lie in the tails and are gathered for the second."""


@kernel("void(int64, float64[::1], int64[::1], float64[::1])")
def _logarithms(n, x, bits, exponents):  # type: ignore[no-untyped-def]
    """`x[i] = log(x[i])`; `bits` is the same memory, `exponents` is room to work in."""
    for i in range(n):
        exponents[i] = np.float64((bits[i] >> 52) - 1023)
        bits[i] = (bits[i] & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000
    for i in range(n):
        m = x[i]
        big = m > 1.4142135623730951
        f = (m * 0.5 if big else m) - 1.0
        k = exponents[i] + (1.0 if big else 0.0)
        s = f / (f + 2.0)
        z = s * s
        r = z * 1.479819860511658591e-01 + 1.531383769920937332e-01
        r = r * z + 1.818357216161805012e-01
        r = r * z + 2.222219843214978396e-01
        r = r * z + 2.857142874366239149e-01
        r = r * z + 3.999999999940941908e-01
        r = r * z + 6.666666666666735130e-01
        r = r * z
        h = f * f * 0.5
        x[i] = k * 6.93147180369123816490e-01 - ((h - (s * (h + r) + k * 1.90821492927058770002e-10)) - f)


@kernel("void(int64, float64[::1], float64[::1], int64[::1], float64[::1], int64[::1], float64[::1])")
def _quantiles(n, q, z, index, tail, bits, room):  # type: ignore[no-untyped-def]
    """`z[i]` = the normal quantile of 1/2 + q[i] for i < n <= CHUNK; the rest is room to work in."""
    count = 0
    for i in range(n):
        x = q[i]
        r = 0.180625 - x * x
        a = r * 2509.0809287301226727 + 33430.575583588128105
        a = a * r + 67265.770927008700853
        a = a * r + 45921.953931549871457
        a = a * r + 13731.693765509461125
        a = a * r + 1971.5909503065514427
        a = a * r + 133.14166789178437745
        a = a * r + 3.387132872796366608
        b = r * 5226.495278852854561 + 28729.085735721942674
        b = b * r + 39307.89580009271061
        b = b * r + 21213.794301586595867
        b = b * r + 5394.1960214247511077
        b = b * r + 687.1870074920579083
        b = b * r + 42.313330701600911252
        b = b * r + 1.0
        z[i] = x * a / b
    for i in range(n):
        index[count] = i
        count += np.int64(abs(q[i]) > 0.425)
    for t in range(count):
        tail[t] = 0.5 - abs(q[index[t]])
    _logarithms(count, tail, bits, room)
    for t in range(count):
        d = np.sqrt(-tail[t])
        r = d - 1.6
        a = r * 7.7454501427834140764e-4 + 0.0227238449892691845833
        a = a * r + 0.24178072517745061177
        a = a * r + 1.27045825245236838258
        a = a * r + 3.64784832476320460504
        a = a * r + 5.7694972214606914055
        a = a * r + 4.6303378461565452959
        a = a * r + 1.42343711074968357734
        b = r * 1.05075007164441684324e-9 + 5.475938084995344946e-4
        b = b * r + 0.0151986665636164571966
        b = b * r + 0.14810397642748007459
        b = b * r + 0.68976733498510000455
        b = b * r + 1.6763848301838038494
        b = b * r + 2.05319162663775882187
        b = b * r + 1.0
        near = a / b
        r = d - 5.0
        a = r * 2.01033439929228813265e-7 + 2.71155556874348757815e-5
        a = a * r + 0.0012426609473880784386
        a = a * r + 0.026532189526576123093
        a = a * r + 0.29656057182850489123
        a = a * r + 1.7848265399172913358
        a = a * r + 5.4637849111641143699
        a = a * r + 6.6579046435011037772
        b = r * 2.04426310338993978564e-15 + 1.4215117583164458887e-7
        b = b * r + 1.8463183175100546818e-5
        b = b * r + 7.868691311456132591e-4
        b = b * r + 0.0148753612908506148525
        b = b * r + 0.13692988092273580531
        b = b * r + 0.59983220655588793769
        b = b * r + 1.0
        tail[t] = near if d <= 5.0 else a / b
    for t in range(count):
        i = index[t]
        z[i] = -tail[t] if q[i] < 0.0 else tail[t]


@kernel("void(int64, int64, float64[::1], float64[::1])")
def quantiles(start, stop, q, out):  # type: ignore[no-untyped-def]
    """`out[i]` = the normal quantile of 1/2 + q[i], |q[i]| < 1/2, for i in [start, stop)."""
    index = np.empty(CHUNK + 1, np.int64)
    tail = np.empty(CHUNK, np.float64)
    bits = tail.view(np.int64)
    room = np.empty(CHUNK, np.float64)
    for base in range(start, stop, CHUNK):
        end = min(base + CHUNK, stop)
        _quantiles(end - base, q[base:end], out[base:end], index, tail, bits, room)


@kernel("void(int64, int64, int32[::1], float64, float64, float32[::1])")
def normals(start, stop, words, mean, std, out):  # type: ignore[no-untyped-def]
    """`out[i]` = mean + std * the quantile of word i, rounded once to float32, for i in [start, stop)."""
    q = np.empty(CHUNK, np.float64)
    z = np.empty(CHUNK, np.float64)
    index = np.empty(CHUNK + 1, np.int64)
    tail = np.empty(CHUNK, np.float64)
    bits = tail.view(np.int64)
    room = np.empty(CHUNK, np.float64)
    for base in range(start, stop, CHUNK):
        n = min(CHUNK, stop - base)
        for i in range(n):
            q[i] = (np.float64(words[base + i]) + 0.5) * 2.3283064365386963e-10
        _quantiles(n, q, z, index, tail, bits, room)
        for i in range(n):
            out[base + i] = np.float32(z[i] * std + mean)


@kernel("void(int64, int64, float64[::1], float64[::1])")
def logarithms(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out[i] = log(x[i])`, x[i] positive and normal, for i in [start, stop)."""
    buffer = np.empty(CHUNK, np.float64)
    bits = buffer.view(np.int64)
    room = np.empty(CHUNK, np.float64)
    for base in range(start, stop, CHUNK):
        n = min(CHUNK, stop - base)
        for i in range(n):
            buffer[i] = x[base + i]
        _logarithms(n, buffer, bits, room)
        for i in range(n):
            out[base + i] = buffer[i]
