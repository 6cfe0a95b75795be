"""The file format of artifacts: what is written is read back, and nothing else is taken for an artifact."""

import pickletools

import pytest

from firebrick.artifact import SCHEMA, Artifact, Unit, decode, encode, read_index
from firebrick.errors import CacheError

SAMPLE = Artifact(
    "graph",
    {"slots": [["input", "f32", [2], [1], 0, "cpu"]], "arena": 0, "outputs": [["f", float("inf")]]},
    (Unit("u0", "void f() {}", ("f",), ("-O2",)), Unit("u1", "// ü", ())),
    {"u0": b"\x7fELF\0\1\2", "u1": b""},
    {"mutated": ["x"]},
)


def test_what_is_written_is_read_back():
    assert decode(encode(SAMPLE)) == SAMPLE


def test_unbuilt_artifact_keeps_its_texts():
    unbuilt = Artifact("g", {}, SAMPLE.units)
    again = decode(encode(unbuilt))
    assert again == unbuilt and not again.is_built and again.with_code(SAMPLE.code).is_built


def test_index_tells_what_the_cache_wants_without_the_rest():
    data = encode(SAMPLE, {"name": "graph", "parts": {"a": "1"}})
    assert read_index(data[:1000]) == {"name": "graph", "parts": {"a": "1"}}


def test_every_truncation_is_refused():
    data = encode(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(CacheError):
            decode(data[:size])
    with pytest.raises(CacheError):
        decode(data + b"x")


def test_every_changed_byte_is_refused():
    data = encode(SAMPLE)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(CacheError):
            decode(bytes(changed))


def test_foreign_and_future_files_are_named():
    with pytest.raises(CacheError, match="not a Firebrick artifact"):
        decode(b"PK\3\4 something else")
    future = encode(SAMPLE).replace(f"FIREBRICK {SCHEMA} ".encode(), f"FIREBRICK {SCHEMA + 1} ".encode(), 1)
    with pytest.raises(CacheError, match=f"schema {SCHEMA + 1}"):
        decode(future)


def test_nothing_is_pickled():
    data = encode(SAMPLE)
    with pytest.raises(Exception):
        list(pickletools.genops(data))


def test_unit_key_depends_on_text_flags_and_compiler():
    unit = SAMPLE.units[0]
    keys = {
        unit.key("g++ 12"),
        unit.key("g++ 13"),
        Unit("u0", unit.text + " ", unit.kernels, unit.flags).key("g++ 12"),
        Unit("u0", unit.text, unit.kernels, ("-O3",)).key("g++ 12"),
    }
    assert len(keys) == 4
