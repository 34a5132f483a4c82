// The second and the fourth view of "inside": what each part of a layer adds to the stream, and the units of its network.

"use strict";

(() => {
  const { make, percent } = bookFigures.translator;
  const { tile, scaleOf, norm, degrees, signed, most, sublayers, tokensOf, keysOf, bar, map, scrolling } = bookFigures.inside_parts;
  const STRONGEST = 12; // units of a network that are listed
  const FAINT = 0.3; // units are few: all but the weakest third have the strongest colour

  const chosen = ({ side, word }) => word[side];

  /** A layer at a position, read from below: `at` is {answer, place, link}. */
  function draw(at) {
    const { answer, place } = at;
    const t = chosen(place);
    const parts = sublayers(answer, place.side, place.layer);
    const scale = scaleOf(parts.flatMap(({ before, added, after }) => [before[t], added[t], after[t]]));
    const sections = parts.map((sublayer) => section(at, sublayer, t, scale));
    return [make("div", { class: "inside-layer" }, ...sections.reverse())];
  }

  /** One sub-layer: the stream, what is added to it, and the normalized sum; above them what did it. */
  function section(at, { part, words, inner, before, added, after }, t, scale) {
    const [x, y, z] = [before[t], added[t], after[t]];
    const sum = x.map((value, i) => value + y[i]);
    const vectors = [
      vector("the stream", x, scale, `length ${norm(x).toFixed(1)}`),
      make("span", { class: "inside-sign" }, "+"),
      vector("what it adds", y, scale, `length ${norm(y).toFixed(1)}, ${turned(x, y)}`),
      make("span", { class: "inside-sign" }, "→"),
      vector("sum, normalized", z, scale, `length ${norm(z).toFixed(1)}, turned by ${degrees(x, z).toFixed(0)}°`),
    ];
    if (at.config.pre_norm) vectors[4] = vector("sum", sum, scale, `length ${norm(sum).toFixed(1)}`);
    const inside = part === "network" ? firing(at, inner, t) : heads(at, part, inner, t);
    return make("section", { class: `inside-sublayer` },
      make("p", { class: "inside-words" }, words[0].toUpperCase() + words.slice(1)),
      make("div", {}, ...inside, make("div", { class: "inside-sum" }, ...vectors)));
  }

  function vector(name, x, scale, about) {
    return make("div", {}, tile(x, scale), make("p", {}, make("b", {}, name)), make("p", {}, about));
  }

  /** The angle between the stream and what is added, in words, too. */
  function turned(x, y) {
    const angle = degrees(x, y);
    const way = angle < 80 ? "along the stream" : angle > 100 ? "against the stream" : "across the stream";
    return `${way} (${angle.toFixed(0)}°)`;
  }

  /** The maps of all heads, each a link to its head. */
  function heads(at, part, { weights }, t) {
    const { answer, place } = at;
    const keys = keysOf(answer, place.side, part);
    const asker = tokensOf(answer, place.side)[t];
    const figures = Array.from({ length: at.config.heads }, (_, head) => {
      const row = weights[t][head];
      const s = most(row);
      return make("li", {}, at.link({ part, head }, map(weights, head, t), `Head ${head + 1}`), make("p", {}, `${asker} → ${keys[s]} ${percent(row[s])}`));
    });
    return [make("ol", { class: "inside-heads" }, ...figures)];
  }

  function firing(at, { hidden }, t) {
    const count = hidden[t].filter((value) => value > 0).length;
    const all = tile(hidden[t], scaleOf(hidden, FAINT));
    return [make("p", { class: "inside-firing" }, at.link({ part: "network", head: undefined }, all, `${count} of ${hidden[t].length} units fire`))];
  }

  function say({ answer, place }) {
    const t = chosen(place);
    const told = sublayers(answer, place.side, place.layer).map(({ words, before, added }) =>
      `${words} adds a vector of length ${norm(added[t]).toFixed(1)} to a stream of ${norm(before[t]).toFixed(1)}, ${turned(before[t], added[t])}`);
    return `At “${tokensOf(answer, place.side)[t]}”: ${told.join("; ")}.`;
  }

  // --------------------------------------------------------------------- The network

  function ordered(values) {
    return Array.from(values, (value, unit) => [value, unit]).filter(([value]) => value > 0).sort(([a], [b]) => b - a);
  }

  /** All units of a network at a position, and those that fire most. */
  function drawNetwork(at) {
    const { answer, place, units } = at;
    const t = chosen(place);
    const { inner } = sublayers(answer, place.side, place.layer).at(-1);
    const hidden = inner.hidden[t];
    const known = units?.[`${place.side}.${place.layer}`];
    const strongest = ordered(hidden).slice(0, STRONGEST);
    const rows = strongest.map(([value, unit]) => make("tr", {},
      make("th", { scope: "row" }, `${unit + 1}`),
      make("td", {}, bar(value / strongest[0][0]), make("span", {}, signed(value))),
      make("td", {}, elsewhere(inner.hidden, unit, t, tokensOf(answer, place.side))),
      ...(known ? [make("td", { class: "inside-known", ...at.lang[place.side === "encoder" ? 0 : 1] }, known[unit].join(" · ") || "—")] : []),
    ));
    const names = ["unit", "fires with", "in this sentence", ...(known ? [place.side === "encoder" ? "in others, it fires most at" : "in others, it fires most before"] : [])];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    return [make("div", { class: "inside-network" },
      make("div", { class: "inside-sum" }, vector("all units, cut at zero", hidden, scaleOf(inner.hidden, FAINT), `${ordered(hidden).length} of ${hidden.length} fire`)),
      scrolling("The units that fire most", make("table", { class: "inside-units" }, make("thead", {}, head), make("tbody", {}, ...rows))),
    )];
  }

  /** At which other words of the sentence a unit fires. */
  function elsewhere(hidden, unit, t, tokens) {
    const places = hidden.map((values, i) => [values[unit], i]).filter(([value, i]) => value > 0 && i !== t).sort(([a], [b]) => b - a);
    if (!places.length) return "nowhere else";
    return `also at ${places.slice(0, 3).map(([, i]) => `“${tokens[i]}”`).join(", ")}${places.length > 3 ? " …" : ""}`;
  }

  function sayNetwork({ answer, place }) {
    const t = chosen(place);
    const hidden = sublayers(answer, place.side, place.layer).at(-1).inner.hidden[t];
    const [[value, unit] = [0, -1]] = ordered(hidden);
    return `At “${tokensOf(answer, place.side)[t]}”, ${ordered(hidden).length} of ${hidden.length} units fire; unit ${unit + 1} most, with ${signed(value)}.`;
  }

  bookFigures.inside_layer = { draw, say, drawNetwork, sayNetwork };
})();
