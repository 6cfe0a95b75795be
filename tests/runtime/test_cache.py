"""The disk cache: hits, misses, broken entries, unusable disks, several writers, killed writers."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.report import FirebrickWarning, recorder
from firebrick.runtime import DiskCache, cache_entries, cache_state, clear_cache, make_key, why_miss

PARTS = {"graph": "relu", "shapes": "f32[2]", "torch": "2.13"}


def config(path, **settings):
    return Config(cache_dir=Path(path) / "cache", **settings)


def artifact(name="graph", **extra):
    return Artifact(name, {"arena": 0}, extra=extra)


def forbidden():
    raise AssertionError("compiled although the cache has it")


def the_entry(cfg):
    (path,) = cfg.cache_dir.glob("v*/??/*.fb")
    return path


def test_second_fetch_compiles_nothing(tmp_path):
    cfg, key = config(tmp_path), make_key(PARTS)
    assert DiskCache(cfg).fetch(key, artifact) == artifact()
    assert DiskCache(cfg).fetch(key, forbidden) == artifact()
    assert cache_state(cfg)["entries"] == 1
    assert [row["name"] for row in cache_entries(cfg)] == ["graph"]
    assert clear_cache(cfg) == 1 and cache_entries(cfg) == []


def test_cache_can_be_switched_off(tmp_path):
    cfg = config(tmp_path, cache=False)
    DiskCache(cfg).fetch(make_key(PARTS), artifact)
    assert not cfg.cache_dir.exists()


def test_key_depends_on_every_part():
    keys = {make_key({**PARTS, name: "other"}).digest for name in PARTS} | {make_key(PARTS).digest}
    assert len(keys) == 4 and make_key(dict(reversed(PARTS.items()))) == make_key(PARTS)


@pytest.mark.parametrize("damage", ["truncated", "changed", "foreign", "future", "empty"])
def test_broken_entry_is_compiled_anew_with_one_warning(tmp_path, damage):
    cfg, key = config(tmp_path), make_key(PARTS)
    DiskCache(cfg).fetch(key, artifact)
    path = the_entry(cfg)
    data = path.read_bytes()
    path.write_bytes(
        {
            "truncated": data[:-3],
            "changed": data[:-1] + b"!",
            "foreign": b"PK\3\4",
            "future": data.replace(b"FIREBRICK ", b"FIREBRICK 9", 1),
            "empty": b"",
        }[damage]
    )
    with pytest.warns(FirebrickWarning, match="compiled anew"):
        assert DiskCache(cfg).fetch(key, lambda: artifact(again=True)) == artifact(again=True)
    assert DiskCache(cfg).fetch(key, forbidden) == artifact(again=True)


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_entry_that_others_can_write_is_refused(tmp_path, mode):
    cfg, key = config(tmp_path), make_key(PARTS)
    DiskCache(cfg).fetch(key, artifact)
    the_entry(cfg).chmod(mode)
    with pytest.warns(FirebrickWarning, match="others can write it"):
        assert DiskCache(cfg).load(key) is None


def test_folder_that_others_can_write_is_refused(tmp_path):
    cfg, key = config(tmp_path), make_key(PARTS)
    DiskCache(cfg).fetch(key, artifact)
    DiskCache(cfg).root.chmod(0o777)
    with pytest.warns(FirebrickWarning, match="others can write it"):
        assert DiskCache(cfg).fetch(key, lambda: artifact(again=True)) == artifact(again=True)


def test_entry_of_another_owner_is_refused(tmp_path, monkeypatch):
    cfg, key = config(tmp_path), make_key(PARTS)
    DiskCache(cfg).fetch(key, artifact)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(FirebrickWarning, match="another user"):
        assert DiskCache(cfg).load(key) is None


def test_entry_that_is_a_link_is_refused(tmp_path):
    cfg, key = config(tmp_path), make_key(PARTS)
    DiskCache(cfg).fetch(key, artifact)
    path = the_entry(cfg)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(FirebrickWarning):
        assert DiskCache(cfg).load(key) is None


def test_folder_that_can_not_be_made_gives_one_warning_and_a_result(tmp_path):
    cfg = Config(cache_dir=Path("/proc/no/such/folder"))
    cache = DiskCache(cfg)
    with pytest.warns(FirebrickWarning, match="not usable") as seen:
        for name in ("a", "b"):
            assert cache.fetch(make_key({"graph": name}), artifact) == artifact()
    assert len(seen) == 1


def test_full_disk_gives_one_warning_and_a_result(tmp_path, monkeypatch):
    cfg, key = config(tmp_path), make_key(PARTS)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(FirebrickWarning, match="No space left") as seen:
        assert DiskCache(cfg).fetch(key, artifact) == artifact()
    assert len(seen) == 1
    assert [p.name for p in DiskCache(cfg).root.glob("tmp/*") if not p.name.startswith("misses")] == []


def test_least_recently_used_entries_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(DiskCache, "_stores", 1)  # now and then a store evicts too
    cfg = config(tmp_path, cache_size_mb=1)
    cache = DiskCache(cfg)
    big = "x" * 400_000
    keys = [make_key({"graph": str(i)}) for i in range(5)]
    for age, key in enumerate(keys):
        cache.store(key, artifact(big=big))
        os.utime(cache._path(key.digest), (1_000_000 + age, 1_000_000 + age))
    cache.load(keys[0])  # used now
    cache._evict()
    left = [i for i, key in enumerate(keys) if cache.load(key) is not None]
    assert left == [0, 4]


def test_what_killed_processes_left_is_removed(tmp_path):
    cache = DiskCache(config(tmp_path))
    cache.store(make_key(PARTS), artifact())
    old, new = cache.root / "tmp" / "old", cache.root / "tmp" / "new"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1, 1))
    cache._evict()
    assert not old.exists() and new.exists()


def test_why_miss_names_the_changed_part(tmp_path):
    cfg = config(tmp_path)
    cache = DiskCache(cfg)
    cache.fetch(make_key(PARTS), artifact)
    cache.fetch(make_key({**PARTS, "torch": "2.14"}), lambda: artifact("other"))
    latest, first = why_miss(cfg)
    assert "differs in torch from the nearest entry, graph" in latest["why"]
    assert why_miss(cfg, latest["key"][:8])[0]["key"] == latest["key"]
    assert first["why"].startswith("differs in torch")


def test_threads_that_want_the_same_compile_it_once(tmp_path):
    cfg, key = config(tmp_path), make_key(PARTS)
    made, results = [], []

    def make():
        made.append(1)
        time.sleep(0.2)
        return artifact()

    threads = [threading.Thread(target=lambda: results.append(DiskCache(cfg).fetch(key, make))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results == [artifact()] * 16


WRITER = """
import sys, time
from pathlib import Path
from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.runtime import DiskCache, make_key
def make():
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    return Artifact("graph", {"arena": 0}, extra={"big": "x" * 1000000})
found = DiskCache(Config(cache_dir=Path(sys.argv[1]))).fetch(make_key({"graph": "relu"}), make)
print("done", len(found.extra["big"]), flush=True)
"""


def writer(path, seconds):
    command = [sys.executable, "-c", WRITER, str(path), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_compile_it_once(tmp_path):
    processes = [writer(tmp_path / "c", 1.5) for _ in range(3)]
    outputs = [p.communicate(timeout=120)[0] for p in processes]
    assert [o.splitlines()[-1] for o in outputs] == ["done 1000000"] * 3
    assert sum("making" in o for o in outputs) == 1


def test_killed_process_leaves_neither_entry_nor_lock(tmp_path):
    process = writer(tmp_path / "c", 60)
    assert process.stdout.readline() == "making\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    cfg = Config(cache_dir=tmp_path / "c")
    start = time.monotonic()
    assert DiskCache(cfg).fetch(make_key({"graph": "relu"}), artifact) == artifact()
    assert time.monotonic() - start < 5


def test_hits_and_misses_are_counted(tmp_path):
    before = dict(recorder.counts)
    cfg, key = config(tmp_path), make_key(PARTS)
    for _ in range(3):
        DiskCache(cfg).fetch(key, artifact)
    assert recorder.counts["cache misses"] - before.get("cache misses", 0) == 1
    assert recorder.counts["cache hits"] - before.get("cache hits", 0) == 2
