"""Every link within the site leads somewhere: the file is there, and so is the anchor."""

from urllib.parse import unquote, urlsplit

import pytest


def read(path):
    """Return a page's links and anchors."""
    soup = pytest.importorskip("bs4").BeautifulSoup(path.read_bytes(), "lxml")
    links = attributes(soup, "href") + attributes(soup, "src")
    anchors = {*attributes(soup, "id"), *attributes(soup, "name")}
    return links, anchors


def attributes(soup, name):
    return [tag[name] for tag in soup.find_all(attrs={name: True})]


def test_links(site):
    contents = {}
    for path in site.rglob("*.html"):
        # Links of the page for wrong addresses count from the root of the host
        if path != site / "404.html" and "_static" not in path.parts:
            contents[path.resolve()] = read(path)
    broken = []
    for path, (links, _) in contents.items():
        for link in links:
            if leads_nowhere(link, path, contents):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    assert len(contents) > 1
    assert not broken, "\n".join(broken)


def leads_nowhere(link, path, contents):
    """True if a relative link of a page leads to no file, or to no anchor in it."""
    url = urlsplit(link)
    if url.scheme or url.netloc or link in ("", "#"):
        return False
    target = path
    if url.path:
        target = (path.parent / unquote(url.path)).resolve()
    if not target.exists():
        return True
    if not url.fragment or target not in contents:
        return False
    _, anchors = contents[target]
    return unquote(url.fragment) not in anchors


def test_no_page_loads_from_elsewhere(site):
    """No script, style sheet, image or frame has another host's address; links may."""
    loads = {
        "script": "src",
        "img": "src",
        "iframe": "src",
        "source": "src",
        "link": "href",
    }
    problems = []
    for path in site.rglob("*.html"):
        soup = pytest.importorskip("bs4").BeautifulSoup(path.read_bytes(), "lxml")
        for tag, name in loads.items():
            for element in soup.find_all(tag, attrs={name: True}):
                is_canonical = element.get("rel") == ["canonical"]
                if urlsplit(element[name]).netloc and not is_canonical:
                    problems.append(f"{path.relative_to(site)}: {element[name]}")
    assert not problems, "\n".join(problems)
