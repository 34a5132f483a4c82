// The third view of "inside": one head at one position, number by number, beside the line of code that computes it.

"use strict";

(() => {
  const { make, percent } = bookFigures.translator;
  const { picture, named, shade, scaleOf, signed, most, sublayers, ofHead, tokensOf, keysOf, scrolling, bar, dot, norm } = bookFigures.inside_parts;
  const FIRST = 6; // dimensions that are shown, until all are asked for

  /** What one head computes at the chosen position. */
  function values({ answer, place, config }) {
    const { side, layer, part, head, word } = place;
    const t = word[side];
    const sublayer = sublayers(answer, side, layer).find((one) => one.part === part);
    const { queries, keys, values, scores, weights, joined, widths, names } = sublayer.inner;
    const heads = scores[0].length;
    const found = (x) => ofHead(x, head, heads);
    const handedOver = (x) => ofHead(x, head, heads, widths);
    const seen = scores[t][head].length; // the causal mask hides the rest
    return {
      t,
      sublayer,
      query: found(queries[t]),
      keys: keys.slice(0, seen).map(found),
      values: values.slice(0, seen).map(handedOver),
      scores: Array.from(scores[t][head]),
      weights: Array.from(weights[t][head]),
      sum: handedOver(joined[t]),
      names: names && { keys: names.keys[head], values: names.values[head] },
      asker: tokensOf(answer, side)[t],
      tokens: keysOf(answer, side, part),
      heads,
      counts: { ...(config.one_head ? {} : { B: 1, H: heads }), T: tokensOf(answer, side).length, S: keys.length },
    };
  }

  const from = { self: "the stream at each position", cross: "the encoder’s memory of each source position" };

  /** The steps: the line of code, the shape of what it gives, and a sentence on the numbers. */
  const STEPS = [
    { code: "query", shape: "BHTk", lit: ["query"], say: ({ asker, query }) => `What “${asker}” looks for: the stream at its position times this head’s matrix of queries, which gives ${query.length} numbers.` },
    { code: "key", shape: "BHSk", lit: ["keys"], say: ({ part }) => `What a position can be found by: ${from[part]}, times this head’s matrix of keys.` },
    { code: "scores", shape: "BHTS", lit: ["query", "keys", "scores"], say: ({ asker, tokens, scores, query, keys }) => {
      const s = most(scores);
      const root = `√${query.length} = ${Number(Math.sqrt(query.length).toFixed(2))}`;
      return `“${asker}” and “${tokens[s]}” fit best: their ${query.length} products add up to ${signed(dot(query, keys[s]))}, and divided by ${root} that is ${signed(scores[s])}.`;
    } },
    { code: "mask", shape: "BHTS", lit: ["scores"], masked: true, say: ({ hidden }) => (hidden ? `The mask hides the ${hidden} ${hidden === 1 ? "position" : "positions"} to the right, which are not written yet: their scores become −∞.` : "The mask hides nothing from the last word.") },
    { code: "weights", shape: "BHTS", lit: ["scores", "weights"], say: ({ tokens, weights }) => {
      const s = most(weights);
      const total = percent(weights.reduce((sum, weight) => sum + weight));
      return `The softmax makes shares of the scores: “${tokens[s]}” gets ${percent(weights[s])}, and all together ${total}${total === "100%" ? "" : ", since each is rounded"}.`;
    } },
    { code: "value", shape: "BHSv", lit: ["values"], say: ({ part }) => `What a position hands over: ${from[part]}, times this head’s matrix of values.` },
    { code: "sum", shape: "BHTv", lit: ["weights", "values", "sum"], say: ({ tokens, weights, values, sum }) => {
      const s = most(weights);
      return `Each value times its weight, added up: the first number is ${signed(weights[s])} × ${signed(values[s][0])} from “${tokens[s]}”, and with the others ${signed(sum[0])}.`;
    } },
    { code: "output", shape: "BTD", lit: ["sum", "output"], say: ({ sublayer, t, heads }) => `${heads === 1 ? "What the head found" : `What the ${heads} heads found, side by side`}, times the matrix of the output: a vector of length ${norm(sublayer.added[t]).toFixed(1)}, which the layer adds to the stream.` },
  ];

  /** The line of code of a step; a part may have a line of its own for it. */
  const lineOf = ({ code, place }, step) => code[`${place.part}.${step}`] ?? code[step];

  /** The steps that have a line of code; the mask is one where it hides something. */
  function stepsOf(at) {
    const { side, part } = at.place;
    const masks = side === "decoder" && part === "self";
    return STEPS.filter(({ code, masked }) => lineOf(at, code) && (masks || !masked));
  }

  function draw(at) {
    const found = values(at);
    const steps = stepsOf(at);
    const { lit } = steps[at.place.step];
    const code = make("ol", { class: "inside-code" }, ...steps.map((step, i) => line(at, step, i, found)));
    const more = Math.max(found.query.length, found.sum.length) > FIRST ? [at.everything()] : [];
    return [make("div", { class: "inside-head" }, code, ...more, scrolling("Query, keys, scores, weights and values", matrices(at, found, lit)), heads(at, found, lit))];
  }

  /** A line of the package's code, with the shape of what it gives; choosing it goes to its step. */
  function line(at, { code, shape }, i, found) {
    const now = i === at.place.step;
    return make("li", now ? { class: "lit", "aria-current": "step" } : {}, at.link({ step: i }, make("code", {}, lineOf(at, code))), make("span", {}, spelled(shape, found)));
  }

  /** A shape in axis letters and in numbers. */
  function spelled(shape, { counts, query, sum, sublayer, t }) {
    const sizes = { ...counts, k: query.length, v: sum.length, D: sublayer.added[t].length };
    const names = { k: "d_k", v: "d_v" };
    const letters = [...shape].filter((letter) => letter in sizes);
    return `(${letters.map((letter) => names[letter] ?? letter).join(", ")}) = (${letters.map((letter) => sizes[letter]).join(", ")})`;
  }

  /** Everything in one table: the query above its keys, scores and weights between, the sum below the values. */
  function matrices(at, found, lit) {
    const { query, keys, values, scores, weights, sum, tokens, asker, names: columns } = found;
    const show = (x) => (at.all ? x : x.slice(0, FIRST));
    const scale = { key: scaleOf([query, ...keys]), value: scaleOf(values) };
    const group = (name) => `is-${name}${lit.includes(name) ? " lit" : ""}`;
    const cells = (x, name, kind) => show(x).map((value) => make("td", { class: group(name), style: shade(value, scale[kind]) }, signed(value)));
    const dots = (x, name) => (show(x).length < x.length ? [make("td", { class: `${group(name)} dots` }, "…")] : []);
    const wide = { key: show(query).length + dots(query, "").length, value: show(sum).length + dots(sum, "").length };
    const blank = (count) => make("td", { colspan: count, class: "blank" });
    const heading = (name, text, span) => make("th", { scope: "colgroup", colspan: span, class: group(name) }, text);

    const names = make("tr", {}, make("td", { class: "blank" }),
      heading("keys", "keys", wide.key), heading("scores", "score", 1), heading("weights", "weight", 1), heading("values", "values", wide.value));
    const asks = make("tr", {}, make("th", { scope: "row", class: group("query") }, `query of “${asker}”`),
      ...cells(query, "query", "key"), ...dots(query, "query"), blank(2 + wide.value));
    const named = (list) => list.map((name) => make("th", { scope: "col" }, name));
    const features = columns ? [make("tr", {}, blank(1), ...named(columns.keys), blank(2), ...named(columns.values))] : [];
    const rows = scores.map((score, s) => make("tr", {},
      make("th", { scope: "row" }, tokens[s]),
      ...cells(keys[s], "keys", "key"), ...dots(keys[s], "keys"),
      make("td", { class: group("scores") }, signed(score)),
      make("td", { class: group("weights") }, bar(weights[s]), make("span", {}, weights[s].toFixed(2))),
      ...cells(values[s], "values", "value"), ...dots(values[s], "values")));
    const hidden = tokens.slice(scores.length).map((token) => make("tr", { class: "hidden" },
      make("th", { scope: "row" }, token), blank(wide.key), make("td", { class: group("scores") }, "−∞"), make("td", { class: group("weights") }, "0"), blank(wide.value)));
    const added = make("tr", {}, make("th", { scope: "row", class: group("sum") }, "weighted sum"), blank(wide.key + 2),
      ...cells(sum, "sum", "value"), ...dots(sum, "sum"));
    return make("table", { class: "inside-matrices" }, make("thead", {}, asks, names, ...features), make("tbody", {}, ...rows, ...hidden), make("tfoot", {}, added));
  }

  /** What all heads found, side by side, and what the output makes of it. */
  function heads({ answer, place }, { sublayer, t, heads }, lit) {
    const joined = sublayer.inner.joined[t];
    const scale = scaleOf([joined]);
    const found = Array.from({ length: heads }, (_, h) => make("div", h === place.head ? { class: "chosen" } : {},
      picture(ofHead(joined, h, heads, sublayer.inner.widths), scale), make("p", {}, `Head ${h + 1}`)));
    const added = sublayer.added[t];
    return make("div", { class: `inside-join${lit.includes("output") ? " lit" : ""}` }, ...found,
      make("span", { class: "inside-sign" }, "→"),
      make("div", {}, named(added, scaleOf([added]), answer.dimensions), make("p", {}, "added to the stream")));
  }

  function say(at) {
    const found = values(at);
    const hidden = found.tokens.length - found.scores.length;
    return stepsOf(at)[at.place.step].say({ ...found, hidden, part: at.place.part });
  }

  bookFigures.inside_head = { draw, say, stepsOf };
})();
