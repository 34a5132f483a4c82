// How Sphinx's search ranks what it finds. A question's rare words count most. A word in a heading
// counts three times, in the text once, and a page is opened at the heading that holds most of them.

// A page that was opened as a file may not read others, so its results come without an excerpt
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

const ASKING = new Set(["how", "what", "when", "where", "which", "who", "why"]); // hardly a topic
const asList = (found) => (found === undefined ? [] : found.length === undefined ? [found] : found);

/** The words asked for, stemmed as the index is, each with the weight of its rarity. */
function askedFor(index) {
  const query = new URLSearchParams(window.location.search).get("q") ?? "";
  const [, words] = Search._parseQuery(query);
  const pages = index.docnames.length;
  return [...words].map((word) => {
    const [text, titles] = [asList(index.terms[word]), asList(index.titleterms[word])];
    const rarity = Math.log(1 + pages / (1 + text.length));
    return { word, text, titles, weight: ASKING.has(word) ? rarity / 4 : rarity };
  });
}

/** The heading of a page that holds most of the words: its title, its anchor, and how much. */
function bestHeading(index, file, asked) {
  const stemmer = new Stemmer();
  let best = { value: 0 };
  for (const [title, places] of Object.entries(index.alltitles)) {
    const place = places.find(([page]) => page === file);
    if (!place) continue;
    const own = index.titles[file].endsWith(title); // the page's title, not a heading in it
    const stems = new Set(splitQuery(title.toLowerCase()).map((word) => stemmer.stemWord(word)));
    const held = asked.filter(({ word }) => stems.has(word));
    const value = held.reduce((sum, { weight }) => sum + weight, 0) / (1 + stems.size / 50) + (own ? 0.1 : 0);
    if (held.length && value > best.value) best = { value, title, anchor: own ? null : place[1] };
  }
  return best;
}

var Scorer = {
  score: (result) => {
    const index = Search._index;
    const file = index.docnames.indexOf(result[0]);
    const asked = askedFor(index);
    let score = result[4] / 15 + (result[0].startsWith("notebooks/") ? 1 : 0);
    for (const { text, titles, weight } of asked) {
      score += weight * ((titles.includes(file) ? 3 : 0) + (text.includes(file) ? 1 : 0));
    }
    const heading = bestHeading(index, file, asked);
    if (!result[2] && heading.anchor) {
      const plain = heading.title.replace(/\\text\{(\w+)\}/g, "$1"); // from a formula
      result[1] = `${index.titles[file]} > ${plain}`;
      result[2] = `#${heading.anchor}`;
    }
    return score + 3 * heading.value;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
