"""The compiled form of `witness.arithmetic.layers.pooling.returned`."""

from witness.arithmetic.compiled import kernel


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, float32[::1], int64[::1], float32[::1])")
def returned(start, stop, depth, height, width, a, b, c, size, source, index, out):  # type: ignore[no-untyped-def]
    """Adds `source` (planes, depth, height, width) at `index` into `out` (planes, size), class by class."""
    for plane in range(start, stop):
        base = plane * depth * height * width
        to = plane * size
        for i in range(a):
            for j in range(b):
                for k in range(c):
                    for z in range(i, depth, a):
                        for y in range(j, height, b):
                            row = base + (z * height + y) * width
                            for x in range(k, width, c):
                                out[to + index[row + x]] += source[row + x]
