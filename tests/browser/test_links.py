"""Every link within the site leads somewhere: the file is there, and so is the anchor."""

from urllib.parse import unquote, urlsplit

import pytest


def read(path):
    """Return a page's links and anchors."""
    soup = pytest.importorskip("bs4").BeautifulSoup(path.read_bytes(), "lxml")
    links = [tag[name] for name in ("href", "src") for tag in soup.find_all(attrs={name: True})]
    anchors = {tag[name] for name in ("id", "name") for tag in soup.find_all(attrs={name: True})}
    return links, anchors


def test_links(site):
    """Follow each relative link of each page."""
    lost = site / "404.html"  # its links count from the root of the host
    found = [path for path in site.rglob("*.html") if path != lost]
    paths = [path for path in found if "_static" not in path.parts]
    contents = {path.resolve(): read(path) for path in paths}
    broken = []
    for path, (links, _) in contents.items():
        for link in links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in ("", "#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            _, anchors = contents.get(target, (None, None))
            there = target.exists() and (
                not parts.fragment or anchors is None or unquote(parts.fragment) in anchors
            )
            if not there:
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    assert len(contents) > 1 and not broken, "\n".join(broken)


def test_no_page_loads_from_elsewhere(site):
    """No script, style sheet, image or frame has another host's address; links may."""
    loads = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
    found = []
    for path in site.rglob("*.html"):
        soup = pytest.importorskip("bs4").BeautifulSoup(path.read_bytes(), "lxml")
        for tag, name in loads.items():
            for element in soup.find_all(tag, attrs={name: True}):
                if urlsplit(element[name]).netloc and element.get("rel") != ["canonical"]:
                    found.append(f"{path.relative_to(site)}: {element[name]}")
    assert not found, "\n".join(found)
