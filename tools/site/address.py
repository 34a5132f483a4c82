"""The address of the repository, which `_config.yml` sets, wherever a page names it."""

from sphinx.application import Sphinx

PLACEHOLDER = "{{ repository }}"


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the placeholder in a page's source."""
    source[0] = source[0].replace(PLACEHOLDER, app.config.html_theme_options["repository_url"])
