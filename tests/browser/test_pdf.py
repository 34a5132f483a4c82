"""The PDFs of four pages: numbers, running heads, outline and links; and what is in which."""

from dataclasses import replace

import pytest

pypdf = pytest.importorskip("pypdf")
pdf = pytest.importorskip("tools.pdf")
PARTS = {
    "The Annotated Transformer, rebuilt": "",
    "How to read this book": "Start",
    "2 Before attention": "The model",
}


@pytest.fixture(scope="module")
def printed(site, tmp_path_factory):
    """The volume that has the first page, one of prose and a chapter."""
    work = tmp_path_factory.mktemp("pdf")
    pages = [
        replace(page, part=PARTS.get(page.title, page.part))
        for page in pdf.read_pages()
        if page.title in {*PARTS, "Notation"}
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["pdf"])
        patch.setattr(pdf, "read_pages", lambda: pages)
        patch.setattr(pdf, "WORK", work / "parts")
        pdf.main()
    beside = pypdf.PdfReader(work / "annotated-transformer-manual.pdf")
    assert "Notation" in beside.pages[2].extract_text()
    return pypdf.PdfReader(work / "annotated-transformer.pdf")


@pytest.fixture(scope="module")
def outline(printed):
    """The page of each title in the outline, counted from 1."""
    places = {}
    waiting = list(printed.outline)
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, list):
            waiting += item
        else:
            places[item.title] = printed.get_destination_page_number(item) + 1
    return places


def test_each_sheet_has_its_number_and_its_chapter(printed, outline):
    """The numbers run on from part to part; a chapter's name stands at the head."""
    first = outline["The Annotated Transformer, rebuilt"]
    assert first == 3  # after title and contents
    for number, page in list(enumerate(printed.pages, start=1))[first - 1 :]:
        assert str(number) in page.extract_text().split()
    start = outline["2 Before attention"]
    for page in printed.pages[start:]:
        assert "2 Before attention" in page.extract_text()


def test_contents_and_outline_name_the_page_with_the_title(printed, outline):
    """Title by title: in the outline, beside it in the contents, on the page itself."""
    contents = " ".join(printed.pages[1].extract_text().split())
    for title in [*PARTS, "Three promises", "2.4 Recalling a word"]:
        number = outline[title]
        assert f"{title} {number}" in contents
        heading = title.removeprefix("2 ")
        assert heading in " ".join(printed.pages[number - 1].extract_text().split())


def test_links_lead_to_places_in_the_book_or_to_the_web(printed):
    """None is left that waits for its part; one from part to part leads there."""
    pages = [page.indirect_reference for page in printed.pages]
    leads_far = 0
    for number, page in enumerate(printed.pages):
        for annotation in page.get("/Annots", []):
            link = annotation.get_object()
            if "/Dest" in link:
                place = list.__getitem__(link["/Dest"], 0)  # itself, not the page
                leads_far += pages.index(place) > number + 8
            else:
                assert not link["/A"]["/URI"].startswith(pdf.BOOK)
    assert leads_far >= 5
