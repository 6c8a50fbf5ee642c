"""Row-wise definitions again, one numpy scalar at a time, from the sentences of their modules.

Values are lists of `numpy.float32`; nothing is taken from the package, and exp and log are those of
`reference_functions`.
"""

import numpy as np
from exact import reference_functions, reference_products

F = np.float32
ZERO, ONE = F(0), F(1)
INFINITY = F(np.inf)


def total(values):
    """The halving sum."""
    values = list(values)
    if not values:
        return ZERO
    while len(values) > 1:
        h = (len(values) + 1) // 2
        values = [values[i] + values[h + i] if h + i < len(values) else values[i] for i in range(h)]
    return values[0]


def column_totals(rows):
    return [total(column) for column in zip(*rows, strict=True)]


def normalise(row, weight, bias, eps, centred=True):
    """Result, mean, scale."""
    n = F(len(row))
    mean = total(row) / n if centred else ZERO
    c = [x - mean for x in row]
    scale = ONE / np.sqrt(total(x * x for x in c) / n + F(eps))
    y = [x * scale for x in c]
    if weight is not None:
        y = [a * w for a, w in zip(y, weight, strict=True)]
    if bias is not None:
        y = [a + b for a, b in zip(y, bias, strict=True)]
    return y, mean, scale


def normalise_backward(g, row, weight, mean, scale, centred=True):
    """The gradient of the row, and what the row adds to those of weight and bias."""
    n = F(len(row))
    normal = [(x - mean) * scale for x in row]
    w = list(g) if weight is None else [a * b for a, b in zip(g, weight, strict=True)]
    a = total(w) / n if centred else ZERO
    b = total(x * y for x, y in zip(w, normal, strict=True)) / n
    dx = [(x - a - y * b) * scale for x, y in zip(w, normal, strict=True)]
    return dx, [x * y for x, y in zip(g, normal, strict=True)], list(g)


def largest(row):
    if any(x != x for x in row):
        return F(np.nan)
    return max(row) + ZERO


def softmax(row):
    m = largest(row)
    e = [reference_functions.exp(x - m) for x in row]
    s = total(e)
    return [x / s for x in e]


def softmax_backward(g, y):
    s = total(a * b for a, b in zip(g, y, strict=True))
    return [(a - s) * b for a, b in zip(g, y, strict=True)]


def log_softmax(row):
    m = largest(row)
    s = reference_functions.log(total(reference_functions.exp(x - m) for x in row))
    return [(x - m) - s for x in row]


def log_softmax_backward(g, y):
    s = total(g)
    return [a - reference_functions.exp(b) * s for a, b in zip(g, y, strict=True)]


def logsumexp(row):
    m = largest(row)
    m = ZERO if np.isinf(m) else m
    return reference_functions.log(total(reference_functions.exp(x - m) for x in row)) + m


def product(a, b, bits):
    """The exact product of lists of rows."""
    patterns = reference_products.multiply(_patterns(a), _patterns(b), bits)
    return [[F(np.uint32(p).view(F)) for p in row] for row in patterns]


def _patterns(rows):
    return [[int(F(x).view(np.uint32)) for x in row] for row in rows]


def transposed(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def attention(q, k, v, scale, bits, *, allowed=None, bias=None, causal=False, noise=None):
    """Result, weights: of one head."""
    scores = product(q, transposed(k), bits)
    weights = []
    for i, row in enumerate(scores):
        row = [x * F(scale) for x in row]
        if allowed is not None:
            row = [x if ok else -INFINITY for x, ok in zip(row, allowed[i], strict=True)]
        if bias is not None:
            row = [x + b for x, b in zip(row, bias[i], strict=True)]
        if causal:
            row = [x if j <= i else -INFINITY for j, x in enumerate(row)]
        weights.append([ZERO] * len(row) if all(x == -INFINITY for x in row) else softmax(row))
        if causal:
            weights[-1] = [x if j <= i else ZERO for j, x in enumerate(weights[-1])]
    used = weights if noise is None else _each(weights, noise)
    return product(used, v, bits), weights


def attention_backward(g, q, k, v, weights, scale, bits, *, causal=False, noise=None):
    """Gradients of queries, keys, values and scores."""
    used = weights if noise is None else _each(weights, noise)
    dv = product(transposed(used), g, bits)
    dw = product(g, transposed(v), bits)
    dw = dw if noise is None else _each(dw, noise)
    ds = []
    for i, (row, y) in enumerate(zip(dw, weights, strict=True)):
        row = [x if j <= i or not causal else ZERO for j, x in enumerate(row)]
        ds.append([x if j <= i or not causal else ZERO for j, x in enumerate(softmax_backward(row, y))])
    scaled = [[x * F(scale) for x in row] for row in ds]
    return product(scaled, k, bits), product(transposed(scaled), q, bits), dv, ds


def _each(a, b):
    return [[x * y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]
