"""The documents of the repository, and the blocks of code in them."""

import re
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import jax
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# Pages of the site that scripts/site_hooks.py makes of files of the root.
GENERATED = {"changelog.md", "contributing.md", "security.md", "citation.md", "licence.md"}
BLOCK = re.compile(r"(?:^<!-- needs (?P<needs>\w+) -->\n)?^```(?P<language>\w+).*\n(?P<code>(?s:.*?))^```$", re.M)


class Block(NamedTuple):
    """A block of code of a page.

    Attributes:
        page: Where it stands.
        language: As the fence names it.
        code: What it says.
        needs: Another library that it shows, named by a comment in front of it; it is compiled only where that is missing.
    """

    page: Path
    language: str
    code: str
    needs: str | None

    def run(self):
        """Compile it, and run it in a namespace of its own; warnings of a library that it needs are not ours."""
        code = compile(self.code, f"<{self.page.name}>", "exec")
        if self.needs is not None and find_spec(self.needs) is None:
            return
        with promotion_of_users(), warnings.catch_warnings():
            if self.needs is not None:
                warnings.simplefilter("ignore")
            exec(code, {})


@contextmanager
def promotion_of_users():
    """No strict promotion, which the optimiser does not know, in any thread: contexts of JAX are those of one thread."""
    settings = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def blocks(page, language="python"):
    """The blocks of a page in a language, in their order."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(page, each["language"], each["code"], each["needs"]) for each in found if each["language"] == language]


def navigation():
    """Pages that the navigation of the site names."""

    def leaves(entry):
        if isinstance(entry, str):
            yield entry
        else:
            for each in entry if isinstance(entry, list) else entry.values():
                yield from leaves(each)

    return list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
