"""Objects of a store in an S3 bucket (or in this process's memory, for tests), through obstore.

Settings come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
AWS_ENDPOINT_URL. The machine's own role is asked for credentials only with CTVR_S3_INSTANCE_ROLE=1 (or where the
platform itself announces them: AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_*).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, S3Store

from orchestrator.config import ConfigError
from orchestrator.leaks import redact
from orchestrator.store_local import StoreError

log = logging.getLogger(__name__)

_ANNOUNCED = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FAILURES = (BaseError, OSError, ValueError)  # what obstore raises; FileNotFoundError is one of them
_MEMORY: dict[str, MemoryStore] = {}


class RemoteObjects:
    """Named byte strings in a bucket below a prefix."""

    def __init__(self, uri: str, conditional_put: bool | None = None) -> None:
        self.uri = uri
        self.conditional_put = bool(conditional_put)
        self._objects = _connect(uri)

    def open(self) -> None:
        """Write, read and remove a probe; learn whether the server honours "only if absent".

        Raises:
            ConfigError: if the bucket is missing, the keys are refused, or the server is away.
        """
        name = f"_probe/{uuid.uuid4().hex}"
        try:
            obstore.put(self._objects, name, b"1", mode="create")
            try:
                obstore.put(self._objects, name, b"2", mode="create")
                self.conditional_put = False
            except AlreadyExistsError:
                self.conditional_put = True
            obstore.delete(self._objects, name)
        except _FAILURES as error:
            raise ConfigError(
                f"store {self.uri}: cannot be used ({_short(error)}). Check the bucket's name, AWS_ENDPOINT_URL, "
                f"AWS_REGION and the access key."
            ) from None
        if not self.conditional_put:
            log.warning("%s ignores If-None-Match: two writers can both believe they created an object", self.uri)

    def exists(self, name: str) -> bool:
        try:
            obstore.head(self._objects, name)
        except FileNotFoundError:
            return False
        except _FAILURES as error:
            raise self._explained(name, "read", error) from None
        return True

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError if there is no such object."""
        try:
            return bytes(obstore.get(self._objects, name).bytes())
        except FileNotFoundError:
            raise
        except _FAILURES as error:
            raise self._explained(name, "read", error) from None

    def write(self, name: str, buffers: Sequence[Any], create: bool = False) -> bool:
        """Publish the concatenated buffers, all or nothing; False if `create` and the name exists already.

        Raises:
            StoreError: if the server refuses or cannot be reached.
        """
        try:
            if create and not self.conditional_put and self.exists(name):
                return False
            mode: Any = "create" if create and self.conditional_put else "overwrite"
            obstore.put(self._objects, name, b"".join(buffers), mode=mode, use_multipart=False if create else None)
        except AlreadyExistsError:
            return False
        except _FAILURES as error:
            raise self._explained(name, "written", error) from None
        return True

    def delete(self, name: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._objects, name)
        except _FAILURES as error:
            raise self._explained(name, "deleted", error) from None

    def names(self, folder: str = "") -> Iterator[tuple[str, int]]:
        """(name, bytes) of every object below a folder, sorted by name."""
        try:
            found = [(o["path"], o["size"]) for page in obstore.list(self._objects, folder or None) for o in page]
        except _FAILURES as error:
            raise self._explained(folder, "listed", error) from None
        yield from sorted((name, size) for name, size in found if not name.startswith(("_", ".")))

    def _explained(self, name: str, verb: str, error: Exception) -> StoreError:
        return StoreError(f"{self.uri.rstrip('/')}/{name}: cannot be {verb} ({_short(error)}).")


def _connect(uri: str) -> Any:
    scheme, _, rest = uri.partition("://")
    if scheme == "memory":
        return _MEMORY.setdefault(rest, MemoryStore())
    bucket, _, prefix = rest.partition("/")
    if "@" in rest or "?" in rest:
        raise ConfigError("store: an s3:// address holds a bucket and a prefix only; keys belong in AWS_* variables.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", bucket):
        raise ConfigError(f"store {uri}: {bucket!r} is no bucket name. Write s3://BUCKET/PREFIX.")
    environment = os.environ
    config: Any = {}
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        config |= {"access_key_id": key, "secret_access_key": secret}
        if environment.get("AWS_SESSION_TOKEN"):
            config["session_token"] = environment["AWS_SESSION_TOKEN"]
    elif environment.get("CTVR_S3_INSTANCE_ROLE") != "1" and not any(environment.get(name) for name in _ANNOUNCED):
        raise ConfigError(
            f"store {uri}: no credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            f"CTVR_S3_INSTANCE_ROLE=1 to use the machine's role."
        )
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    config |= {"region": region, "virtual_hosted_style_request": endpoint is None}
    client: Any = {"connect_timeout": "10s", "timeout": "300s"}
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        client["allow_http"] = endpoint.startswith("http://")
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
    try:
        place = prefix.strip("/") or None
        return S3Store(bucket, prefix=place, config=config, client_options=client, retry_config=retry)
    except _FAILURES as error:
        raise ConfigError(f"store {uri}: {_short(error)}") from None


def _short(error: Exception) -> str:
    """The first line of obstore's message; the rest is a dump for its developers."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact(lines[0])[:300]
