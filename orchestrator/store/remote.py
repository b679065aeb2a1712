"""Objects of a store in an S3 bucket (or in this process's memory, for tests), through obstore.

Settings come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
AWS_ENDPOINT_URL. Credentials of the machine's role are requested only with CTVR_S3_INSTANCE_ROLE=1 (or if the platform
itself announces them: AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_*).

A key that may be created only once (the commit of a task) needs `If-None-Match: *`. AWS S3, MinIO, Ceph and GCS
support it. A server without support (rclone) is rejected when the store is opened, because two writers could succeed.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, S3Store

from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.proxies import except_from_proxies
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.store.local import Entry

PROBES = "_probe"  # folder of probe objects; names that begin with _ are not objects of the store
RETRIES = 30  # at most; an overloaded server refuses immediately (503), so five retries would end after a second
_DELETED_AT_ONCE = 500  # S3 allows 1000
_ANNOUNCED = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FAILURES = (BaseError, OSError, ValueError)  # raised by obstore; FileNotFoundError is an OSError
_MEMORY: dict[str, MemoryStore] = {}


class RemoteObjects:
    """Named byte strings in a bucket under a prefix."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._objects = _connect(uri)

    def open(self) -> None:
        """Check access to the bucket: write, list and remove a probe object.

        Raises:
            ConfigError: if the bucket does not exist, the keys are refused, the server is unavailable, or the server
                lets two writers create the same key.
        """
        patient, self._objects = self._objects, _connect(self.uri, is_probe=True)
        folder = f"{PROBES}/{uuid.uuid4().hex}"
        try:
            is_supported = _supports_conditions(self._objects, f"{folder}/a")
            obstore.list(self._objects, folder).collect()
            obstore.delete(self._objects, f"{folder}/a")
        except _FAILURES as error:
            raise ConfigError(_explained(error, self.uri), f"store {self.uri}") from None
        if not is_supported:
            raise ConfigError(
                f"{_server()} ignores If-None-Match, so two trials could both finish one task",
                f"store {self.uri}",
                remedy="Use a server that supports it (AWS S3, MinIO, Ceph, GCS), or a folder.",
            )
        self._objects = patient

    def exists(self, name: str) -> bool:
        try:
            obstore.head(self._objects, name)
        except FileNotFoundError:
            return False
        except _FAILURES as error:
            raise self._describe_failure(name, "read", error) from None
        return True

    def read(self, name: str) -> bytes:
        """Read a whole object.

        Raises:
            FileNotFoundError: if it does not exist.
            StoreError: if the server refuses or cannot be reached.
        """
        try:
            return bytes(obstore.get(self._objects, name).bytes())
        except FileNotFoundError:
            raise
        except _FAILURES as error:
            raise self._describe_failure(name, "read", error) from None

    def write(self, name: str, buffers: Sequence[Any], create: bool = False) -> bool:
        """Write the concatenated buffers atomically; return False if `create` and the name already exists.

        Raises:
            StoreError: if the server refuses or cannot be reached.
        """
        data = b"".join(buffers)
        try:
            mode: Any = "create" if create else "overwrite"
            obstore.put(self._objects, name, data, mode=mode, use_multipart=False if create else None)
        except AlreadyExistsError:
            return False
        except _FAILURES as error:
            raise self._describe_failure(name, "written", error) from None
        return True

    def delete(self, *names: str) -> None:
        """Remove objects that exist.

        Raises:
            StoreError: if the server refuses or cannot be reached.
        """
        try:
            for start in range(0, len(names), _DELETED_AT_ONCE):
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._objects, list(names[start : start + _DELETED_AT_ONCE]))
        except _FAILURES as error:
            raise self._describe_failure(names[0], "deleted", error) from None

    def names(self, folder: str = "") -> Iterator[Entry]:
        """Yield every object in a folder, sorted by name."""
        try:
            found = [
                Entry(o["path"], o["size"], o["last_modified"].timestamp())
                for page in obstore.list(self._objects, folder or None)
                for o in page
            ]
        except _FAILURES as error:
            raise self._describe_failure(folder, "listed", error) from None
        yield from sorted(entry for entry in found if not entry.name.startswith(("_", ".")))

    def listed(self, folder: str = "") -> Iterator[str]:
        """Yield the names of all objects in a folder."""
        return (entry.name for entry in self.names(folder))

    def state_of(self, folder: str) -> None:
        """Return None, because only a listing shows whether objects were added or removed."""

    def clock(self) -> float:
        """Return the time of the server's clock, which dates the objects, in seconds since 1970."""
        name = f"{PROBES}/{uuid.uuid4().hex}/clock"
        try:
            obstore.put(self._objects, name, b"1")
            now = obstore.head(self._objects, name)["last_modified"].timestamp()
            obstore.delete(self._objects, name)
        except _FAILURES as error:
            raise self._describe_failure(name, "written", error) from None
        return now

    def leftovers(self, before: float) -> list[str]:
        """Return the names of probe objects that were written before a time and never removed."""
        try:
            found = [o for page in obstore.list(self._objects, PROBES) for o in page]
        except _FAILURES as error:
            raise self._describe_failure(PROBES, "listed", error) from None
        return [o["path"] for o in found if o["last_modified"].timestamp() < before]

    def _describe_failure(self, name: str, verb: str, error: Exception) -> StoreError:
        return StoreError(f"{self.uri.rstrip('/')}/{name}: cannot be {verb}: {_explained(error, self.uri)}")


def _supports_conditions(objects: Any, name: str) -> bool:
    """Report whether the server refuses a second "create" of a name."""
    try:
        obstore.put(objects, name, b"1", mode="create")
    except BaseError as error:
        if "NotImplemented" not in str(error):
            raise
        obstore.put(objects, name, b"1")
        return False
    try:
        obstore.put(objects, name, b"2", mode="create")
    except AlreadyExistsError:
        return True
    return False


def _connect(uri: str, is_probe: bool = False) -> Any:
    scheme, _, rest = uri.partition("://")
    if scheme == "memory":
        return _MEMORY.setdefault(rest, MemoryStore())
    bucket, _, prefix = rest.partition("/")
    if "@" in rest or "?" in rest:
        fault = "an s3:// URL has only a bucket and a prefix"
        raise ConfigError(fault, "store", remedy="Use s3://BUCKET/PREFIX, and set the keys in AWS_* variables.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", bucket):
        raise ConfigError(f"{bucket!r} is not a bucket name", f"store {uri}", remedy="Use s3://BUCKET/PREFIX.")
    environment = os.environ
    config: Any = {}
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        config |= {"access_key_id": key, "secret_access_key": secret}
        if environment.get("AWS_SESSION_TOKEN"):
            config["session_token"] = environment["AWS_SESSION_TOKEN"]
    elif environment.get("CTVR_S3_INSTANCE_ROLE") != "1" and not any(environment.get(name) for name in _ANNOUNCED):
        raise ConfigError(
            "the credentials are missing",
            f"store {uri}",
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or CTVR_S3_INSTANCE_ROLE=1 to use the "
            "machine's role.",
        )
    endpoint = _endpoint()
    except_from_proxies()
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    config |= {"region": region, "virtual_hosted_style_request": endpoint is None}
    client: Any = {"connect_timeout": "5s" if is_probe else "10s", "timeout": "20s" if is_probe else "300s"}
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        client["allow_http"] = endpoint.startswith("http://")
    retry: Any = {"max_retries": 2 if is_probe else RETRIES, "retry_timeout": timedelta(seconds=15 if is_probe else 60)}
    try:
        place = prefix.strip("/") or None
        return S3Store(bucket, prefix=place, config=config, client_options=client, retry_config=retry)
    except _FAILURES as error:
        raise ConfigError(f"{_first_line(error)}.", f"store {uri}") from None


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _server() -> str:
    """Return the host of the endpoint for messages, or `Amazon S3` if no endpoint is set."""
    return urlsplit(_endpoint() or "").netloc.rpartition("@")[2] or "Amazon S3"


def _explained(error: Exception, uri: str) -> str:
    """Explain a failure and its remedy in one line, because obstore's own message is a long dump."""
    text = str(error)
    code = next(iter(re.findall(r"<Code>(\w{1,64})</Code>", text)), "")
    bucket = uri.partition("://")[2].partition("/")[0]
    if code == "NoSuchBucket" or (isinstance(error, FileNotFoundError) and not code):
        return f"bucket {bucket} does not exist. Create it, or correct the name."
    if code in {"InvalidAccessKeyId", "SignatureDoesNotMatch"}:
        return f"the server refuses the access key ({code}). Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    if code in {"ExpiredToken", "InvalidToken"}:
        return f"the server refuses the session ({code}). Renew AWS_SESSION_TOKEN and its keys."
    if code in {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}:
        return f"the bucket is in another region ({code}). Correct AWS_REGION."
    if " 403 " in text or " 401 " in text:
        return (
            f"the access key does not permit that ({code or 'forbidden'}). It must read, write, list and "
            f"delete in {bucket}."
        )
    if status := re.search(r"status code: (429|5\d\d)", text):
        return f"{_server()} is overloaded or fails ({code or status[1]}). Run the same command again later."
    if "HTTP error" in text:
        return f"no server responds at {_server()}. Start it, or correct AWS_ENDPOINT_URL and AWS_REGION."
    return f"{_first_line(error)}."


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact(lines[0])[:300].rstrip(".")
