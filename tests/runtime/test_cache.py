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
from filelock import FileLock

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


def missed(cfg, *changes):
    """Fetch PARTS, then with each change; return why the last one missed."""
    cache = DiskCache(cfg)
    for k, change in enumerate([{}, *changes]):
        key = make_key({**KEY, **change}, f"model{k}")
        cache.fetch(key, artifact)
        os.utime(cache._path(key.digest).with_suffix(".key"), (1_000_000 + k, 1_000_000 + k))
    return why_miss(cfg)


KEY = {
    "graph": "placeholder ()\ncall_function torch.relu (%0)\noutput (%1)",
    "inputs": "torch.float32 (2, 8) strides (8, 1) offset 0 cpu\ntorch.int64 (2,) strides (1,) offset 0 cpu",
    "options": "[('fuse', True), ('numerics', 'default')]",
    "versions": "firebrick 0.1\nschema 3\ntorch 2.13",
    "target": "Linux\navx2\n2 threads",
}


@pytest.mark.parametrize(
    ("part", "text", "why"),
    [
        ("versions", "firebrick 0.1\nschema 3\ntorch 2.14", ["version is torch 2.14, was torch 2.13"]),
        ("target", "Linux\navx512\n2 threads", ["machine is avx512, was avx2"]),
        ("options", "[('fuse', False), ('numerics', 'default')]", ["option fuse is False, was True"]),
        (
            "inputs",
            KEY["inputs"].replace("(2, 8)", "(3, 8)"),
            [
                "input 0 is torch.float32 (3, 8) strides (8, 1) offset 0 cpu, "
                "was torch.float32 (2, 8) strides (8, 1) offset 0 cpu"
            ],
        ),
        (
            "graph",
            KEY["graph"].replace("relu", "tanh").replace("output", "result"),
            [
                "op 1 of the graph is call_function torch.tanh (%0), was call_function torch.relu (%0)",
                "... and 1 more of graph",
            ],
        ),
    ],
)
def test_why_miss_names_what_changed_in_the_users_terms(tmp_path, part, text, why):
    latest, first = missed(config(tmp_path), {part: text})
    assert latest["why"] == ["nearest is model0", *why] and latest["name"] == "model1"
    assert first["why"] == ["no earlier entry to compare with"]


def test_why_miss_compares_with_the_entry_that_differs_least(tmp_path):
    other = {"graph": "placeholder ()", "inputs": "none", "target": "mars"}
    cfg = config(tmp_path)
    latest, *_ = missed(cfg, other, {"target": "Linux\navx2\n4 threads"})
    assert latest["why"] == ["nearest is model0", "machine is 4 threads, was 2 threads"]
    assert [row["key"] for row in why_miss(cfg, latest["key"][:8])] == [latest["key"]]


@pytest.mark.parametrize("damage", ["", "[]", '{"key": 1}', "\x00"])
def test_what_a_key_was_made_of_may_be_unreadable(tmp_path, damage):
    cfg = config(tmp_path)
    missed(cfg, {"target": "mars"})
    path, _ = DiskCache(cfg).files("key")[1]
    path.write_text(damage)
    assert [row["why"] for row in why_miss(cfg)] == [["no earlier entry to compare with"]]


def test_what_a_key_was_made_of_goes_with_its_entry(tmp_path):
    cfg = config(tmp_path, cache_size_mb=1)
    cache = DiskCache(cfg)
    cache.fetch(make_key(KEY), lambda: artifact(big="x" * 2_000_000))
    os.utime(cache.files("key")[0][0], (1, 1))
    cache._evict()
    assert cache.files() == cache.files("key") == []
    missed(cfg)
    assert clear_cache(cfg) == 1 and cache.files("key") == []


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


STORM = """
import os, random, sys
from pathlib import Path
from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.runtime import DiskCache, make_key
def work(seed):
    order = random.Random(seed)
    cache = DiskCache(Config(cache_dir=Path(sys.argv[1]), cache_size_mb=1))
    for _ in range(20):
        n = order.randrange(12)
        found = cache.fetch(make_key({"graph": str(n)}), lambda: Artifact("g", {"n": n}, extra={"big": str(n) * 200_000}))
        assert found.table["n"] == n and found.extra["big"] == str(n) * 200_000
        if order.random() < 0.1:
            cache._evict()
children = []
for seed in range(64):
    pid = os.fork()
    if pid == 0:
        try:
            work(seed)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] != 0 for pid in children), "failed")
"""


def test_64_processes_write_read_and_evict_at_once(tmp_path):
    command = [sys.executable, "-W", "error::UserWarning", "-c", STORM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "0 failed\n", done.stdout + done.stderr
    cache = DiskCache(Config(cache_dir=tmp_path))
    assert all(cache.about(path) is not None for path, _ in cache.files())
    assert list(cache.root.glob("tmp/*")) == []


def test_killed_process_leaves_neither_entry_nor_lock(tmp_path):
    process = writer(tmp_path / "c", 60)
    assert process.stdout.readline() == "making\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    cfg = Config(cache_dir=tmp_path / "c")
    (lock,) = (DiskCache(cfg).root / "locks").iterdir()
    with FileLock(lock).acquire(timeout=0):
        pass
    assert DiskCache(cfg).fetch(make_key({"graph": "relu"}), artifact) == artifact()


def test_hits_and_misses_are_counted(tmp_path):
    before = dict(recorder.counts)
    cfg, key = config(tmp_path), make_key(PARTS)
    for _ in range(3):
        DiskCache(cfg).fetch(key, artifact)
    assert recorder.counts["cache misses"] - before.get("cache misses", 0) == 1
    assert recorder.counts["cache hits"] - before.get("cache hits", 0) == 2
