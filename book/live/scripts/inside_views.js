// The four pictures of "inside": the machine, a layer, a head, a network. Each is {draw(at), say(at)}; `at` is {answer,
// place, code, lang (of source and target), units, pre_norm, link(changes, ...content)}, and a place is {side, layer,
// part, head, word: {encoder, decoder}, step}, all counted from 0.
//
// An answer has the lists of vectors that a translation computed, by the names of the package's modules (engine.js).

"use strict";

(() => {
  const { make, svg, percent, signed, bar, meanOf, scrolling } = live;
  const LEAST = 0.02; // weight of a line or a cell that is drawn
  const FIRST = [6, 2]; // dimensions of a head that are shown, and on a phone
  const STRONGEST = 12; // units of a network that are listed

  /** The sub-layers of a layer from below: in the address, in words, and as a module of the package. */
  const SUBLAYERS = {
    encoder: [["self", "self-attention", "self_attention"], ["network", "feed-forward network", "feed_forward"]],
    decoder: [
      ["self", "self-attention", "self_attention"],
      ["cross", "cross-attention", "cross_attention"],
      ["network", "feed-forward network", "feed_forward"],
    ],
  };

  // ------------------------------------------------------------------------- Vectors

  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  const norm = (x) => Math.sqrt(dot(x, x));
  const degrees = (x, y) => (Math.acos(Math.max(-1, Math.min(1, dot(x, y) / (norm(x) * norm(y) || 1)))) * 180) / Math.PI;
  const most = (weights) => weights.reduce((best, weight, s) => (weight > weights[best] ? s : best), 0);

  /** The size that has the strongest colour: all but one in twenty of the numbers that are not zero are below it. */
  function scaleOf(vectors) {
    const sizes = vectors.flatMap((x) => Array.from(x, Math.abs)).filter((size) => size > 0).sort((a, b) => a - b);
    return sizes[Math.floor(0.95 * sizes.length)] || 1;
  }

  /** A ground for a number: purple above zero and orange below, the stronger the further. */
  function shade(value, scale) {
    const share = Math.min(1, Math.abs(value) / scale);
    return `--shade:var(--inside-${value < 0 ? "minus" : "plus"});--share:${share.toFixed(2)}`;
  }

  /** The length of a vector as a bar, and what to say of it. */
  function vector(x, longest, name, about = "") {
    return make("div", {}, bar(norm(x) / longest), make("p", {}, make("b", {}, name), ` length ${norm(x).toFixed(1)}${about}`));
  }

  // --------------------------------------------------------------------- Parts and places

  /** The sub-layers of a layer from below, each with what it read, added and passed on at every position. */
  function sublayers({ trace }, side, layer) {
    const below = trace[`${side}.layers.${layer - 1}.residuals.${SUBLAYERS[side].length - 1}`];
    let before = below ? below.after : trace[side].embedded;
    return SUBLAYERS[side].map(([part, words, module], i) => {
      const residual = trace[`${side}.layers.${layer}.residuals.${i}`];
      const sublayer = { part, words, inner: trace[`${side}.layers.${layer}.${module}`], before, ...residual };
      before = residual.after;
      return sublayer;
    });
  }

  /** The tokens that a side reads, and those that its attention looks at. */
  const target = ({ written }) => ["<s>", ...written.slice(0, -1)];
  const tokensOf = (answer, side) => (side === "encoder" ? answer.source : target(answer));
  const keysOf = (answer, side, part) => (side === "encoder" || part === "cross" ? answer.source : target(answer));

  // ---------------------------------------------------------------------- The machine

  /** How much a word looks at each source token: the last layer's heads, in the mean. */
  function looked({ trace, layers }, t) {
    const heads = trace[`decoder.layers.${layers - 1}.cross_attention`].weights[t];
    return meanOf(heads.map((row) => [Array.from(row)]))[0];
  }

  /** The decoder above the encoder, both read from below. */
  function drawMachine(at) {
    const { answer, place } = at;
    const t = place.word.decoder;
    const longest = Math.max(...[...answer.source, ...answer.written].map((token) => token.length));
    const look = looked(answer, t).map((weight) => make("td", {}, bar(weight), make("small", {}, percent(weight))));
    const towers = make("div", { class: "inside-towers", style: `--col:${Math.max(2.9, 0.46 * longest + 0.5).toFixed(2)}rem` },
      tower(at, "decoder", "Decoder: what would come next if the machine ended here", answer.lens),
      lines(answer, t),
      tower(at, "encoder", "Encoder: what each position looks at most", looks(answer), row("looked at", look)));
    return [scrolling("The machine: layers are rows, from below, and positions columns", towers)];
  }

  const row = (name, cells, lang = {}) => make("tr", lang, make("th", { scope: "row", lang: "en" }, name), ...cells);

  /** A side of the machine as a table: a row a layer, a column a position; `found` has a token and its share for each. */
  function tower({ answer, place, lang, link }, side, name, found, ...above) {
    const isDecoder = side === "decoder";
    const language = lang[isDecoder ? 1 : 0];
    const chosen = (i) => (isDecoder && i === place.word.decoder ? " chosen" : "");
    const cell = ([token, share], i) => {
      const kind = isDecoder && token === answer.written[i] ? "right" : "";
      return make("td", { class: `${kind}${chosen(i)}`, style: `--share:${share.toFixed(2)}` }, token, make("small", {}, percent(share)));
    };
    const rows = found.map((entries, layer) => row(link({ side, layer }, `Layer ${layer + 1}`), entries.map(cell), language));
    const tokens = tokensOf(answer, side).map((token, i) => make("th", { scope: "col", class: chosen(i) }, token));
    return make("table", {}, make("caption", {}, make("span", {}, name)), make("tbody", {}, ...above, ...rows.reverse()), make("tfoot", {}, row("reads", tokens, language)));
  }

  /** In each layer of the encoder, the token that each position looks at most, and how much: the mean of the heads. */
  function looks({ trace, source, layers }) {
    return Array.from({ length: layers }, (_, n) => trace[`encoder.layers.${n}.self_attention`].weights.map((heads) => {
      const [mean] = meanOf(heads.map((weights) => [Array.from(weights)]));
      const s = most(mean);
      return [source[s], mean[s]];
    }));
  }

  /** Lines from the source, below, to the column of the chosen word. */
  function lines(answer, t) {
    const curves = looked(answer, t).flatMap((weight, s) => {
      if (weight < LEAST) return [];
      const d = `M${s + 0.5},1C${s + 0.5},0.4 ${t + 0.5},0.6 ${t + 0.5},0`;
      return [svg("path", { d, "stroke-opacity": weight.toFixed(3), "stroke-width": (1 + 5 * weight).toFixed(2) })];
    });
    const columns = Math.max(answer.source.length, answer.written.length);
    const view = { viewBox: `0 0 ${columns} 1`, preserveAspectRatio: "none", "aria-hidden": "true", style: `--columns:${columns}` };
    return svg("svg", { class: "inside-lines", ...view }, ...curves);
  }

  function sayMachine({ answer, place }) {
    const t = place.word.decoder;
    const look = looked(answer, t);
    const [word, share] = answer.lens.at(-1)[t];
    const s = most(look);
    const read = target(answer).slice(0, t + 1).join(" ");
    const spelled = answer.spelled ? `Read as “${answer.spelled}”. ` : "";
    const ending = t === answer.written.length - 1 ? ` Translation: ${answer.translation}` : "";
    return `${spelled}Word ${t + 1} of ${answer.written.length}: the decoder has read “${read}”, looks most at “${answer.source[s]}” (${percent(look[s])}), and writes “${word}” (${percent(share)}).${ending}`;
  }

  // ------------------------------------------------------------------------- A layer

  /** What each part of a layer adds to the stream at a position, read from below. */
  function drawLayer(at) {
    const { answer, place } = at;
    const t = place.word[place.side];
    const parts = sublayers(answer, place.side, place.layer);
    const longest = Math.max(...parts.flatMap(({ before, added, after }) => [before[t], added[t], after[t]].map(norm)));
    const sections = parts.map((sublayer) => {
      const { part, words, inner, before, added, after } = sublayer;
      const [x, y, z] = [before[t], added[t], after[t]];
      const sum = at.pre_norm ? ["sum"] : ["sum, normalized", `, turned by ${degrees(x, z).toFixed(0)}°`];
      return make("section", { class: "inside-sublayer" },
        make("p", { class: "inside-words" }, words[0].toUpperCase() + words.slice(1)),
        make("div", {}, part === "network" ? firing(at, inner.hidden[t]) : heads(at, part, inner.weights, t),
          make("div", { class: "inside-sum" },
            vector(x, longest, "the stream"), make("span", {}, "+"),
            vector(y, longest, "what it adds", `, ${turned(x, y)}`), make("span", {}, "→"),
            vector(z, longest, ...sum))));
    });
    return [make("div", {}, ...sections.reverse())];
  }

  /** The angle between the stream and what is added, in words, too. */
  function turned(x, y) {
    const angle = degrees(x, y);
    const way = angle < 80 ? "along the stream" : angle > 100 ? "against the stream" : "across the stream";
    return `${way} (${angle.toFixed(0)}°)`;
  }

  /** The maps of all heads, each a link to its head. */
  function heads(at, part, weights, t) {
    const { answer, place } = at;
    const keys = keysOf(answer, place.side, part);
    const asker = tokensOf(answer, place.side)[t];
    const figures = weights[t].map((row, head) => {
      const s = most(row);
      return make("li", {}, at.link({ part, head }, map(weights, head, t), `Head ${head + 1}`), make("p", {}, `${asker} → ${keys[s]} ${percent(row[s])}`));
    });
    return make("ol", { class: "inside-heads" }, ...figures);
  }

  /** A small map of weights [query][head][key] for one head; the row of a position is marked. */
  function map(weights, head, chosen) {
    const columns = Math.max(...weights.map((heads) => heads[head].length));
    const cells = weights.flatMap((heads, t) => Array.from(heads[head], (weight, s) => [weight, t, s])).filter(([weight]) => weight >= LEAST);
    const view = { viewBox: `-0.1 -0.1 ${columns + 0.2} ${weights.length + 0.2}`, "aria-hidden": "true" };
    return svg("svg", { class: "inside-map", ...view },
      svg("rect", { class: "ground", width: columns, height: weights.length }),
      ...cells.map(([weight, y, x]) => svg("rect", { x, y, width: 1, height: 1, "fill-opacity": weight.toFixed(2) })),
      svg("rect", { class: "chosen", y: chosen, width: columns, height: 1 }));
  }

  function sayLayer({ answer, place }) {
    const t = place.word[place.side];
    const parts = sublayers(answer, place.side, place.layer).map(({ words, before, added }) => [words, norm(before[t]), norm(added[t])]);
    const [words, stream, added] = parts[most(parts.map(([, , added]) => added))];
    return `At “${tokensOf(answer, place.side)[t]}”, the ${words} adds most: a vector of length ${added.toFixed(1)} to a stream of ${stream.toFixed(1)}.`;
  }

  // -------------------------------------------------------------------------- A head

  /** What one head computes at the chosen position. */
  function valuesOf({ answer, place }) {
    const { side, layer, part, head, word } = place;
    const t = word[side];
    const { inner, added } = sublayers(answer, side, layer).find((one) => one.part === part);
    const { queries, keys, values, scores, weights, joined } = inner;
    const heads = scores[0].length;
    const ofHead = (x, h = head) => Array.from(x.slice((h * x.length) / heads, ((h + 1) * x.length) / heads));
    const tokens = keysOf(answer, side, part);
    const seen = scores[t][head].length; // the causal mask hides the rest
    return {
      query: ofHead(queries[t]), keys: keys.slice(0, seen).map((x) => ofHead(x)), values: values.slice(0, seen).map((x) => ofHead(x)),
      scores: Array.from(scores[t][head]), weights: Array.from(weights[t][head]), sum: ofHead(joined[t]),
      found: Array.from({ length: heads }, (_, h) => ofHead(joined[t], h)), added: added[t],
      asker: tokensOf(answer, side)[t], tokens, hidden: tokens.length - seen,
      sizes: { B: 1, H: heads, T: tokensOf(answer, side).length, S: keys.length },
    };
  }

  const from = { self: "the stream at each position", cross: "the encoder’s memory of each source position" };

  /** The steps: the line of code, the shape of what it gives, what is lit, and a sentence on the numbers. */
  const STEPS = [
    { code: "query", shape: "BHTk", lit: ["query"], say: ({ asker, query }) => `What “${asker}” looks for: the stream at its position times this head’s matrix of queries, which gives ${query.length} numbers.` },
    { code: "key", shape: "BHSk", lit: ["keys"], say: ({ part }) => `What a position can be found by: ${from[part]}, times this head’s matrix of keys.` },
    { code: "scores", shape: "BHTS", lit: ["query", "keys", "scores"], say: ({ asker, tokens, scores, query, keys }) => {
      const s = most(scores);
      const root = `√${query.length} = ${Number(Math.sqrt(query.length).toFixed(2))}`;
      return `“${asker}” and “${tokens[s]}” fit best: their ${query.length} products add up to ${signed(dot(query, keys[s]))}, and divided by ${root} that is ${signed(scores[s])}.`;
    } },
    { code: "mask", shape: "BHTS", lit: ["scores"], say: ({ hidden }) => (hidden ? `The mask hides what is not written yet, ${hidden} ${hidden === 1 ? "position" : "positions"}: their scores become −∞.` : "The mask hides nothing from the last word.") },
    { code: "weights", shape: "BHTS", lit: ["scores", "weights"], say: ({ tokens, weights }) => {
      const s = most(weights);
      return `The softmax makes shares of the scores: “${tokens[s]}” gets ${percent(weights[s])}.`;
    } },
    { code: "value", shape: "BHSv", lit: ["values"], say: ({ part }) => `What a position hands over: ${from[part]}, times this head’s matrix of values.` },
    { code: "sum", shape: "BHTv", lit: ["weights", "values", "sum"], say: ({ tokens, weights, values, sum }) => {
      const s = most(weights);
      return `Each value times its weight, added up: the first number is ${percent(weights[s])} of ${signed(values[s][0])} from “${tokens[s]}”, and with the others ${signed(sum[0])}.`;
    } },
    { code: "output", shape: "BTD", lit: ["sum", "output"], say: ({ found, added }) => `What the ${found.length} heads found, side by side, times the matrix of the output: a vector of length ${norm(added).toFixed(1)}, which the layer adds to the stream.` },
  ];

  /** The mask is a step where it hides something. */
  const stepsOf = ({ side, part }) => STEPS.filter(({ code }) => code !== "mask" || (side === "decoder" && part === "self"));

  function drawHead(at) {
    const values = valuesOf(at);
    const steps = stepsOf(at.place);
    const { lit } = steps[at.place.step];
    const sizes = { ...values.sizes, k: values.query.length, v: values.sum.length, D: values.added.length };
    const spelled = (shape) => {
      const names = [...shape].map((letter) => ({ k: "d_k", v: "d_v" })[letter] ?? letter);
      return `(${names.join(", ")}) = (${[...shape].map((letter) => sizes[letter]).join(", ")})`;
    };
    const code = steps.map(({ code, shape }, i) => make("li", i === at.place.step ? { class: "lit", "aria-current": "step" } : {},
      at.link({ step: i }, make("code", {}, at.code[code])), make("span", {}, spelled(shape))));
    return [
      make("ol", { class: "inside-code" }, ...code),
      scrolling("Query, keys, scores, weights and values", matrices(values, lit)),
      joined(at.place.head, values, lit),
    ];
  }

  /** Everything in one table: the query above its keys, scores and weights between, the sum below the values. */
  function matrices({ query, keys, values, scores, weights, sum, tokens, asker }, lit) {
    const scales = { keys: scaleOf([query, ...keys]), values: scaleOf(values) };
    const first = FIRST[Number(matchMedia("(max-width: 768px)").matches)];
    const kind = (name) => `is-${name}${lit.includes(name) ? " lit" : ""}`;
    const cells = (x, name, scale) => {
      const shown = x.slice(0, first).map((value) => make("td", { class: kind(name), style: shade(value, scale) }, signed(value)));
      return x.length > first ? [...shown, make("td", { class: `${kind(name)} dots` }, "…")] : shown;
    };
    const [wideKey, wideValue] = [query, sum].map((x) => Math.min(x.length, first + 1));
    const blank = (count) => make("td", { colspan: count, class: "blank" });
    const heading = (name, text, span) => make("th", { scope: "colgroup", colspan: span, class: kind(name) }, text);
    const row = (name, text, ...content) => make("tr", {}, make("th", { scope: "row", class: name && kind(name) }, text), ...content);

    const asks = row("query", `query of “${asker}”`, ...cells(query, "query", scales.keys), blank(2 + wideValue));
    const names = make("tr", {}, blank(1), heading("keys", "keys", wideKey), heading("scores", "score", 1), heading("weights", "weight", 1), heading("values", "values", wideValue));
    const rows = scores.map((score, s) => row("", tokens[s], ...cells(keys[s], "keys", scales.keys),
      make("td", { class: kind("scores") }, signed(score)),
      make("td", { class: kind("weights") }, bar(weights[s]), make("span", {}, percent(weights[s]))),
      ...cells(values[s], "values", scales.values)));
    const hidden = tokens.slice(scores.length).map((token) => row("", token, blank(wideKey),
      make("td", { class: `hidden ${kind("scores")}` }, "−∞"), make("td", { class: `hidden ${kind("weights")}` }, "0"), blank(wideValue)));
    const added = row("sum", "weighted sum", blank(wideKey + 2), ...cells(sum, "sum", scales.values));
    return make("table", { class: "inside-matrices" }, make("thead", {}, asks, names), make("tbody", {}, ...rows, ...hidden), make("tfoot", {}, added));
  }

  /** How long what each head found is, and what the output makes of all. */
  function joined(head, { found, added }, lit) {
    const longest = Math.max(...[...found, added].map(norm));
    const bars = [...found.map((x, h) => vector(x, longest, `Head ${h + 1}`)), make("span", {}, "→"), vector(added, longest, "added")];
    bars[head].className = "chosen";
    return make("div", { class: `inside-sum inside-join${lit.includes("output") ? " lit" : ""}` }, ...bars);
  }

  const sayHead = (at) => stepsOf(at.place)[at.place.step].say({ ...valuesOf(at), part: at.place.part });

  // ----------------------------------------------------------------------- A network

  const ordered = (values) => Array.from(values, (value, unit) => [value, unit]).filter(([value]) => value > 0).sort(([a], [b]) => b - a);
  const firingOf = (units) => `${ordered(units).length || "none"} of ${units.length} units fire`;

  /** The units of a network as cells, twice as wide as high or a square: those that fire are colored. */
  function tile(units) {
    const wide = 2 ** Math.ceil(Math.log2(units.length) / 2);
    const cells = ordered(units).map(([, unit]) => `M${unit % wide} ${Math.floor(unit / wide)}h1`);
    const view = { viewBox: `0 -0.5 ${wide} ${Math.ceil(units.length / wide)}`, "aria-hidden": "true", preserveAspectRatio: "none" };
    return svg("svg", { class: "inside-tile", ...view }, svg("path", { d: cells.join("") }));
  }

  function firing(at, units) {
    const link = at.link({ part: "network", head: undefined }, tile(units), firingOf(units));
    return make("div", { class: "inside-firing" }, link);
  }

  /** All units of a network at a position, and those that fire most. */
  function drawNetwork({ answer, place, units, lang }) {
    const { side, layer, word } = place;
    const { hidden } = sublayers(answer, side, layer).at(-1).inner;
    const here = hidden[word[side]];
    const known = units?.[`${side}.${layer}`];
    const strongest = ordered(here).slice(0, STRONGEST);
    const rows = strongest.map(([value, unit]) => make("tr", {},
      make("th", { scope: "row" }, `${unit + 1}`),
      make("td", {}, bar(value / strongest[0][0]), make("span", {}, signed(value))),
      ...(known ? [make("td", { class: "inside-known", ...lang[side === "encoder" ? 0 : 1] }, known[unit].join(" · ") || "—")] : [])));
    const names = ["unit", "fires with", ...(known ? [`in other sentences, it fires most ${side === "encoder" ? "at" : "before"}`] : [])];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", { class: "inside-units" }, make("thead", {}, head), make("tbody", {}, ...rows));
    return [make("div", { class: "inside-network" }, tile(here), scrolling("The units that fire most", table))];
  }

  function sayNetwork({ answer, place: { side, layer, word } }) {
    const hidden = sublayers(answer, side, layer).at(-1).inner.hidden[word[side]];
    const [strongest] = ordered(hidden);
    const first = strongest ? `; unit ${strongest[1] + 1} most, with ${signed(strongest[0])}` : "";
    return `At “${tokensOf(answer, side)[word[side]]}”, ${firingOf(hidden)}${first}.`;
  }

  live.inside_views = {
    SUBLAYERS, tokensOf, stepsOf,
    machine: { draw: drawMachine, say: sayMachine },
    layer: { draw: drawLayer, say: sayLayer },
    head: { draw: drawHead, say: sayHead },
    network: { draw: drawNetwork, say: sayNetwork },
  };
})();
