"""What the suites of sktime and skpro return."""


def require_passed(results, least):
    """Raise with the failures of a suite, or if it ran fewer checks than it has."""
    failures = [f"{name}: {found!r}" for name, found in results.items() if found != "PASSED"]
    assert not failures, "\n".join(failures)
    assert len(results) >= least
