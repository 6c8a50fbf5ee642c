"""The exact product in Python integers, from float32 bit patterns to float32 bit patterns: slow, and nothing shared."""

NAN = 0x7FC00000
INFINITY = 0x7F800000


def multiply(a, b, bits):
    """Patterns of (M, K) @ (K, N) as lists of lists; a NaN is `NAN`."""
    columns = [list(column) for column in zip(*b, strict=True)]
    return [[_element(row, column, bits) for column in columns] for row in a]


def _element(row, column, bits):
    if any(_field(x) == 255 for x in (*row, *column)):
        return _without_order(row, column)
    ea, eb = _exponent(row), _exponent(column)
    total = sum(_on_grid(x, bits - ea) * _on_grid(y, bits - eb) for x, y in zip(row, column, strict=True))
    return encode(total, ea + eb - 2 * bits)


def _without_order(row, column):
    signs = set()
    for x, y in zip(row, column, strict=True):
        kinds = {_kind(x), _kind(y)}
        if "nan" in kinds or kinds == {"infinite", "zero"}:
            return NAN
        if "infinite" in kinds:
            signs.add((x ^ y) >> 31)
    if any(_kind(x) == "nan" for x in (*row, *column)) or len(signs) == 2:
        return NAN
    return signs.pop() << 31 | INFINITY


def _kind(x):
    magnitude = x & 0x7FFFFFFF
    if magnitude > INFINITY:
        return "nan"
    return "infinite" if magnitude == INFINITY else "zero" if magnitude == 0 else "finite"


def _field(x):
    return x >> 23 & 255


def _exponent(patterns):
    return max(1, *(_field(x) for x in patterns)) - 126


def _on_grid(x, shift):
    """round(x * 2**shift), half to even."""
    field, fraction = _field(x), x & 0x7FFFFF
    significand, exponent = (fraction, -149) if field == 0 else (fraction | 1 << 23, field - 150)
    q = _shifted(significand, exponent + shift)
    return -q if x >> 31 else q


def _shifted(n, shift):
    """round(n * 2**shift), half to even, for n >= 0."""
    if shift >= 0:
        return n << shift
    quotient, rest = n >> -shift, n & (1 << -shift) - 1
    half = 1 << -shift - 1
    return quotient + (rest > half or (rest == half and quotient & 1))


def encode(integer, exponent):
    """The pattern of `integer * 2**exponent` rounded to float32, half to even."""
    sign, n = (1 << 31 if integer < 0 else 0), abs(integer)
    if n == 0:
        return 0
    lowest = max(n.bit_length() + exponent - 24, -149)  # the weight of the last place
    significand = _shifted(n, exponent - lowest)
    if significand == 1 << 24:
        significand, lowest = 1 << 23, lowest + 1
    if significand < 1 << 23:
        return sign | significand
    field = lowest + 150
    return sign | (INFINITY if field >= 255 else field << 23 | significand & 0x7FFFFF)
