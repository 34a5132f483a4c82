// The search: sections, terms and names, ranked by MiniSearch, as one types and on a page of its own.
// Index and library are scripts that load when somebody searches; so they load from a file, too.

"use strict";

const bookSearch = {}; // what `search_data.js` brings: pages, entries, words, Stemmer

(() => {
  const home = document.currentScript.src;
  const root = new URL("../", home);
  const SHOWN = { suggestions: 8, results: 30 };
  const EMPTY = new Set(
    `a about actually all always am an and are as at be but by can could did do does doesn don for from get
    has have how i if in into is isn it its just me my no not of on or our should so such than that
    the their then there these they this to use used using very was we were what when where which
    while who why will with would you your`.split(/\s+/),
  );
  const ASIDE = new Set(["Exercises", "Sources", "What to remember"]);

  /** Load a script that lies beside this one. */
  function load(name) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(`${name}.js`, home);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${name}.js cannot be loaded`));
      document.head.append(script);
    });
  }

  // Words: `d_k` is one, `label_smoothing` is three, W^O is w_o, 1e9 is 10^9, and a warm-up a warmup
  function split(text) {
    const plain = text
      .toLowerCase()
      .replace(/\bwarm(?:s|ed|ing)?[- ]up/g, "warmup")
      .replace(/\b1e(?=\d)/g, "10^")
      .replace(/[\\{}$]/g, " ")
      .replace(/\s*[_^]\s*/g, "_");
    const found = plain.match(/[\p{L}\p{N}]+(?:_[\p{L}\p{N}]+)*/gu) ?? [];
    return found.flatMap((word) => (/^[^_]{2,}_/.test(word) ? [word, ...word.split("_")] : [word]));
  }

  const stems = new Map(); // there are 60,000 words in the book, and few different ones
  function stemOf(word) {
    if (!/^[a-z]+$/.test(word)) return word;
    if (!stems.has(word)) stems.set(word, new bookSearch.Stemmer().stemWord(word));
    return stems.get(word);
  }

  let index;
  /** The index, made once. */
  function prepared() {
    index ??= Promise.all([load("minisearch/minisearch"), load("search_data")]).then(() => {
      const made = new MiniSearch({
        fields: ["title", "chapter", "text"],
        tokenize: split,
        processTerm: (word) => (EMPTY.has(word) ? null : stemOf(word)),
      });
      const { entries, pages } = bookSearch;
      made.addAll(entries.map((entry, id) => ({ id, chapter: pages[entry.page].title, ...entry })));
      bookSearch.meant = Object.entries(bookSearch.words)
        .map(([asked, meant]) => [split(asked).map(stemOf), split(meant).map(stemOf)])
        .sort(([a], [b]) => b.length - a.length);
      return made;
    });
    return index;
  }

  /** What a question asks for: each idea with its own words and those that the book says for it. */
  function ideas(question) {
    const asked = split(question);
    let rest = asked.map(stemOf);
    const found = [];
    for (const [words, also] of bookSearch.meant) {
      const start = rest.findIndex((_, i) => words.every((word, j) => rest[i + j] === word));
      if (start < 0) continue;
      found.push({ words, also: also.filter((word) => !EMPTY.has(word)) });
      rest = [...rest.slice(0, start), null, ...rest.slice(start + words.length)];
    }
    for (const word of rest) if (word !== null && !EMPTY.has(word)) found.push({ words: [word], also: [] });
    return found;
  }

  /** Find entries; the last word may be unfinished. */
  async function find(question, typing = false) {
    const made = await prepared();
    const asked = ideas(question);
    if (!asked.length) return [];
    const last = stemOf(split(question).at(-1) ?? "");
    const weights = new Map();
    for (const { words, also } of asked) {
      for (const word of also) if (!weights.has(word)) weights.set(word, 0.7);
      for (const word of words) weights.set(word, 1);
    }
    const search = (fuzzy) =>
      made.search(
        { combineWith: "OR", queries: [...weights.keys()] },
        {
          tokenize: (text) => [text],
          processTerm: (word) => word,
          boost: { title: 4, chapter: 1.2 },
          boostTerm: (word) => weights.get(word),
          prefix: (word) => word.length > 4 || (typing && word.length > 1 && word === last),
          fuzzy,
          weights: { prefix: 0.3, fuzzy: 0.1 },
        },
      );
    const exact = search(false);
    const results = exact.length ? exact : search(0.25);
    const own = asked.flatMap(({ words }) => words);
    const ranked = results.map(({ id, score, queryTerms, terms }) => {
      const entry = bookSearch.entries[id];
      const held = new Set(queryTerms);
      const titled = new Set(split(entry.title).map(stemOf));
      let covered = 0;
      let named = 1;
      for (const { words, also } of asked) {
        covered += Math.max(share(words, held), 0.85 * share(also, held)) / asked.length;
        named += Math.max(share(words, titled), share(also, titled)) / asked.length;
      }
      // MiniSearch multiplies by the number of words that match, but several may mean the same
      const value = (score / queryTerms.length) * covered ** 3 * named * standing(entry);
      return { entry, terms: terms.filter((term) => own.some((word) => term.startsWith(word))), score: value };
    });
    return ranked.sort((a, b) => b.score - a.score);
  }

  const share = (words, held) => words.filter((word) => held.has(word)).length / (words.length || 1);

  /** Sections come first; what stands aside, and a list of names, later. */
  function standing({ kind, title, number }) {
    if (kind === "name" || ASIDE.has(title)) return 0.35;
    return kind === "section" && number ? 1 : 0.7;
  }

  const address = ({ page, anchor }) => bookSearch.pages[page].address + (anchor ? `#${anchor}` : "");

  function context({ kind, page, title }) {
    if (kind === "term") return "Glossary";
    if (kind === "name") return "API";
    const chapter = bookSearch.pages[page].title;
    return chapter === title ? "" : chapter;
  }

  /** The piece of a text that holds most of the words. */
  function excerpt({ kind, text }, terms, length = 200) {
    if (kind === "term") return text.split(" German: ")[0];
    const held = new Set(terms);
    const sentences = text.match(/[^.!?]+[.!?]*\s*/g) ?? [text];
    const counts = sentences.map((sentence) => new Set(split(sentence).map(stemOf).filter((word) => held.has(word))).size);
    let start = counts.indexOf(Math.max(...counts));
    let piece = "";
    while (start < sentences.length && piece.length < length) piece += sentences[start++];
    return piece.length > 1.6 * length ? `${piece.slice(0, 1.5 * length).replace(/\s\S*$/, "")} …` : piece.trim();
  }

  /** A text whose words that were asked for are marked. */
  function marked(text, terms) {
    const held = new Set(terms);
    const pieces = text.split(/([\p{L}\p{N}_^]+)/u);
    return pieces.map((piece) => {
      if (!split(piece).some((word) => held.has(stemOf(word)))) return piece;
      return Object.assign(document.createElement("mark"), { textContent: piece });
    });
  }

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    made.className = className;
    made.append(...children);
    return made;
  }

  /** One result as an item of a list. */
  function item({ entry, terms }, short) {
    const link = element("a", "", ...(entry.number ? [element("span", "number", `${entry.number} `)] : []), ...marked(entry.title, terms));
    link.href = new URL(address(entry), root);
    const made = element("li", entry.kind, link);
    if (context(entry)) made.append(element("span", "context", context(entry)));
    const text = short && entry.kind !== "term" ? "" : excerpt(entry, terms);
    if (text) made.append(element("p", "", ...marked(text, terms)));
    return made;
  }

  /** Keep a list below a field up to date with what is typed there. */
  function answer(form, list, limit, short) {
    const field = form.querySelector("input");
    const said = element("p", "said");
    said.setAttribute("role", "status");
    list.before(said);
    let current;
    const update = async () => {
      const question = field.value.trim();
      current = question;
      const found = question ? await find(question, true).catch((error) => (console.error(error), null)) : [];
      if (current !== question) return;
      const all = found ?? [];
      list.replaceChildren(...all.slice(0, limit).map((result) => item(result, short)));
      list.hidden = !all.length;
      if (!found) said.textContent = "The index cannot be loaded.";
      else if (!question) said.textContent = "";
      else if (!all.length) said.textContent = "Nothing found. Try fewer words, or another one.";
      else said.textContent = short ? "" : `${Math.min(all.length, limit)} places`;
    };
    field.addEventListener("input", update);
    field.addEventListener("focus", () => prepared().catch(() => {}));
    return update;
  }

  // Arrow keys go from the field through the list and back
  function walk(form, list) {
    const field = form.querySelector("input");
    form.parentElement.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      const stops = [field, ...list.querySelectorAll("a")];
      const place = stops.indexOf(document.activeElement);
      if (place < 0) return;
      event.preventDefault();
      stops[(place + step + stops.length) % stops.length].focus();
    });
  }

  function start() {
    for (const form of document.querySelectorAll("form.bd-search")) {
      const page = form.closest(".book-search-page");
      const list = page?.querySelector("#search-results") ?? element("ul", "book-found suggestions");
      if (!page) form.after(list);
      list.hidden = true;
      const update = answer(form, list, page ? SHOWN.results : SHOWN.suggestions, !page);
      walk(form, list);
      if (!page) continue;
      form.querySelector("input").value = new URLSearchParams(location.search).get("q") ?? "";
      update();
    }
  }

  Object.assign(bookSearch, { find, address });
  start();
})();
