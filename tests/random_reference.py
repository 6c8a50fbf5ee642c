"""What the exact profile's random numbers are, in Python integers and floats: slow, and written apart from it."""

import math
import random

import numpy as np


def philox_block(counter, key):
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ k0, q % 2**32, (p >> 32) ^ d ^ k1, p % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return a, b, c, d


def word(key, i, attempt=0):
    return philox_block((i // 4 % 2**32, i // 4 >> 32, attempt, 0), (key % 2**32, key >> 32))[i % 4]


def word64(key, i, attempt=0):
    return word(key, 2 * i, attempt) | word(key, 2 * i + 1, attempt) << 32


def twister(seed):
    """MT19937 as `init_genrand` seeds it (Matsumoto and Nishimura, 2002), by way of Python's own generator."""
    state = [seed % 2**32]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return generator


def keys(seed, count):
    generator = twister(seed)
    return [generator.getrandbits(32) << 32 | generator.getrandbits(32) for _ in range(count)]


def single(x):
    return float(np.float32(x))


def log(x):
    """fdlibm's e_log.c, for positive normal numbers, in Python floats."""
    m, e = math.frexp(x)
    m, e = (m * 2, e - 1) if m * 2 <= math.sqrt(2) else (m, e)
    f = m - 1
    s = f / (2 + f)
    z = s * s
    r = 1.479819860511658591e-01
    for c in (1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01, 2.857142874366239149e-01,
              3.999999999940941908e-01, 6.666666666666735130e-01):  # fmt: skip
        r = r * z + c
    r = r * z
    h = 0.5 * (f * f)
    return e * 6.93147180369123816490e-01 - ((h - (s * (h + r) + e * 1.90821492927058770002e-10)) - f)


def inverse_normal(q):
    """AS 241 at 1/2 + q, with the coefficients as the paper prints them."""

    def ratio(r, numerator, denominator, factor=1.0):
        a, b = numerator[-1], denominator[-1]
        for n, d in zip(numerator[-2::-1], denominator[-2::-1], strict=True):
            a, b = a * r + n, b * r + d
        return factor * a / b

    if abs(q) <= 0.425:
        return ratio(
            0.180625 - q * q,
            (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
             4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
            (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
             2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
            q,
        )  # fmt: skip
    r = math.sqrt(-log(0.5 - abs(q)))
    if r <= 5:
        z = ratio(
            r - 1.6,
            (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
             1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
            (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
             1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
             1.05075007164441684324e-9),
        )  # fmt: skip
    else:
        z = ratio(
            r - 5,
            (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1,
             2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5,
             2.01033439929228813265e-7),
            (1.0, 5.99832206555887937690e-1, 1.36929880922737805310e-1, 1.48753612908506148525e-2,
             7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
             2.04426310338993978564e-15),
        )  # fmt: skip
    return math.copysign(z, q)


def signed(w, bits):
    return w - (w >> bits - 1 << bits)
