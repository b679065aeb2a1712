"""Trained models and feature sets in repositories of the Hugging Face Hub, named OWNER/NAME@REVISION.

Only files with the names of `FILES` are downloaded. They are safetensors, arrays and texts, whose readers execute
nothing.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from ctvr.methods.backbone.hub import why_unreachable
from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError

log = logging.getLogger(__name__)
# Kind of a repository -> its required files, and those that it may also have
FILES = {
    "model": (
        ("model.json", "model.safetensors"),
        ("gallery.json", "gallery.safetensors", "provenance.json", "README.md"),
    ),
    "dataset": (
        ("table.csv", "features.parquet"),
        ("text_features.parquet", "features.yaml", "canaries.npz", "README.md"),
    ),
}
# Bytes of all these files. The largest towers of open_clip (ViT-bigG) have 10 GB in float32
LARGEST = 12 * 10**9
_NAME = re.compile(r"[a-z0-9][\w.-]*/[a-z0-9][\w.-]*@(?!.*\.\.)\w[\w./-]*", re.ASCII | re.IGNORECASE)


def is_repository(name: str) -> bool:
    """Return whether a name has the form OWNER/NAME@REVISION and is not a local folder."""
    return _NAME.fullmatch(name) is not None and not Path(name).is_dir()


def fetch_repository(name: str, kind: Literal["model", "dataset"]) -> Path:
    """Return the folder of a repository in huggingface_hub's cache, after a download of the files that are missing.

    A branch or tag is resolved to a commit first, which is logged and is the name of the folder. Without a connection
    the cache is used.

    Args:
        name: OWNER/NAME@REVISION; the revision is a branch, a tag or a commit.
        kind: of the repository on the Hub; `FILES` lists its files.

    Raises:
        ConfigError: if the repository cannot be fetched, lacks a required file, lists a path outside of it, is larger
            than `LARGEST`, or if a file differs from the one that the Hub lists or, without a connection, has another
            digest than its name in the cache.
    """
    repository, _, revision = name.partition("@")
    reason = why_unreachable()
    is_offline = bool(reason)
    wanted = [file for files in FILES[kind] for file in files]
    listed: dict[str, Any] = {}
    try:
        from huggingface_hub import HfApi, snapshot_download

        hub = HfApi()
        found = hub.resolve_revision(repository, repo_type=kind, revision=revision, local_files_only=is_offline)
        commit = found.resolved
        if not is_offline:
            tree = hub.list_repo_tree(repository, repo_type=kind, revision=commit, recursive=True)
            listed = {each.path: each for each in tree}
            _check_listing(name, kind, {path: getattr(each, "size", 0) for path, each in listed.items()})
        place = snapshot_download(
            repository, repo_type=kind, revision=commit, allow_patterns=wanted, local_files_only=is_offline
        )
    except ConfigError:
        raise
    except Exception as error:  # two libraries with their own exception classes
        said = reason or f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": .")
        remedy = "Check the name, or set HF_HUB_OFFLINE=1 to use the cache only."
        raise ConfigError(f"could not be fetched: {said}", name, remedy=remedy) from error
    folder = Path(place)
    for file in (path for path in (folder / name for name in wanted) if path.exists() or path.name in listed):
        if not (_is_as_named(file) if is_offline else _is_as_listed(file, listed.get(file.name))):
            file.resolve().unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            fault = f"{file.name} differs from the file that the Hub lists"
            raise ConfigError(fault, name, remedy="Repeat the command, or use another revision.")
    if missing := [file for file in FILES[kind][0] if not (folder / file).is_file()]:
        raise ConfigError(
            f"lacks {', '.join(missing)} in the cache", name, remedy="Repeat the command with a connection."
        )
    if commit != revision:
        log.info("%s: commit %s%s", name, commit, f" of the cache ({reason})" if reason else "")
    return folder


def _check_listing(name: str, kind: str, sizes: dict[str, int]) -> None:
    """Check paths and sizes in bytes of all files of a repository, before one of them is downloaded."""
    required, others = FILES[kind]
    if outside := [path for path in sizes if path.startswith("/") or ".." in path.split("/")]:
        raise ConfigError(f"lists the path {outside[0]!r:.80}", name, remedy="Use another repository.")
    if missing := [file for file in required if file not in sizes]:
        command = "ctvr export hf" if kind == "model" else "ctvr streams export --features --form parquet"
        fault = f"{kind} repository lacks {', '.join(missing)} (it has {', '.join(sizes)!r:.80})"
        raise ConfigError(fault, name, remedy=f"Use the files that `{command}` writes.")
    if (total := sum(sizes.get(file, 0) for file in (*required, *others))) > LARGEST:
        fault = f"has {total / 1e9:.1f} GB of files, more than {LARGEST / 1e9:.0f} GB"
        raise ConfigError(fault, name, remedy="Download it by `hf download`, and use the folder.")


def _is_as_listed(file: Path, listed: Any) -> bool:
    """Return whether a file has the size and the digest of a RepoFile: SHA-256 with LFS, Git's SHA-1 otherwise."""
    if listed is None or not file.is_file() or file.stat().st_size != listed.size:
        return False
    return _has_digest(file, listed.lfs.sha256 if listed.lfs else listed.blob_id)


def _is_as_named(file: Path) -> bool:
    """Return whether a file of the cache has the digest in its name; without links, names have none."""
    name = file.resolve().name
    return not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", name) or _has_digest(file, name)


def _has_digest(file: Path, digest: str) -> bool:
    """Return whether a file has the SHA-256 or the SHA-1 of Git, of 64 or 40 digits."""
    if len(digest) == 64:
        return digest_file(file) == digest
    blob = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    blob.update(file.read_bytes())
    return blob.hexdigest() == digest
