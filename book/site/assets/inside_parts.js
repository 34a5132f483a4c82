// What the views of "inside" draw with: vectors as tiles of colour or as numbers, bars, and where things lie in a trace.
//
// A trace has the lists of vectors that a translation computed, by the names of the package's modules (engine.js). One
// that was made by hand may say more: how wide the values of each head are, and the mean and deviation of each sum.

"use strict";

(() => {
  const { make, svg } = bookFigures.translator;
  const LEVELS = 4; // shades of a number in a tile, on each side of zero
  const FEW = 8; // numbers that are written out

  /** The sub-layers of a layer from below: in the address, in words, and as a module of the package. */
  const SUBLAYERS = {
    encoder: [["self", "self-attention", "self_attention"], ["network", "feed-forward network", "feed_forward"]],
    decoder: [
      ["self", "self-attention", "self_attention"],
      ["cross", "cross-attention", "cross_attention"],
      ["network", "feed-forward network", "feed_forward"],
    ],
  };

  /** Numbers as cells in rows, purple above zero and orange below, the stronger the further; `scale` is the strongest. */
  function tile(numbers, scale, wide = widthOf(numbers.length)) {
    const high = Math.ceil(numbers.length / wide);
    const shades = {};
    numbers.forEach((value, i) => {
      const level = Math.min(LEVELS, Math.round((LEVELS * Math.abs(value)) / scale));
      if (!level) return;
      const name = `${value < 0 ? "minus" : "plus"}-${level}`;
      shades[name] = `${shades[name] ?? ""}M${i % wide} ${Math.floor(i / wide)}h1`;
    });
    const paths = Object.entries(shades).map(([name, d]) => svg("path", { class: name, d }));
    const view = { viewBox: `0 -0.5 ${wide} ${high}`, "aria-hidden": "true", preserveAspectRatio: "none" };
    return svg("svg", { class: "inside-tile", ...view }, ...paths);
  }

  /** A vector: its numbers one below the other if they are few, else a tile. */
  function picture(numbers, scale) {
    if (numbers.length > FEW) return tile(numbers, scale);
    const entries = Array.from(numbers, (value) => make("li", { style: shade(value, scale) }, signed(value)));
    return make("ol", { class: "inside-numbers" }, ...entries);
  }

  /** The names of numbers that are written out, to stand beside them; none if they have none. */
  const namesOf = (names) => (names ? [make("ol", { class: "inside-names" }, ...names.map((name) => make("li", {}, name)))] : []);

  const named = (numbers, scale, names) => make("div", { class: "inside-named" }, ...namesOf(names), picture(numbers, scale));

  /** A ground for a number: purple above zero, orange below. */
  function shade(value, scale) {
    const share = Math.min(1, Math.abs(value) / scale);
    return `--shade:var(--inside-${value < 0 ? "minus" : "plus"});--share:${share.toFixed(2)}`;
  }

  /** A square, or twice as wide as high. */
  const widthOf = (length) => 2 ** Math.ceil(Math.log2(length) / 2);

  /** The size that has the strongest colour: this share of the numbers that are not zero are below it. */
  function scaleOf(vectors, share = 0.95) {
    const sizes = vectors.flatMap((x) => Array.from(x, Math.abs)).filter((size) => size > 0).sort((a, b) => a - b);
    return sizes[Math.floor(share * sizes.length)] || 1;
  }

  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  const norm = (x) => Math.sqrt(dot(x, x));
  const degrees = (x, y) => (Math.acos(Math.max(-1, Math.min(1, dot(x, y) / (norm(x) * norm(y) || 1)))) * 180) / Math.PI;
  const signed = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
  const most = (weights) => weights.reduce((best, weight, s) => (weight > weights[best] ? s : best), 0);

  /** The sub-layers of a layer from below, each with what it read, added and passed on at every position. */
  function sublayers({ trace }, side, layer) {
    let before = layer ? trace[`${side}.layers.${layer - 1}.residuals.${SUBLAYERS[side].length - 1}`].after : trace[side].embedded;
    return SUBLAYERS[side].map(([part, words, module], i) => {
      const residual = trace[`${side}.layers.${layer}.residuals.${i}`];
      const sublayer = { part, words, inner: trace[`${side}.layers.${layer}.${module}`], before, ...residual };
      before = residual.after;
      return sublayer;
    });
  }

  /** The stream of a side at every position, from the embeddings upwards, a list a stage. */
  function streams({ trace, layers }, side) {
    const last = SUBLAYERS[side].length - 1;
    const after = Array.from({ length: layers }, (_, n) => trace[`${side}.layers.${n}.residuals.${last}`].after);
    return [trace[side].embedded, ...after];
  }

  /** How many heads a part has; a network has none. */
  const headsOf = (answer, side, layer, part) => sublayers(answer, side, layer).find((one) => one.part === part).inner.scores?.[0].length ?? 0;

  /** The numbers of a vector that belong to one of several heads, which are equally wide unless `widths` says otherwise. */
  function ofHead(x, head, count, widths = Array(count).fill(x.length / count)) {
    const start = widths.slice(0, head).reduce((sum, wide) => sum + wide, 0);
    return Array.from(x.slice(start, start + widths[head]));
  }

  /** The tokens that a side reads, and those that its attention looks at. */
  const target = ({ written, first = "<s>" }) => [first, ...written.slice(0, -1)];
  const tokensOf = (answer, side) => (side === "encoder" ? answer.source : target(answer));
  const keysOf = (answer, side, part) => (side === "encoder" || part === "cross" ? answer.source : target(answer));

  const bar = (share) => make("i", { style: `--share:${Math.max(0, Math.min(1, share)).toFixed(3)}` });
  const scrolling = (label, ...content) => make("div", { class: "inside-scroll", role: "region", "aria-label": label, tabindex: 0 }, ...content);

  /** A small map of weights [query][head][key] for one head; the row of a position is marked. */
  function map(weights, head, chosen) {
    const columns = Math.max(...weights.map((heads) => heads[head].length));
    const cells = weights.flatMap((heads, t) => Array.from(heads[head], (weight, s) => [weight, t, s])).filter(([weight]) => weight >= 0.02);
    const view = { viewBox: `-0.1 -0.1 ${columns + 0.2} ${weights.length + 0.2}`, "aria-hidden": "true" };
    return svg("svg", { class: "inside-map", ...view },
      svg("rect", { class: "ground", width: columns, height: weights.length }),
      ...cells.map(([weight, y, x]) => svg("rect", { x, y, width: 1, height: 1, "fill-opacity": weight.toFixed(2) })),
      svg("rect", { class: "chosen", y: chosen, width: columns, height: 1 }),
    );
  }

  const vectors = { tile, picture, namesOf, named, shade, scaleOf, dot, norm, degrees, signed, most };
  const places = { SUBLAYERS, sublayers, streams, headsOf, ofHead, tokensOf, keysOf };
  bookFigures.inside_parts = { ...vectors, ...places, bar, scrolling, map };
})();
