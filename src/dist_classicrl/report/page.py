"""Pages of HTML that need nothing but themselves: no script, and nothing from elsewhere."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dist_classicrl import _html
from dist_classicrl._files import whole_file
from dist_classicrl.checks import checked_path
from dist_classicrl.errors import PlotError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0;
  --head: #f3f5f7; --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6e9ed; --soft: #9aa5b1;
  --line: #323a44; --head: #1e242c; --mark: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 3rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 0.3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
p { margin: 0.4rem 0; }
.soft { color: var(--soft); }
nav { margin: 1rem 0 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; }
a { color: var(--mark); }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.28rem 0.9rem 0.28rem 0.5rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th { font-weight: 600; }
thead th { background: var(--head); white-space: nowrap; }
td { min-width: 4rem; }
td:first-child { white-space: nowrap; }
figure { margin: 0.6rem 0; background: #ffffff; border-radius: 6px; border: 1px solid var(--line); }
figure svg { display: block; width: 100%; min-width: 38rem; height: auto; }
@media (prefers-color-scheme: dark) { figure { background: none; }
  figure svg { filter: invert(0.91) hue-rotate(180deg); } }
@media (max-width: 40rem) { figure svg { min-width: 100%; }
  th, td { padding-right: 0.4rem; min-width: 0; }
  thead th { white-space: normal; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; } }
"""


@dataclass
class Section:
    """A part of a page under a heading of its own; each `add_` method returns the section.

    Attributes
    ----------
    title : str
    """

    title: str
    _parts: list[str] = field(default_factory=list, repr=False)

    def add_text(self, text: str) -> Section:
        """Add a paragraph of plain text."""
        self._parts.append(f"<p>{escape(text)}</p>")
        return self

    def add_table(self, headers: Sequence[object], rows: Iterable[Sequence[object]]) -> Section:
        """Add a table; with no `headers`, the first cell of each row is what the others are about."""
        self._parts.append(f'<div class="wide" tabindex="0">{_html.table(headers, rows)}</div>')
        return self

    def add_figure(self, figure: Figure, described: str) -> Section:
        """Add a figure of matplotlib as SVG; `described` is for those who do not see it."""
        self._parts.append(f'<figure class="wide" tabindex="0">{_svg(figure, described)}</figure>')
        return self

    @property
    def html(self) -> str:
        """The section without its heading."""
        return "\n".join(self._parts)


@dataclass
class Page:
    """A page: ``Page(title).add(section).save("page.html")``.

    Attributes
    ----------
    title : str
    subtitle : str
        A line below it.
    """

    title: str
    subtitle: str = ""
    sections: list[Section] = field(default_factory=list)

    def add(self, *sections: Section) -> Page:
        """Add sections to the end, and return the page."""
        self.sections += sections
        return self

    @property
    def html(self) -> str:
        """The page, which is all of a file."""
        title = escape(self.title)
        links = "".join(
            f'<a href="#s{number}">{escape(each.title)}</a>' for number, each in enumerate(self.sections, 1)
        )
        parts = "\n".join(
            f'<section id="s{number}"><h2>{escape(each.title)}</h2>\n{each.html}</section>'
            for number, each in enumerate(self.sections, 1)
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header><h1>{title}</h1>\n"
            f'<p class="soft">{escape(self.subtitle)}</p>\n<nav>{links}</nav></header>\n'
            f"<main>\n{parts}\n</main>\n</body>\n</html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to `path`, in a folder that is made if it is not there.

        Raises
        ------
        PlotError
            If the name does not end in .html, or the file cannot be written.
        """
        target = check_target(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as file:
                file.write(self.html.encode(errors="replace"))
        except OSError as error:
            raise PlotError(f"The page cannot be written to {target}: {error}. Give another path.") from error
        return target


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a page can have that name; see `Page.save`."""
    target = Path(checked_path("path", path))
    if target.suffix.lower() not in (".html", ".htm"):
        raise PlotError(
            f"A page cannot be written to {target}: the name must end in .html or .htm. Give, for instance, "
            f"{target.with_suffix('.html') if target.name else 'page.html'}."
        )
    return target


def _svg(figure: Figure, described: str) -> str:
    """Return a figure as an element of HTML: no prolog, no metadata, as wide as there is room."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    label = f'<svg role="img" aria-label="{escape(described)}"'
    return re.sub(r'^<svg([^>]*?) width="[^"]*"', lambda found: label + found[1], text, count=1).replace(
        f' height="{figure.get_figheight() * 72:g}pt"', "", 1
    )
