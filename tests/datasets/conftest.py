"""Tests of data sets use what is on the machine, never the network, and are skipped where there is nothing."""

from urllib.error import URLError

import pytest

from prodssm.datasets import locate


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Only addresses of local files are opened."""
    urlopen = locate.urlopen

    def open_local(url, **options):
        if not url.startswith("file:"):
            raise URLError("tests do not use the network")
        return urlopen(url, **options)

    monkeypatch.setattr(locate, "urlopen", open_local)


@pytest.fixture
def or_skip():
    """Call a loader, and skip the test if this machine does not have the data."""

    def call(load, *arguments, **options):
        try:
            return load(*arguments, **options)
        except FileNotFoundError as error:
            pytest.skip(f"needs data: {error}")

    return call
