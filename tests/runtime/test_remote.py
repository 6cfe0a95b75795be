"""The shared tier of the cache: a Redis server with signed entries; down, wrong and missing servers."""

import importlib
import shutil
import subprocess
import time

import pytest

from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.report import FirebrickWarning, recorder
from firebrick.runtime import DiskCache, make_key, remote

redis = pytest.importorskip("redis", reason="the extra `redis` is not installed")
KEY = make_key({"graph": "relu"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server of Debian's package redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    socket = tmp_path_factory.mktemp("redis") / "s"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(socket.parent)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(500):
        if socket.exists():
            break
        time.sleep(0.02)
    yield f"unix://{socket}"
    process.terminate()
    process.wait()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    remote._connect.cache_clear()
    monkeypatch.setattr(recorder, "_warned", set())


@pytest.fixture
def empty(server):
    redis.Redis.from_url(server).flushall()
    return server


def config(path, address, secret="secret"):
    return Config(cache_dir=path, remote_cache=address, remote_cache_key=secret)


def artifact(**extra):
    return Artifact("graph", {"arena": 0}, extra=extra)


def forbidden():
    raise AssertionError("compiled although the cache has it")


def test_another_machine_compiles_nothing(tmp_path, empty):
    assert DiskCache(config(tmp_path / "one", empty)).fetch(KEY, artifact) == artifact()
    assert DiskCache(config(tmp_path / "two", empty)).fetch(KEY, forbidden) == artifact()
    assert DiskCache(Config(cache_dir=tmp_path / "two")).fetch(KEY, forbidden) == artifact()  # kept on its own disk


@pytest.mark.parametrize("damage", ["other secret", "changed", "unsigned", "of another key", "short"])
def test_entry_with_a_wrong_signature_is_refused_with_one_warning(tmp_path, empty, damage):
    other = make_key({"graph": "tanh"})
    for key in (KEY, other):
        DiskCache(config(tmp_path / "one", empty)).fetch(key, artifact)
    client = redis.Redis.from_url(empty)
    name = f"firebrick:{KEY.digest}"
    data = client.get(name)
    changes = {
        "changed": data[:-1] + b"!",
        "unsigned": data[32:],
        "of another key": client.get(f"firebrick:{other.digest}"),
        "short": b"",
    }
    client.set(name, changes.get(damage, data))
    secret = "mine" if damage == "other secret" else "secret"
    cache = DiskCache(config(tmp_path / "two", empty, secret))
    with pytest.warns(FirebrickWarning, match="not signed with this") as seen:
        assert cache.fetch(KEY, lambda: artifact(mine=True)) == artifact(mine=True)
        assert cache.remote.get(KEY.digest) is not None  # signed anew
    assert len(seen) == 1


def test_server_that_is_down_is_one_warning_and_then_left_alone(tmp_path, monkeypatch):
    cfg = config(tmp_path, f"unix://{tmp_path}/nobody")
    with pytest.warns(FirebrickWarning, match="shared cache .* is not used") as seen:
        for graph in ("a", "b", "c"):
            key = make_key({"graph": graph})
            assert DiskCache(cfg).fetch(key, artifact) == artifact()
            assert DiskCache(cfg).fetch(key, forbidden) == artifact()
    assert len(seen) == 1
    monkeypatch.setattr(DiskCache(cfg).remote._client, "get", forbidden)
    assert DiskCache(cfg).remote.get("x") is None


def test_server_that_hangs_is_given_up(tmp_path, monkeypatch):
    import socket

    monkeypatch.setattr(remote, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        with pytest.warns(FirebrickWarning, match="is not used"):
            assert DiskCache(config(tmp_path, f"unix://{tmp_path}/s")).fetch(KEY, artifact) == artifact()


def test_without_a_secret_the_server_is_not_used(tmp_path):
    with pytest.warns(FirebrickWarning, match="FIREBRICK_REMOTE_CACHE_KEY"):
        assert DiskCache(config(tmp_path, "redis://user:hidden@localhost:1", "")).remote is None


def test_missing_client_names_the_extra_and_no_password(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.warns(FirebrickWarning, match=r"firebrick\[redis\]") as seen:
        assert DiskCache(config(tmp_path, "redis://user:hidden@localhost:1")).remote is None
    assert "hidden" not in str(seen[0].message)


def test_address_that_means_nothing_is_one_warning(tmp_path):
    with pytest.warns(FirebrickWarning, match="is not used"):
        assert DiskCache(config(tmp_path, "http://localhost")).fetch(KEY, artifact) == artifact()


def test_cache_switched_off_asks_no_server(tmp_path):
    assert DiskCache(Config(cache_dir=tmp_path, cache=False, remote_cache="redis://localhost:1")).remote is None
