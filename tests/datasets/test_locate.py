"""A file is taken from the first folder that has it, or fetched whole and checked, or the error says what to do."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

import prodssm
from prodssm.datasets import find, locate

CONTENT = b"1 2\n3 4\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "toy/data.txt"


@pytest.fixture
def named(tmp_path, monkeypatch):
    """The folder that the user names."""
    monkeypatch.setenv("PRODSSM_DATA", str(tmp_path / "named"))
    return tmp_path / "named"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prodssm"


@pytest.fixture
def source(tmp_path):
    """A public source of the file."""
    return put(tmp_path / "source.txt").as_uri()


def put(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_folders_are_the_named_one_then_beside_the_checkout_then_the_cache(named, cache):
    checkout = Path(prodssm.__file__).resolve().parent.parent
    assert locate.folders() == [named, checkout.parent / "shared" / "data", cache]


def test_without_variables_the_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("PRODSSM_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert len(locate.folders()) == 2
    assert locate.folders()[-1] == Path.home() / ".cache" / "prodssm"


def test_the_named_folder_comes_before_the_cache(named, cache):
    put(cache / NAME)
    assert find(NAME, sha256=SHA256) == cache / NAME
    put(named / NAME)
    assert find(NAME, sha256=SHA256) == named / NAME


def test_a_download_goes_into_the_cache_and_happens_once(named, cache, source):
    assert find(NAME, url=source, sha256=SHA256) == cache / NAME
    assert (cache / NAME).read_bytes() == CONTENT
    assert files_in(cache) == [cache / NAME]
    assert find(NAME, url="file:///nowhere", sha256=SHA256) == cache / NAME


def test_a_member_of_an_archive_is_unpacked_and_checked(cache, tmp_path):
    archive = tmp_path / "source.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("folder/data.txt", CONTENT)
    found = find(NAME, url=archive.as_uri(), sha256=SHA256, member="folder/data.txt")
    assert found.read_bytes() == CONTENT


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing(cache, source):
    with pytest.raises(ValueError, match=f"sha256 {'0' * 64}, got {SHA256}"):
        find(NAME, url=source, sha256="0" * 64)
    assert files_in(cache) == []


def test_a_file_on_the_machine_with_another_checksum_is_refused(named, source):
    put(named / NAME, b"version https://git-lfs")
    with pytest.raises(ValueError, match="must have sha256"):
        find(NAME, url=source, sha256=SHA256)


def test_a_download_that_breaks_off_leaves_no_half_file(cache, source, monkeypatch):
    def break_off(response):
        raise TimeoutError("the line is dead")

    monkeypatch.setattr("urllib.response.addinfourl.read", break_off, raising=False)
    with pytest.raises(FileNotFoundError, match="the line is dead"):
        find(NAME, url=source, sha256=SHA256)
    assert files_in(cache) == []


def test_a_full_disk_leaves_no_half_file(cache, source, monkeypatch):
    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        find(NAME, url=source, sha256=SHA256)
    assert files_in(cache) == []


def test_a_page_instead_of_an_archive_counts_as_a_failed_download(cache, source):
    with pytest.raises(FileNotFoundError, match="BadZipFile"):
        find(NAME, url=source, sha256=SHA256, member="folder/data.txt")


@pytest.mark.parametrize("url", [None, "file:///nowhere/data.txt", "https://example.org/data.txt"])
def test_the_error_says_where_it_looked_and_what_to_do(url, named, cache):
    with pytest.raises(FileNotFoundError) as raised:
        find(NAME, url=url)
    for words in (NAME, "PRODSSM_DATA", str(named / NAME), str(cache / NAME), url or "no address"):
        assert words in str(raised.value)
    assert files_in(cache) == []
