"""Where data files are: a folder that the user names, one beside the project, a cache, or the public source."""

import hashlib
import io
import os
import tempfile
import zipfile
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

TIMEOUT = 30.0
"""Seconds that a download waits for the next sign of life."""


def folders() -> list[Path]:
    """Folders that are searched, in this order. The last one is the cache, where downloads go."""
    named = os.environ.get("PRODSSM_DATA")
    checkout = Path(__file__).resolve().parents[2]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    found = [Path(named).expanduser()] if named else []
    return [*found, checkout.parent / "shared" / "data", Path(cache).expanduser() / "prodssm"]


def find(relative_path: str, *, url: str | None = None, sha256: str | None = None, member: str | None = None) -> Path:
    """A data file on this machine, downloaded into the cache if it is not there yet.

    Args:
        relative_path: Path below any of the `folders`, for example "uci/energy/data.txt".
        url: Public source, asked only if no folder holds the file.
        sha256: Checksum that the file must have, wherever it comes from.
        member: Name of the file within a zip archive, if that is what `url` gives.

    Returns:
        Path of the file.

    Raises:
        FileNotFoundError: It is nowhere, and cannot be fetched; the message says what can be done.
        ValueError: It is there, but is another file than the one that was checked.

    Example:
        >>> find("nothing.csv")
        Traceback (most recent call last):
        FileNotFoundError: nothing.csv is not on this machine and has no address to download it from. Searched: ...
    """
    places = [folder / relative_path for folder in folders()]
    for place in places:
        if place.is_file():
            _require_checksum(place.read_bytes(), sha256, str(place))
            return place
    if url is None:
        raise FileNotFoundError(_advice(relative_path, places, "has no address to download it from"))
    try:
        content = _download(url, member)
    except (OSError, HTTPException, zipfile.BadZipFile, KeyError) as error:
        reason = f"the download from {url} failed ({type(error).__name__}: {error})"
        raise FileNotFoundError(_advice(relative_path, places, reason)) from error
    _require_checksum(content, sha256, url)
    _store(content, places[-1])
    return places[-1]


def _download(url: str, member: str | None) -> bytes:
    with urlopen(url, timeout=TIMEOUT) as response:
        content = response.read()
    if member is None:
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(member)


def _store(content: bytes, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as part:
            part.write(content)
        # Another process sees the whole file or none.
        os.replace(name, place)
    finally:
        Path(name).unlink(missing_ok=True)


def _require_checksum(content: bytes, sha256: str | None, where: str) -> None:
    if sha256 is None:
        return
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{where} must have sha256 {sha256}, got {found}: it is not the file that was checked")


def _advice(relative_path: str, places: list[Path], reason: str) -> str:
    searched = ", ".join(str(place) for place in places)
    return (
        f"{relative_path} is not on this machine and {reason}. Searched: {searched}. Either put the file at the last of these, "
        f"or set PRODSSM_DATA to a folder that holds {relative_path}, or repeat the call where the download can succeed"
    )
