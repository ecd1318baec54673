"""Repositories of the loopback Hub: folders on disk with git and LFS digests, and their JSON."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".model", ".onnx")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of one revision."""

    path: Path
    size: int
    blob_id: str
    sha256: str | None
    """The LFS digest, for the files that the Hub keeps in LFS."""

    @property
    def etag(self) -> str:
        return self.sha256 or self.blob_id


@dataclass(slots=True)
class Repo:
    """A model repository with every revision it ever had; the last one is ``main``."""

    repo_id: str
    facts: dict[str, Any]
    revisions: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The commits of branches by name."""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.names["main"]

    def commit(self, folder: Path, *, branch: str = "main") -> str:
        """Add the folder's files as the newest revision of a branch and return its 40-hex commit."""
        files = {
            path.relative_to(folder).as_posix(): stored_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".cache" not in path.parts
        }
        parent = self.names.get(branch, "")
        text = json.dumps([self.repo_id, parent, [(name, file.etag) for name, file in files.items()]])
        revision = hashlib.sha1(text.encode()).hexdigest()
        self.revisions[revision] = files
        self.names[branch] = revision
        return revision

    def resolve(self, revision: str) -> str | None:
        commit = self.names.get(revision) or self.tags.get(revision, revision)
        return commit if commit in self.revisions else None


def stored_file(path: Path) -> StoredFile:
    """Size and digests of one file as the Hub would state them."""
    sha256, sha1 = hashlib.sha256(), hashlib.sha1()
    size = path.stat().st_size
    sha1.update(b"blob %d\0" % size)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            sha1.update(block)
    if not path.name.endswith(LFS_SUFFIXES):
        return StoredFile(path, size, sha1.hexdigest(), None)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {size}\n"
    blob_id = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer.encode()).hexdigest()
    return StoredFile(path, size, blob_id, sha256.hexdigest())


def safetensors_total(files: Mapping[str, StoredFile]) -> dict[str, Any] | None:
    """Parameter counts by dtype as the Hub indexes them: every tensor of every root file, packed or not."""
    counts: dict[str, int] = {}
    for name, file in files.items():
        if not name.endswith(".safetensors") or "/" in name:
            continue
        with file.path.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            try:
                header = json.loads(stream.read(min(length, 1 << 27)))
                for tensor, entry in header.items():
                    if tensor != "__metadata__":
                        product = 1
                        for extent in entry["shape"]:
                            product *= extent
                        counts[entry["dtype"]] = counts.get(entry["dtype"], 0) + product
            except (ValueError, KeyError, TypeError, AttributeError):
                return None
    return {"parameters": counts, "total": sum(counts.values())} if counts else None


def derived_tags(repo_id: str, files: Mapping[str, StoredFile], facts: Mapping[str, Any]) -> list[str]:
    """The tags that the Hub adds on its own, before the ones the author wrote."""
    tags = ["transformers"] if "config.json" in files else []
    for suffix, tag in ((".safetensors", "safetensors"), (".gguf", "gguf"), (".bin", "pytorch")):
        tags += [tag] if any(name.endswith(suffix) for name in files) else []
    card = facts["cardData"]
    tags += [f"license:{card['license']}"] if card.get("license") else []
    if base := card.get("base_model"):
        tags.append(f"base_model:{base}")
        if relation := card.get("base_model_relation"):
            tags.append(f"base_model:{relation}:{base}")
    return tags + [tag for tag in facts["tags"] if tag not in tags]


def repo_json(repo: Repo, revision: str, *, expand: list[str], blobs: bool) -> dict[str, Any]:
    """The model info object; ``expand`` returns only what it names, as the Hub does."""
    files, facts = repo.revisions[revision], repo.facts
    everything = {
        **facts,
        "sha": revision,
        "author": repo.repo_id.partition("/")[0],
        "tags": derived_tags(repo.repo_id, files, facts),
        "library_name": facts["library_name"] or ("transformers" if "config.json" in files else None),
        "safetensors": facts["safetensors"] or safetensors_total(files),
        "siblings": [sibling_json(name, file, blobs=blobs) for name, file in files.items()],
    }
    head = {"id": repo.repo_id, "modelId": repo.repo_id}
    chosen = {key: everything[key] for key in expand if key in everything} if expand else everything
    return head | {key: value for key, value in chosen.items() if value is not None}


def refs_json(repo: Repo) -> dict[str, Any]:
    """The branches and tags with their commits, and the Hub's own conversion branch."""

    def entries(names: Mapping[str, str], prefix: str) -> list[dict[str, str]]:
        return [{"name": n, "ref": prefix + n, "targetCommit": commit} for n, commit in names.items()]

    return {
        "branches": entries(repo.names, "refs/heads/"),
        "converts": entries({"parquet": "0" * 40}, "refs/convert/"),
        "tags": entries(repo.tags, "refs/tags/"),
    }


def sibling_json(name: str, file: StoredFile, *, blobs: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name}
    if blobs:
        entry |= {"size": file.size, "blobId": file.blob_id}
        if file.sha256:
            entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
    return entry


def tree_json(files: Mapping[str, StoredFile], *, under: str, recursive: bool) -> list[dict[str, Any]]:
    """The tree listing: files, and folders where it is not recursive."""
    entries: dict[str, dict[str, Any]] = {}
    for name, file in files.items():
        if under and not name.startswith(under + "/"):
            continue
        rest = name[len(under) + 1 :] if under else name
        if "/" in rest and not recursive:
            folder = f"{under}/{rest.partition('/')[0]}".lstrip("/")
            entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            continue
        entries[name] = {"type": "file", "path": name, "oid": file.blob_id, "size": file.size}
        if file.sha256:
            entries[name]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
    return list(entries.values())


def parse_count(text: str) -> float:
    """``6B``, ``500M``, ``1.5K`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip().upper())
    if match is None:
        raise ValueError(f"not a count: {text}")
    return float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2]]


def hub_time(moment: datetime | str) -> str:
    """The Hub's spelling of a time, in UTC with milliseconds."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def matching(repos: list[Repo], query: Mapping[str, list[str]]) -> list[Repo]:
    """The repositories that a listing query selects, in its order."""

    def one(name: str) -> str | None:
        return query[name][0] if query.get(name) else None

    found = list(repos)
    if text := one("search"):
        found = [repo for repo in found if text.lower() in repo.repo_id.lower()]
    if author := one("author"):
        found = [repo for repo in found if repo.repo_id.startswith(f"{author}/")]
    if task := one("pipeline_tag"):
        found = [repo for repo in found if repo.facts["pipeline_tag"] == task]
    for tag in query.get("filter", []):
        found = [
            repo for repo in found if tag in derived_tags(repo.repo_id, repo.revisions[repo.head], repo.facts)
        ]
    if bounds := one("num_parameters"):
        limits = dict(part.split(":") for part in bounds.split(","))
        low, high = parse_count(limits.get("min", "0")), parse_count(limits.get("max", "9999T"))
        found = [repo for repo in found if (total := _total(repo)) is not None and low <= total <= high]
    key = one("sort") or "trendingScore"
    return sorted(found, key=lambda repo: repo.facts.get(key) or 0, reverse=True)


def _total(repo: Repo) -> int | None:
    info = repo.facts["safetensors"] or safetensors_total(repo.revisions[repo.head])
    return info["total"] if info else None
