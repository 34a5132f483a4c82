"""The system's Chromium, which prints the PDF and in which the tests open the pages."""

import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REMEDY = f"install one of {', '.join(BROWSERS)}"
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> str | None:
    """Return the path of the first browser that is installed."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    return None
