// The second and the fourth view of "inside": what each part of a layer adds to the stream, and the units of its network.

"use strict";

(() => {
  const { make, percent } = bookFigures.translator;
  const { picture, namesOf, named, scaleOf, norm, degrees, signed, most, sublayers, tokensOf, keysOf, bar, map, scrolling } = bookFigures.inside_parts;
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
  function section(at, sublayer, t, scale) {
    const { part, words, inner, mean } = sublayer;
    const inside = part === "network" ? firing(at, inner, t) : heads(at, part, inner, t);
    const vectors = mean ? sumByHand(at, sublayer, t, scale) : sum(at, sublayer, t, scale);
    return make("section", { class: `inside-sublayer` },
      make("p", { class: "inside-words" }, words[0].toUpperCase() + words.slice(1)),
      make("div", {}, ...inside, make("div", { class: "inside-sum" }, ...vectors)));
  }

  function sum({ config }, { before, added, after }, t, scale) {
    const [x, y, z] = [before[t], added[t], after[t]];
    const last = config.pre_norm ? ["sum", `length ${norm(z).toFixed(1)}`] : ["sum, normalized", `length ${norm(z).toFixed(1)}, turned by ${degrees(x, z).toFixed(0)}°`];
    return [
      vector("the stream", x, scale, `length ${norm(x).toFixed(1)}`),
      sign("+"),
      vector("what it adds", y, scale, `length ${norm(y).toFixed(1)}, ${turned(x, y)}`),
      sign("→"),
      vector(last[0], z, scale, last[1]),
    ];
  }

  /** All that one writes down: the sum, too, with its mean and its deviation. */
  function sumByHand({ answer }, { before, added, mean, deviation, after }, t, scale) {
    const sum = before[t].map((value, i) => value + added[t][i]);
    return [
      ...namesOf(answer.dimensions),
      vector("stream", before[t], scale),
      sign("+"),
      vector("added", added[t], scale),
      sign("="),
      vector("sum", sum, scale, `mean ${signed(mean[t])}, deviation ${signed(deviation[t])}`),
      sign("→"),
      vector("norm", after[t], scale),
    ];
  }

  const sign = (text) => make("span", { class: "inside-sign" }, text);

  function vector(name, x, scale, about = "") {
    return make("div", {}, picture(x, scale), make("p", {}, make("b", {}, name)), make("p", {}, about));
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
    const figures = weights[t].map((row, head) => {
      const s = most(row);
      return make("li", {}, at.link({ part, head }, map(weights, head, t), `Head ${head + 1}`), make("p", {}, `${asker} → ${keys[s]} ${percent(row[s])}`));
    });
    return [make("ol", { class: "inside-heads" }, ...figures)];
  }

  function firing(at, { hidden }, t) {
    const all = named(hidden[t], scaleOf(hidden, FAINT), namesOfUnits(at));
    const link = at.link({ part: "network", head: undefined }, all, make("span", {}, firingOf(hidden[t])));
    return [make("div", { class: "inside-firing" }, link)];
  }

  const firingOf = (units) => `${ordered(units).length || "none"} of ${units.length} ${units.length === 1 ? "unit fires" : "units fire"}`;

  function say({ answer, place }) {
    const t = chosen(place);
    const told = sublayers(answer, place.side, place.layer).map(({ words, before, added }) => {
      const [x, y] = [before[t], added[t]];
      if (!norm(y)) return `${words} adds nothing`;
      return `${words} adds a vector of length ${norm(y).toFixed(1)} to a stream of ${norm(x).toFixed(1)}, ${turned(x, y)}`;
    });
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
    const own = namesOfUnits(at);
    const strongest = ordered(hidden).slice(0, STRONGEST);
    const rows = strongest.map(([value, unit]) => make("tr", {},
      make("th", { scope: "row" }, own?.[unit] ?? `${unit + 1}`),
      make("td", {}, bar(value / strongest[0][0]), make("span", {}, signed(value))),
      make("td", {}, elsewhere(inner.hidden, unit, t, tokensOf(answer, place.side))),
      ...(known ? [make("td", { class: "inside-known", ...at.lang[place.side === "encoder" ? 0 : 1] }, known[unit].join(" · ") || "—")] : []),
    ));
    const names = ["unit", "fires with", "in this sentence", ...(known ? [place.side === "encoder" ? "in others, it fires most at" : "in others, it fires most before"] : [])];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", { class: "inside-units" }, make("thead", {}, head), make("tbody", {}, ...rows));
    return [make("div", { class: "inside-network" },
      make("div", { class: "inside-sum" }, ...namesOf(own), vector("all units, cut at zero", hidden, scaleOf(inner.hidden, FAINT), firingOf(hidden))),
      ...(rows.length ? [scrolling("The units that fire most", table)] : []),
    )];
  }

  /** The names of a network's units, if they have any. */
  const namesOfUnits = ({ answer, place }) => answer.units?.[`${place.side}.${place.layer}`];

  /** At which other words of the sentence a unit fires. */
  function elsewhere(hidden, unit, t, tokens) {
    const places = hidden.map((values, i) => [values[unit], i]).filter(([value, i]) => value > 0 && i !== t).sort(([a], [b]) => b - a);
    if (!places.length) return "nowhere else";
    return `also at ${places.slice(0, 3).map(([, i]) => `“${tokens[i]}”`).join(", ")}${places.length > 3 ? " …" : ""}`;
  }

  function sayNetwork(at) {
    const { answer, place } = at;
    const t = chosen(place);
    const hidden = sublayers(answer, place.side, place.layer).at(-1).inner.hidden[t];
    const [strongest] = ordered(hidden);
    const most = strongest ? `; ${namesOfUnits(at)?.[strongest[1]] ?? `unit ${strongest[1] + 1}`} most, with ${signed(strongest[0])}` : "";
    return `At “${tokensOf(answer, place.side)[t]}”, ${firingOf(hidden)}${most}.`;
  }

  bookFigures.inside_layer = { draw, say, drawNetwork, sayNetwork };
})();
