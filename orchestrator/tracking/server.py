"""MLflow stores, a SQLite file or a server: preparation, checks and one-line errors."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ctvr.orchestrator.errors import ConfigError, TrackingUnavailable
from ctvr.orchestrator.interpreter import environment, gc_disabled, run_module
from ctvr.orchestrator.processes import lock_faults_in
from ctvr.orchestrator.proxies import except_from_proxies, is_loopback, proxy_of
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.tracking.database import WAIT_SECONDS, await_lock, ensure_whole, remedy, revision_of, upgrade
from ctvr.orchestrator.tracking.internals import AUTOFLUSH, NOISY, SCHEMA, connect_once, migrate, schema_revisions

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)
_DATABRICKS = ("databricks", "databricks-uc")
_DRIVERS = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
}  # module -> package

_DATABASES = ("postgresql", "mysql", "mssql")  # dialects that MLflow accepts, besides SQLite
_LIBPQ = ("PGUSER", "PGPASSWORD")  # read by every driver of Postgres
MLFLOW_APP = "ctvr"  # plug-in of `mlflow server` (mlflow_app.py)
CHECK_SECONDS = 2.0  # maximum wait for a database that another process has locked; `create_database` waits longer
MOUNT_LOCKS = "Mount it with flock (Lustre) or local_lock=all (NFS)"


def default_uri(runs: Path) -> str:
    """Return `MLFLOW_TRACKING_URI` without its password if it is set; otherwise the URI of a SQLite file in `runs`."""
    _move_password()
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(runs).resolve() / 'mlflow.db'}"


def require_records(runs: Path) -> None:
    """Check that a runs folder has records, so that commands that only read do not create a misspelled folder.

    Raises:
        ConfigError: if the records would be in a file that does not exist.
    """
    uri = default_uri(runs)
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not file.is_file():
        why = "is not a file" if os.path.lexists(file) else "does not exist"
        raise ConfigError(
            f"{runs} has no runs ({file.name} {why})", "--runs", remedy="Pass the folder of earlier runs."
        )


def _move_password() -> None:
    """Move user and password of MLFLOW_TRACKING_URI to other variables, because addresses are printed and recorded.

    Raises:
        ConfigError: for a database whose driver does not read passwords from a variable.
    """
    address = urlsplit(os.environ.get("MLFLOW_TRACKING_URI", ""))
    if "@" not in address.netloc:
        return
    given = (unquote(each or "") for each in (address.username, address.password))
    bare = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    if _is_database(bare) and _dialect(bare) != "postgresql":
        raise ConfigError(
            "the password of this database would be recorded with its URL",
            f"tracking {bare}",
            remedy="Start an MLflow server on it (`mlflow server --backend-store-uri`), and use the server's URL.",
        )
    names = _LIBPQ if _is_database(bare) else ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    os.environ.update({name: value for name, value in zip(names, given, strict=True) if value})
    os.environ["MLFLOW_TRACKING_URI"] = bare


def _dialect(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0].lower()


def _is_database(uri: str) -> bool:
    """Return whether `uri` is the address of a database server, which MLflow opens with SQLAlchemy."""
    return _dialect(uri) in _DATABASES


def check(uri: str, timeout: int = 5, writes: bool = True) -> None:
    """Check that `uri` is usable, with one request and without long retries.

    Args:
        uri: tracking URI.
        timeout: limit of the request in seconds.
        writes: whether the caller writes records.

    Raises:
        ConfigError: one line with the URI, the reason and the remedy.
        TrackingUnavailable: if a server does not answer.
    """
    if uri.startswith("sqlite:///"):
        folder = (file := Path(uri.removeprefix("sqlite:///"))).parent
        if str(folder).encode(errors="replace").decode() != str(folder):
            raise ConfigError(
                "the path is not UTF-8, which MLflow's database requires",
                folder,
                remedy="Rename it, or choose another --runs.",
            )
        if os.path.lexists(file) and not file.is_file():  # MLflow would try for minutes to open it
            raise ConfigError("is not a file", file, remedy="Move it away and run again.")
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if writes and not os.access(nearest, os.W_OK):
            raise ConfigError(
                f"cannot write to {folder}", f"tracking {uri}", remedy="Choose another folder with --runs."
            )
        if writes and (fault := lock_faults_in(nearest).get("fcntl")):  # SQLite cannot use it
            raise ConfigError(
                f"the file system does not support file locks ({fault.strerror})",
                folder,
                remedy=f"{MOUNT_LOCKS}, or choose a folder on another disk with --runs.",
            )
        if writes:
            _older_revision(file, CHECK_SECONDS)
        return
    if uri in _DATABRICKS:
        raise ConfigError(
            "is a Databricks workspace, not a server that ctvr can use",
            f"tracking {uri}",
            remedy="Set MLFLOW_TRACKING_URI to an MLflow server, or unset it to record in the runs folder.",
        )
    if uri.startswith("sqlite:"):  # two slashes begin the name of a host
        path = uri.removeprefix("sqlite:").lstrip("/")
        raise ConfigError("is not the URL of a file", f"tracking {uri}", remedy=f"Use sqlite:///{path}.")
    if "://" not in uri or uri.startswith("file:"):
        raise ConfigError(
            "MLflow does not accept plain folders",
            f"tracking {uri}",
            remedy=f"Use sqlite:///{uri.removeprefix('file://')}/mlflow.db or the URL of an MLflow server in "
            "MLFLOW_TRACKING_URI.",
        )
    quick = {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    with environment(**quick, PGCONNECT_TIMEOUT=str(timeout)):
        try:
            new_client(uri).search_experiments(max_results=1)
        except Exception as error:  # the user gets one line for any error
            advice = remedy_for(error, uri)
            raise TrackingUnavailable(reason(error), f"tracking {redact(uri)}", remedy=advice) from error


def ui_command(uri: str, host: str = "127.0.0.1", port: int = 5000) -> list[str]:
    """Return the command that starts the MLflow server on `uri`. Only this machine can connect, without a password.

    Raises:
        ConfigError: if `uri` is already a server, others can reach `host`, or `port` is in use.
        PackageNotFoundError: if only MLflow's client is installed.
    """
    importlib.metadata.distribution("mlflow")
    if uri.startswith(("http://", "https://")):
        raise ConfigError("is already a server", f"tracking {uri}", remedy="Open it in a browser.")
    if not is_loopback(host):
        raise ConfigError(
            "other machines could change and delete runs without a password",
            f"--host {host}",
            remedy="Use 127.0.0.1 with ssh -L, or start a server with a password: cluster/services.sh.",
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} ({error.strerror})", f"port {port}", remedy="Choose another port."
            ) from None
    except_from_proxies()  # its workers connect to it
    command = [
        *run_module("mlflow", "server", "--backend-store-uri", uri, "--host", host, "--port", str(port)),
        "--uvicorn-opts",
        # The default of --app-dir is the current folder, which uvicorn puts first on sys.path
        "--app-dir / --log-level warning",
    ]
    if importlib.metadata.entry_points(group="mlflow.app", name=MLFLOW_APP):  # an older installation lacks it
        command += ["--app-name", MLFLOW_APP]
    if uri.startswith("sqlite:///"):
        folder = Path(uri.removeprefix("sqlite:///")).resolve().parent
        command += ["--artifacts-destination", str(folder / "artifacts")]
    return [*command, "--workers", "1"]


def new_client(uri: str) -> MlflowClient:
    """Return a client for `uri` without a global active run, telemetry or output."""
    _move_password()
    except_from_proxies()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")  # seconds; the default, 8 times 120 s, blocks training
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ALLOW_HTTP_REDIRECTS", "false")  # another host would get the body, and .netrc's login
    with gc_disabled():
        from mlflow import MlflowClient

        for noisy in NOISY:
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        if _is_database(uri):
            os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
            connect_once(uri)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)  # imports the store of a database


def create_database(uri: str, is_copy: bool = False) -> None:
    """Create a missing database; upgrade a database that an older MLflow wrote, and keep the previous file.

    MLflow itself would upgrade the file in place and keep nothing, and add its tables to a database of any other
    program. So the schema is compared before MLflow opens the file.

    Args:
        uri: URI of the file.
        is_copy: whether the file is a temporary copy, whose previous version need not be kept.

    Raises:
        ConfigError: if a newer MLflow or another program wrote the file, or the file is damaged or locked.
    """
    file = Path(uri.removeprefix("sqlite:///"))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        await_lock(file)
        if (revision := _older_revision(file, WAIT_SECONDS)) is None:
            ensure_whole(file, lambda aside: new_client(aside).search_experiments(max_results=1))
        elif is_copy:
            log.warning("tracking: an older MLflow wrote mlflow.db (schema %s); a temporary copy is read", revision)
            migrate(uri)
        else:
            kept = upgrade(file, migrate, importlib.metadata.version("mlflow-skinny"))
            log.warning("tracking: upgraded %s, which an older MLflow wrote; the previous file is %s", file, kept)
        new_client(uri).search_experiments(max_results=1)
    except (ConfigError, ModuleNotFoundError):
        raise
    except Exception as error:  # not a database, or a full disk: one line for the user
        raise ConfigError(reason(error), f"tracking {uri}", remedy=remedy_for(error, uri)) from error


def _older_revision(file: Path, seconds: float) -> str | None:
    """Return the revision of a database that must be upgraded; None for a current or incomplete database."""
    revision = revision_of(file, seconds)
    if revision in (None, SCHEMA):
        return None
    newest, known = schema_revisions()
    if revision not in known:
        raise ConfigError(
            f"is from a newer MLflow (schema {revision})",
            f"tracking {file}",
            remedy="Upgrade MLflow, or choose another folder with --runs.",
        )
    return revision if revision != newest else None


def reason(error: Exception) -> str:
    """Return the innermost cause of an error in one line of limited length, without passwords."""
    text = str(error)
    for pattern in ("Connection refused", "timed out", "Name or service not known", "Invalid Host header"):
        if pattern.lower() in text.lower():
            return pattern.lower() if pattern != "Invalid Host header" else "the server refuses this host name"
    lines = (line for line in text.strip().splitlines() if not line.startswith(AUTOFLUSH))
    line = next(lines, "") or type(error).__name__
    return redact(line)[:300].rstrip(".")


def remedy_for(error: Exception, uri: str) -> str:
    """Return the remedy for an error of the store at `uri`: a file, a database or a server."""
    if uri.startswith("sqlite:"):
        return f"{remedy(error)}."
    text, host = str(error), urlsplit(uri).hostname
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install the driver of this database: pip install {_DRIVERS.get(error.name, error.name)}"
    if "Invalid Host header" in text:
        return "Start the server with --allowed-hosts NAME, or use its IP address"
    if _is_database(uri):
        return "Check user, password and address in MLFLOW_TRACKING_URI, and that the database accepts connections."
    status = re.search(r"(?<![\w:=./-])40[13](?!\w)", text)  # not a port or an address
    if not (status and status[0] == "401") and (proxy := proxy_of(uri)):
        return f"The proxy {proxy} was used; to connect to the server directly, add {host} to no_proxy."
    if status:
        return "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
    return "Start the server (`make ui`), or unset MLFLOW_TRACKING_URI to record in the runs folder."
