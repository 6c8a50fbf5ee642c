"""A numeric profile in a few lines for people."""

from collections.abc import Mapping
from typing import Any

from protocol.exact_profile import ExactProfile
from protocol.native_profile import NativeProfile
from protocol.profile import Profile


def summary(profile: Profile) -> list[str]:
    """What matters most in a profile: versions, machine, settings."""
    found = _exact(profile) if isinstance(profile, ExactProfile) else _native(profile)
    return [line for line in found if line]


def _exact(profile: ExactProfile) -> list[str]:
    build, device = profile.build, profile.device
    settings = _said("default.dtype", of=profile.switches)
    settings += [f"autocast on {kind}" for kind in ("cpu", "cuda") if profile.switches.get(f"autocast.{kind}") is True]
    return [
        f"arithmetic {profile.arithmetic}, definition {profile.definition}: the bits do not depend on threads, vector "
        "class, BLAS or device",
        f"recorded on {device.get('used')} with " + ", ".join(_said("torch", "python", "numpy", of=build)),
        ", ".join(settings),
    ]


def _native(profile: NativeProfile) -> list[str]:
    build, device, switches = profile.build, profile.device, profile.switches
    versions = _said("torch", "python", "numpy", "mkl", "onednn", of=build)
    machine = [str(device[name]) for name in ("cpu.name", "machine") if device.get(name) is not None]
    machine += [f"vector class {device['cpu.capability']}"] if device.get("cpu.capability") else []
    machine += [f"computes on {device['used']}"] if device.get("used") else []
    levels: dict[Any, str] = {0: "not enforced", 1: "asked for", 2: "enforced"}
    level = levels.get(switches.get("deterministic.algorithms"))
    numeric = [f"deterministic algorithms {level}"] if level else []
    numeric += _said("float32_matmul_precision", "default.dtype", "compile", of=switches)
    kept = {switches.get("subnormals.main"), switches.get("subnormals.pool")} - {None}
    numeric += [f"subnormals {' and '.join(sorted(map(str, kept)))}"] if kept else []
    chosen = sorted(f"{name}={value}" for name, value in profile.environment.items() if value is not None)
    return [
        ", ".join(versions),
        ", ".join(machine),
        f"threads: {profile.threads.intra} within an operation, {profile.threads.inter} between operations",
        ", ".join(numeric),
        *(f"{use.name}: {use.kind} ({', '.join(sorted(set(use.implementations)))})" for use in profile.optimizers),
        "environment: " + (" ".join(chosen) or "nothing set"),
    ]


def _said(*names: str, of: Mapping[str, Any]) -> list[str]:
    return [f"{name.rpartition('.')[2].replace('_', ' ')} {of[name]}" for name in names if of.get(name) is not None]
