"""axe-core finds enough contrast on every page in the dark; a file of its own: it takes minutes."""

from axe import CONTRAST, findings_on_all_pages


def test_axe_finds_enough_contrast_in_the_dark(site, address, browser):
    rules = {"wide": CONTRAST}
    problems = findings_on_all_pages(site, address, browser, "dark", rules)
    assert not problems, f"{len(problems)} findings\n" + "\n".join(problems)
