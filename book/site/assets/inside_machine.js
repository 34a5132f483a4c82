// The first view of "inside": the decoder above the encoder, both read from below, the stream of each position as
// tiles, lines for what the chosen word looks at, and the next word on top.

"use strict";

(() => {
  const { make, svg, percent } = bookFigures.translator;
  const { picture, namesOf, scaleOf, streams, tokensOf, bar, scrolling, most } = bookFigures.inside_parts;
  const LEAST = 0.02; // weight of a line that is drawn

  /** The whole machine when it has read the words up to the chosen one; `at` is {answer, place, link, to, lang}. */
  function draw(at) {
    const { answer, place } = at;
    const t = place.word.decoder;
    const tokens = [...answer.source, ...answer.written];
    const longest = Math.max(...tokens.map((token) => token.length));
    const towers = make("div", { class: "inside-towers", style: `--col:${Math.max(2.9, 0.46 * longest + 0.5).toFixed(2)}rem` },
      decoder(at, t), lines(answer, t), encoder(at, t));
    return [make("div", { class: "inside-machine" }, scrolling("The machine: layers are rows, from below, and positions columns", towers), best(at, t))];
  }

  /** How much the chosen word looks at each source token: the last layer's heads, in the mean. */
  function looked({ trace, layers }, t) {
    const heads = trace[`decoder.layers.${layers - 1}.cross_attention`].weights[t];
    return Array.from(heads[0], (_, s) => heads.reduce((sum, weights) => sum + weights[s], 0) / heads.length);
  }

  function decoder(at, t) {
    const { answer, lang } = at;
    const words = answer.written.map((word, i) => make("td", { class: state(i, t) }, make("b", {}, word)));
    const top = make("tr", { class: "inside-writes", ...lang[1] }, make("th", { scope: "row", lang: "en" }, "writes"), ...words,
      make("td", { class: "inside-would", lang: "en" }, "if it stopped here"));
    return tower(at, "decoder", t, top, (stage) => [would(at, stage, t)]);
  }

  function encoder(at, t) {
    const { answer } = at;
    const cells = looked(answer, t).map((weight) => make("td", {}, make("i", { style: `--w:${weight.toFixed(3)}` }), make("span", {}, percent(weight))));
    const top = make("tr", { class: "inside-look" }, make("th", { scope: "row" }, "looked at"), ...cells);
    return tower(at, "encoder", undefined, top, () => []);
  }

  /** A side of the machine as a table: a row a stage, a column a position; `last` gives a row its last cells. */
  function tower(at, side, t, top, last) {
    const { answer, lang, place } = at;
    const rows = streams(answer, side).map((stream, stage) => {
      const scale = scaleOf(stream);
      const layer = stage - 1;
      const head = stage ? at.link({ side, layer }, `Layer ${stage}`) : "embedded";
      const to = (word) => (stage ? { "data-to": at.to({ side, layer, word: { ...place.word, [side]: word } }) } : {});
      const cells = stream.map((x, i) => make("td", { class: state(i, t), ...to(i) }, picture(x, scale)));
      return make("tr", {}, make("th", { scope: "row" }, head, ...namesOf(answer.dimensions)), ...cells, ...last(stage));
    });
    const tokens = tokensOf(answer, side).map((token, i) => make("th", { scope: "col", class: state(i, t) }, token));
    const read = make("tr", { class: "inside-tokens", ...lang[side === "encoder" ? 0 : 1] }, make("th", { scope: "row", lang: "en" }, "reads"), ...tokens);
    const name = side === "encoder" ? "Encoder" : "Decoder";
    return make("table", { class: `inside-${side}` }, make("caption", {}, make("span", {}, name)), make("tbody", {}, top, ...rows.reverse()), make("tfoot", {}, read));
  }

  /** What a column is to the step that is shown. */
  function state(i, t) {
    if (t === undefined || i < t) return "";
    return i === t ? "chosen" : "later";
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

  /** What the stream at the chosen position would say if it ended here. */
  function would({ answer, lang }, stage, t) {
    const [word, share] = answer.lens[stage][t][0];
    return make("td", { class: "inside-would", ...lang[1] }, make("b", {}, word), make("span", {}, percent(share)), bar(share));
  }

  /** The five likeliest next words. */
  function best({ answer: { lens, written }, lang }, t) {
    const items = lens.at(-1)[t].map(([word, share]) => make("li", word === written[t] ? { class: "chosen" } : {},
      make("span", {}, word), bar(share), make("span", {}, percent(share))));
    return make("div", { class: "inside-best" }, make("p", {}, "The five likeliest next"), make("ol", lang[1], ...items));
  }

  function say({ answer, place }) {
    const t = place.word.decoder;
    const look = looked(answer, t);
    const [word, share] = answer.lens.at(-1)[t][0];
    const s = most(look);
    const read = tokensOf(answer, "decoder").slice(0, t + 1).join(" ");
    const ending = t === answer.written.length - 1 ? ` Translation: ${answer.texts.at(-1)}` : "";
    return `Word ${t + 1} of ${answer.written.length}: the decoder has read “${read}”, looks most at “${answer.source[s]}” (${percent(look[s])}), and writes “${word}” (${percent(share)}).${ending}`;
  }

  bookFigures.inside_machine = { draw, say };
})();
