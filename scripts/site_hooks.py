"""What the documentation site does beyond its plugins: formulas as MathML, and pages of the repository's root.

Formulas are rendered when the site is built, so that it needs no network and no script.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Pages of the site that are files of the root. Their links are rewritten below.
TAKEN = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
DISPLAYED = re.compile(r"^\$\$(.+?)\$\$$", flags=re.M | re.S)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.S)
# Spellings that the converter does not know, or that the site's Markdown and GitHub's read differently.
SPELLINGS = {r"\cr": r"\\", r"\lbrace": r"\{", r"\rbrace": r"\}"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in the folder of the documentation."""
    for name, source in TAKEN.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for page, path in TAKEN.items():
            text = text.replace(f"]({path})", f"]({page})")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "licence.md", content=_quoted("Licence", "LICENSE")))
    files.append(File.generated(config, "citation.md", content=_quoted("Citation", "CITATION.cff")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Formulas on lines of their own as paragraphs of their own, which GitHub's Markdown does not ask for."""
    return DISPLAYED.sub(r"\n$$\n\1\n$$\n", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas of a page as MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2]), display=found[1] == "div"), content)


def mathml(formula: str, display: bool) -> str:
    """One formula; raises ValueError where a command was not understood."""
    for old, new in SPELLINGS.items():
        formula = formula.replace(old, new)
    result = convert(formula, display="block" if display else "inline")
    if unknown := re.findall(r"\\[A-Za-z]+", result):
        raise ValueError(f"the formula {formula!r} has commands that were not understood: {unknown}")
    return f'<div class="formula">{result}</div>' if display else result


def _quoted(title: str, name: str) -> str:
    return f"# {title}\n\n```text\n{(ROOT / name).read_text(encoding='utf-8')}```\n"
