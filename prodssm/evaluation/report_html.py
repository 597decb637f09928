"""Elements of a page: escaped by construction, and every number with its exact value beside the rounded text."""

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
UNIT = re.compile(r"^(?P<name>.*\S)\s*(?:\((?P<round>[^()]+)\)|\[(?P<square>[^\[\]]+)\])$|^(?P<of>.*\S) in (?P<plain>\S+)$")


class Markup(str):
    """Text that is HTML already; any other text is escaped before it enters a page."""

    __slots__ = ()


def escaped(value: Any) -> Markup:
    """A value as HTML."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(*parts: Any, between: str = "") -> Markup:
    """Parts one after the other."""
    return Markup(between.join(escaped(part) for part in parts))


def say(sentence: str, **parts: Any) -> Markup:
    """A sentence with parts by name.

    Example:
        >>> say("{few} < {many}", few=Markup("<b>1</b>"), many="<2>")
        '<b>1</b> &lt; &lt;2&gt;'
    """
    return Markup(html.escape(sentence).format(**{name: escaped(part) for name, part in parts.items()}))


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element; `class_` is the attribute class, `data_value` is data-value, None is left out and True has no value.

    Example:
        >>> tag("p", "1 < 2", class_="note", hidden=True)
        '<p class="note" hidden>1 &lt; 2</p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    said = "".join(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"' for key, value in given.items())
    return Markup(f"<{name}{said}>{join(*children)}</{name}>")


# ---------------------------------------------------------------- numbers


def number(
    value: Any, *, source: str | None = None, key: str | None = None, digits: int = 3, unit: str | None = None
) -> Markup:
    """A number with so many significant digits.

    Args:
        value: The number.
        source: The Python expression of the model's attribute that it is.
        key: Another name for it, if it is none.
        digits: Significant ones; of more than four, zeros at the end are left out.
        unit: Follows the number.
    """
    text = significant(value, digits)
    if digits > 4 and "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return _valued(value, text if unit is None else f"{text} {unit}", source, key, "number")


def count(value: Any, *, source: str | None = None, key: str | None = None) -> Markup:
    """A whole number."""
    return _valued(value, f"{int(value):,}", source, key, "count")


def percent(value: Any, *, source: str | None = None, key: str | None = None) -> Markup:
    """A fraction as a percentage."""
    return _valued(value, f"{percentage(value)} %" if math.isfinite(value) else DASH, source, key, "percent")


def words(text: Any, source: str) -> Markup:
    """The model's own words, with the Python expression that has them."""
    return tag("span", text, class_="words", data_words=source)


def significant(value: Any, digits: int = 3) -> str:
    """A number with so many significant digits, in powers of ten only if it is very large or small.

    Example:
        >>> [significant(each) for each in (0.04999, 1234.5, -2e-9, 0)]
        ['0.0500', '1,234', '−2.00e−9', '0']
    """
    value = float(value)
    if not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    if -5 <= int(power) < 7:
        return f"{value:,.{max(digits - 1 - int(power), 0)}f}".replace("-", MINUS)
    return f"{mantissa}e{int(power)}".replace("-", MINUS)


def percentage(value: float) -> str:
    """A fraction in percent, without a decimal unless it would look like none or all.

    Example:
        >>> [percentage(each) for each in (0.943, 0.998, 1.0, 0.0004)]
        ['94', '99.8', '100', '0.04']
    """
    found, digits = 100 * float(value), 0
    while digits < 4 and (text := float(f"{found:.{digits}f}")) in (0.0, 100.0) and text != found:
        digits += 1
    return f"{found:,.{digits}f}".replace("-", MINUS)


def _valued(value: Any, text: str, source: str | None, key: str | None, kind: str) -> Markup:
    exact = str(int(value)) if kind == "count" else repr(float(value))
    return tag("span", text, class_="n", data_value=exact, data_kind=kind, data_source=source, data_key=key, title=source)


# ---------------------------------------------------------------- names


def unit_of(name: str) -> str | None:
    """The unit in the name of a column, such as "level (m)", "level [m]" or "level in m".

    Example:
        >>> [unit_of(name) for name in ("level (m)", "flow [l/s]", "pump in V", "y0")]
        ['m', 'l/s', 'V', None]
    """
    found = UNIT.match(name)
    return None if found is None else found["round"] or found["square"] or found["plain"]


def name_of(name: str) -> str:
    """The name of a column without its unit."""
    found = UNIT.match(name)
    return name if found is None else found["name"] or found["of"]


def called(name: str) -> Markup:
    """A name that the user has given."""
    return tag("span", name, class_="name")


def listed(names: Sequence[str], most: int = 4) -> Markup:
    """Names in a sentence; of many only the first."""
    shown = [called(name) for name in (names if len(names) <= most else names[: most - 1])]
    if len(names) > most:
        shown.append(join(count(len(names) - most + 1), " more"))
    return shown[0] if len(shown) == 1 else join(join(*shown[:-1], between=", "), " and ", shown[-1])


def plural(number: int, one: str, many: str | None = None) -> Markup:
    """A count with its noun."""
    return join(count(number), " ", one if number == 1 else many or f"{one}s")


def steps(low: int, high: int) -> Markup:
    """A range of horizons."""
    return count(low) if low == high else join(count(low), DASH, count(high))


# ---------------------------------------------------------------- larger elements


def table(caption: Any, columns: Sequence[Any], rows: Iterable[Sequence[Any]], *, class_: str | None = None) -> Markup:
    """A table whose first column names its rows."""
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in columns)))
    body = [tag("tr", tag("th", first, scope="row"), *(tag("td", each) for each in rest)) for first, *rest in rows]
    found = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_=class_)
    return tag("div", found, class_="scroll", tabindex="0", role="region", aria_label=plain_text(caption))


def plain_text(content: Any) -> str:
    """The text of an element, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", escaped(content)))


def figure(name: str, label: str, caption: Any, *controls: Any) -> Markup:
    """A place that the script of the page draws into; a browser without scripts leaves it out."""
    row = tag("div", *controls, class_="controls") if controls else join()
    place = tag("div", class_="plot", data_figure=name, data_label=label)
    return tag("figure", row, place, tag("figcaption", caption), id=f"figure-{name}", class_="js")


def select(choice: str, label: str, options: Sequence[str]) -> Markup:
    """A picker of one of several views."""
    found = [tag("option", each, value=n) for n, each in enumerate(options)]
    return tag("label", tag("span", label), tag("select", *found, data_choice=choice), class_="pick")


def section(anchor: str, title: str, *children: Any) -> Markup:
    """A section with its heading."""
    return tag("section", tag("h2", title, id=anchor), *children, aria_labelledby=anchor)


def details(summary: Any, *children: Any) -> Markup:
    """What is of interest to some."""
    return tag("details", tag("summary", summary), *children)


def paragraph(*children: Any, class_: str | None = None) -> Markup:
    """A paragraph of sentences."""
    return tag("p", join(*children, between=" "), class_=class_)
