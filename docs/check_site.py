"""Checks a built site: python docs/check_site.py site. Every link within it leads somewhere, and nothing is fetched.

Prints what is wrong, a line each, and ends with status 1; else with a count of pages and links.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

#: What a browser fetches without being asked, by tag and attribute.
FETCHED = {("img", "src"), ("script", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("use", "href")}
FETCHING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "manifest"}
REMOTE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.I)


class Page(HTMLParser):
    """Names that can be linked to, links, and what the page fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            fetching = tag == "link" and name == "href" and FETCHING_LINKS & set(given.get("rel", "").split())
            if (tag, name) in FETCHED or fetching:
                self.fetched.append(value)
            elif name == "style":
                self.fetched += urls(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def urls(css: str) -> list[str]:
    """What a style sheet fetches."""
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)", css) + re.findall(r"@import\s+['\"]([^'\"]+)", css)
    return [url for url in found if not url.startswith("data:")]


def faults(site: Path) -> tuple[list[str], int, int]:
    """What is wrong, numbers of pages and of links within the site."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong, links = [], 0
    for path, page in pages.items():
        for target in [*page.links, *page.fetched]:
            where = f"{path.relative_to(site.resolve())}: {target}"
            if REMOTE.match(target):
                if target in page.fetched:
                    wrong.append(f"{where} is fetched from a network")
                continue
            if re.match(r"[a-z]+:", target):  # mailto:, data:
                continue
            links += 1
            file, _, anchor = unquote(target.partition("?")[0]).partition("#")
            led = (path.parent / file).resolve() if file else path
            if not led.is_file():
                wrong.append(f"{where} leads nowhere")
            elif anchor and led in pages and anchor not in pages[led].names:
                wrong.append(f"{where} names no part of that page")
    for path in site.rglob("*.css"):
        for url in urls(path.read_text(encoding="utf-8")):
            if REMOTE.match(url):
                wrong.append(f"{path.relative_to(site)}: {url} is fetched from a network")
            elif not (path.parent / url.partition("?")[0].partition("#")[0]).is_file():
                wrong.append(f"{path.relative_to(site)}: {url} leads nowhere")
    return wrong, len(pages), links


if __name__ == "__main__":
    found, pages, links = faults(Path(sys.argv[1]))
    for line in found:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"{pages} pages, {links} links within the site, {len(found)} faults\n")
    sys.exit(bool(found))
