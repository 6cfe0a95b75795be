"""A tier of the cache that machines share: a Redis server whose entries are signed, so that it need not be trusted."""

from __future__ import annotations

import hashlib
import hmac
import importlib
from functools import lru_cache
from typing import Any

from firebrick.config import Config
from firebrick.report import recorder

_SIGNED = hashlib.sha256().digest_size
_SECONDS = 2.0
"""How long the server may take to answer; compiling takes not much longer."""
_KEPT = 30 * 24 * 3600
_LARGEST = 256 << 20


def connect(config: Config) -> Remote | None:
    """Return the shared tier of a configuration, None if there is none."""
    if not config.cache or not config.remote_cache:
        return None
    if not config.remote_cache_key:
        _warn(config.remote_cache, "it needs a secret that signs its entries: set FIREBRICK_REMOTE_CACHE_KEY")
        return None
    return _connect(config.remote_cache, config.remote_cache_key)


@lru_cache(maxsize=4)
def _connect(address: str, secret: str) -> Remote | None:
    try:
        redis: Any = importlib.import_module("redis")
    except ImportError:
        _warn(address, 'redis-py is missing: pip install "firebrick[redis]"')
        return None
    try:
        client = redis.Redis.from_url(address, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
    except ValueError as error:
        _warn(address, str(error))
        return None
    return Remote(client, (redis.RedisError, OSError), address, secret.encode())


def _warn(address: str, why: str) -> None:
    place = address.rpartition("@")[2]  # without a password
    recorder.warn_once(f"remote cache {address}", f"firebrick: the shared cache {place} is not used: {why}")


class Remote:
    """Entries by key on a server. Whatever fails there is one warning, and the server is not asked again."""

    def __init__(self, client: Any, errors: tuple[type[Exception], ...], address: str, secret: bytes) -> None:
        self._client, self._errors, self._is_down = client, errors, False
        self._address, self._secret = address, secret

    def get(self, digest: str) -> bytes | None:
        """Return an entry whose signature is right."""
        data = self._ask("get", f"firebrick:{digest}")
        if data is None:
            return None
        signature, entry = data[:_SIGNED], data[_SIGNED:]
        if not hmac.compare_digest(signature, self._sign(digest, entry)):
            _warn(self._address, "it has an entry that was not signed with this FIREBRICK_REMOTE_CACHE_KEY")
            recorder.count("remote cache refused")
            return None
        return bytes(entry)

    def put(self, digest: str, entry: bytes) -> None:
        """Store an entry."""
        if len(entry) <= _LARGEST:
            self._ask("set", f"firebrick:{digest}", self._sign(digest, entry) + entry, ex=_KEPT)

    def _sign(self, digest: str, entry: bytes) -> bytes:
        return hmac.new(self._secret, digest.encode() + b"\0" + entry, hashlib.sha256).digest()

    def _ask(self, command: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_down:
            return None
        try:
            with recorder.timed("remote cache"):
                return getattr(self._client, command)(*args, **kwargs)
        except self._errors as error:
            self._is_down = True
            _warn(self._address, str(error))
            return None
