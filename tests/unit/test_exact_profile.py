"""The exact profile: what its lines are, which of them block, and what a divergence proves where others differ."""

import msgspec
import pytest
from made_run import made_run

from protocol.comparison import Comparison, require_attributable
from protocol.encoding import decode, encode
from protocol.errors import IncompleteError, ProtocolError, UsageError, VerificationError
from protocol.exact_profile import ARITHMETICS, DEFAULT, ExactProfile, differences, require_comparable, require_known
from protocol.manifest import Manifest, parse_manifest
from protocol.native_profile import NativeProfile
from protocol.operations import OperationProbe
from protocol.profile import NAMES, Profile, full_name

PROFILE = ExactProfile(
    arithmetic="exact-14",
    definition=1,
    build={
        "torch": "2.13.0+cpu",
        "torch_git": "cf30",
        "python": "3.11.7",
        "numpy": "2.4.6",
        "libm": "aa",
        "numpy_functions": "bb",
    },
    device={"byteorder": "little", "used": "cpu"},
    switches={"default.dtype": "float32", "autocast.cpu": False},
)
DIVERGED = VerificationError("replay-state", "step 3 replays differently", evidence={"step": 3, "tensor": "model/w"})


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of a run under the native profile."""
    return made_run(tmp_path_factory.mktemp("made") / "run", [b"a text"]).manifest()


def altered(group: str, **lines: object) -> ExactProfile:
    values = {name.replace("__", "."): value for name, value in lines.items()}
    return msgspec.structs.replace(PROFILE, **{group: {**getattr(PROFILE, group), **values}})


def test_the_tag_says_which_sort_a_profile_is(native: Manifest) -> None:
    assert decode(encode(PROFILE), Profile, limit=10_000) == PROFILE  # type: ignore[arg-type]
    assert b'"name":"exact"' in encode(PROFILE)
    assert isinstance(native.profile, NativeProfile)
    assert decode(encode(native.profile), Profile, limit=10_000) == native.profile  # type: ignore[arg-type]
    assert (PROFILE.full_name, native.profile.full_name) == ("exact-14", "native")


def test_a_manifest_carries_either_and_its_run_id_binds_the_arithmetic(native: Manifest) -> None:
    assert parse_manifest(encode(native)) == native
    manifest = msgspec.structs.replace(native, profile=PROFILE)
    assert parse_manifest(encode(manifest)) == manifest
    other = msgspec.structs.replace(manifest, profile=msgspec.structs.replace(PROFILE, arithmetic="exact-18"))
    assert len({manifest.run_id, other.run_id, native.run_id}) == 3
    later = encode(manifest).replace(b'"name":"exact"', b'"name":"exacter"')
    with pytest.raises(ProtocolError):
        parse_manifest(later)


@pytest.mark.parametrize(
    ("here", "path", "kind"),
    [
        (altered("build", torch="2.13.1"), "build.torch", "outside"),
        (altered("build", torch="2.13.0+cu130"), "build.torch", "note"),
        (altered("build", torch="2.13.0a0+git1234567"), "build.torch", "outside"),
        (altered("build", torch_git="0000"), "build.torch_git", "outside"),
        (altered("build", python="3.11.9"), "build.python", "note"),
        (altered("build", python="3.12.7"), "build.python", "outside"),
        (altered("build", numpy="2.4.1"), "build.numpy", "note"),
        (altered("build", numpy="2.3.6"), "build.numpy", "outside"),
        (altered("build", libm="cc"), "build.libm", "outside"),
        (altered("build", numpy_functions=None), "build.numpy_functions", "outside"),
        (altered("device", byteorder="big"), "device.byteorder", "bits"),
        (altered("device", used="cuda"), "device.used", "note"),
        (altered("device", future="1"), "device.future", "bits"),
        (altered("switches", default__dtype="float64"), "switches.default.dtype", "pinned"),
        (altered("switches", autocast__cpu=0), "switches.autocast.cpu", "pinned"),
        (msgspec.structs.replace(PROFILE, arithmetic="exact-18"), "arithmetic", "bits"),
        (msgspec.structs.replace(PROFILE, definition=2), "definition", "bits"),
    ],
)
def test_kind_of_a_line(here: ExactProfile, path: str, kind: str) -> None:
    assert [(d.path, d.kind) for d in differences(PROFILE, here)] == [(path, kind)]
    if kind in ("bits", "pinned"):
        with pytest.raises(IncompleteError, match=path) as caught:
            require_comparable(PROFILE, here)
        assert caught.value.code == "profile-differs"
        return
    comparison = require_comparable(PROFILE, here)
    assert [d.path for d in (comparison.outside if kind == "outside" else comparison.notes)] == [path]
    assert any(path in remark for remark in comparison.remarks())


def test_what_no_arithmetic_defines_turns_a_divergence_into_incomplete_and_is_named() -> None:
    probe = OperationProbe()
    require_attributable(require_comparable(PROFILE, PROFILE), probe, (), DIVERGED)
    require_attributable(require_comparable(PROFILE, altered("build", python="3.11.9")), probe, (), DIVERGED)
    comparison = require_comparable(PROFILE, altered("build", torch="2.14.0", libm="cc", python="3.11.9"))
    with pytest.raises(IncompleteError, match=r"step 3 .*build\.libm: recorded aa, here cc \(and 1 more\)") as caught:
        require_attributable(comparison, probe, (), DIVERGED)
    assert caught.value.code == "outside-differs"
    assert caught.value.evidence == {
        "step": 3,
        "tensor": "model/w",
        "found": "replay-state",
        "build.libm": "recorded aa, here cc",
        "build.torch": "recorded 2.13.0+cpu, here 2.14.0",
    }
    assert decode(encode(comparison), Comparison, limit=10_000) == comparison


@pytest.mark.parametrize("change", [{"arithmetic": "exact-21"}, {"definition": 2}, {"definition": 0}])
def test_an_arithmetic_of_another_version_is_incomplete_and_named(change: dict[str, object]) -> None:
    unknown = msgspec.structs.replace(PROFILE, **change)
    assert decode(encode(unknown), ExactProfile, limit=10_000) == unknown
    with pytest.raises(IncompleteError, match=f"recorded {unknown.arithmetic} of definition") as caught:
        require_known(unknown)
    assert caught.value.code == "profile-not-applicable"
    require_known(PROFILE)


@pytest.mark.parametrize(
    "mutation",
    [
        (b'"exact-14"', b'"exact-014"'),
        (b'"exact-14"', b'"exact-14\\n"'),
        (b'"exact-14"', b'"native"'),
        (b'"definition":1', b'"definition":-1'),
        (b'"definition":1', b'"definition":"1"'),
        (b'"byteorder":"little"', b'"byteorder":["little"]'),
        (b'"switches":{', b'"switches":{"a b":1,'),
        (b'"switches"', b'"threads":{"inter":1,"intra":1},"switches"'),
    ],
)
def test_hostile_profiles_are_refused(mutation: tuple[bytes, bytes]) -> None:
    data = encode(PROFILE)
    assert mutation[0] in data
    with pytest.raises(ProtocolError):
        decode(data.replace(*mutation), Profile, limit=100_000)  # type: ignore[arg-type]


def test_names() -> None:
    assert full_name("exact") == DEFAULT
    assert [full_name(name) for name in ("native", *ARITHMETICS)] == ["native", *ARITHMETICS]
    assert DEFAULT in ARITHMETICS
    for name in ("", "exact-21", "Exact", "exact-14 "):
        with pytest.raises(UsageError) as caught:
            full_name(name)
        assert caught.value.code == "profile-unknown"
        assert all(known in str(caught.value) for known in NAMES)
