"""Examples of docstrings as code: our docstrings say `Example:`, and the parser of the site knows `Examples:`."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section before a docstring is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
