"""What a site needs before it goes out: titles, descriptions, addresses, and its size."""

from pathlib import Path
from urllib.parse import urljoin

import pytest
import yaml

CONFIG = Path(__file__).parents[2] / "_config.yml"
LARGEST = 30_000_000  # bytes of the whole site


def test_every_page_says_what_it_is(site):
    """Title and description are its own, its address is in the site map, its language is named."""
    base = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["html"]["baseurl"]
    sitemap = (site / "sitemap.xml").read_text(encoding="utf-8")
    owners = {}
    problems = []
    pages = [*site.glob("notebooks/*.html"), *site.glob("book/*.html")]
    for path in pages:
        soup = pytest.importorskip("bs4").BeautifulSoup(path.read_bytes(), "lxml")
        name = str(path.relative_to(site))
        canonical = soup.select_one("link[rel=canonical]")
        description = soup.select_one("meta[name=description]")
        texts = {
            "title": soup.title.string,
            "description": description and description["content"],
        }
        for kind, text in texts.items():
            if not text or text in owners:
                owner = owners.get(text, "none")
                problems.append(f"{name}: {kind} {text!r} is that of {owner}")
            owners[text] = name
        if soup.html.get("lang") != "en" or len(soup.select("article h1")) != 1:
            problems.append(f"{name}: language or heading")
        address = urljoin(base, name)
        is_listed = f"<loc>{address}<" in sitemap
        if canonical is None or canonical["href"] != address or not is_listed:
            problems.append(f"{name}: canonical address or site map")
    assert pages
    assert not problems, "\n".join(problems)


def test_the_site_is_small(site):
    sizes = [path.stat().st_size for path in site.rglob("*") if path.is_file()]
    print(f"{sum(sizes) / 2**20:.1f} MB")
    assert sum(sizes) <= LARGEST
