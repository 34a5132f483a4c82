// A small translator while it learns: a slider over checkpoints of one training, with its translation and its
// attention at each. Recorded sentences need no model; for others all checkpoints are loaded, and work here.
//
// data: megabytes, most (subwords), extra (tokens that a translation may have more than its source),
//   translated (sentences), words (all German ones that it has met, in lower case), steps: [{step, loss, right}],
//   examples: [{text, source, steps}]; a step is {text, tokens, looks: [weight of each source token]}

"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [CELL, LEFT, TOP] = [22, 84, 74]; // pixels of a weight, and of the words beside it
  const NAMED = 11; // letters of a word that have room there
  const MOST = 3; // strange words that are named
  const EOS = 2;
  let figures = 0, starting;

  /** The engine, and the model at each checkpoint; they are so small that they need no worker. */
  function start() {
    starting ??= Promise.all([bookFigures.load("engine"), bookFigures.load("checkpoints")]).then(([engine, checkpoints]) => {
      const tools = engine();
      return { tools, models: checkpoints.map(tools.readModel) };
    });
    starting.catch(() => (starting = undefined));
    return starting;
  }

  function render({ data, el }) {
    const { steps, examples } = data;
    const id = `learning-${++figures}`;
    let shown, now = steps.length - 1, requests = 0;

    const field = make("input", { id, lang: "de", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" }, `Load the checkpoints (${data.megabytes} MB) and translate`);
    const form = make("form", { class: "translator-form" }, make("label", { for: id }, "German"), field, submit);
    const choice = make("div", { class: "translator-examples", role: "group", "aria-label": "Examples" });
    for (const example of examples) {
      const button = make("button", { type: "button", lang: "de" }, example.text);
      button.onclick = () => {
        requests++;
        [shown, field.value] = [example, example.text];
        show(now);
      };
      choice.append(button);
    }
    const slider = make("input", { type: "range", min: 0, max: steps.length - 1, "aria-label": "Checkpoint" });
    const [back, on] = ["Previous", "Next"].map((name) => make("button", { type: "button" }, name));
    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Checkpoints of the training" });
    controls.append(back, on, slider);
    const said = make("p", { class: "translator-said", "aria-live": "polite" });
    const text = make("output", { for: id, lang: "en", class: "translator-text" });
    const map = document.createElementNS(SVG, "svg");
    map.setAttribute("role", "img");
    const stage = make("div", { class: "learning-map", role: "region", "aria-label": "Attention", tabindex: 0 }, map);

    /** Show what the checkpoint of this place makes of the sentence. */
    function show(place) {
      now = Math.max(0, Math.min(steps.length - 1, place));
      const { step, loss, right } = steps[now];
      const { text: written, tokens, looks } = shown.steps[now];
      const after = `After ${step.toLocaleString("en")} updates`;
      const ended = tokens.at(-1) === "</s>";
      text.textContent = ended ? written : `${written} …`;
      said.textContent = `${after}: loss ${loss.toFixed(2)}, ${right} of ${data.translated} unseen sentences right. `
        + [ended ? "" : `It found no end and was stopped after ${tokens.length} tokens.`, shown.note ?? ""].join(" ").trim();
      slider.value = now;
      slider.setAttribute("aria-valuetext", `${after}: ${text.textContent}`);
      back.disabled = now === 0;
      on.disabled = now === steps.length - 1;
      draw(map, shown.source, tokens, looks, shown.source.length + data.extra);
    }

    /** All of a sentence's translations, by each checkpoint. */
    function translate({ tools, models }, words) {
      const { tokenizer } = models[0];
      const source = [...tokenizer.encode(words), EOS];
      const unknown = [...new Set(words.match(/\p{L}+/gu))].filter((word) => !data.words.includes(word.toLowerCase()));
      const named = unknown.slice(0, MOST).map((word) => `“${word}”`).join(", ");
      return {
        source: source.map(tokenizer.show),
        note: unknown.length ? `It has never met ${named}: the grammar has ${data.words.length} German words.` : "",
        steps: models.map((model) => {
          const [tokens, looks] = [[], []];
          for (const { token, maps } of tools.write(model, source)) {
            tokens.push(token);
            const heads = maps.cross.at(-1);
            looks.push(source.map((_, s) => heads.reduce((sum, rows) => sum + rows.at(-1)[s], 0) / heads.length));
            if (tokens.length === source.length + data.extra) break;
          }
          return { text: tokenizer.decode(tokens), tokens: tokens.map(tokenizer.show), looks };
        }),
      };
    }

    form.onsubmit = async (event) => {
      event.preventDefault();
      const words = field.value.trim();
      const mine = ++requests;
      if (!/\p{L}/u.test(words)) return void (said.textContent = "Type a sentence first.");
      said.textContent = "Translating …";
      try {
        const loaded = await start();
        submit.textContent = "Translate";
        if (mine !== requests) return;
        const length = loaded.models[0].tokenizer.encode(words).length;
        if (length > data.most) return void (said.textContent = `That is ${length} subwords, and this figure takes ${data.most}. Give it one short sentence.`);
        shown = translate(loaded, words);
        show(now);
      } catch (error) {
        said.textContent = `The checkpoints could not be loaded (${error.message}). Try again.`;
      }
    };
    slider.oninput = () => show(Number(slider.value));
    back.onclick = () => show(now - 1);
    on.onclick = () => show(now + 1);

    el.querySelector(".learning-still").replaceWith(form, choice, controls, said, text, stage);
    [shown, field.value] = [examples[0], examples[0].text];
    show(now);
  }

  /** Rows are tokens written, columns tokens read; room for `most` rows, so that nothing below moves. */
  function draw(map, source, tokens, looks, most) {
    const [width, height] = [LEFT + CELL * source.length + 2, TOP + CELL * most + 2];
    const short = (name) => (name.length > NAMED ? `${name.slice(0, NAMED - 1)}…` : name);
    const middle = (n) => CELL * n + CELL / 2;
    const parts = source.map((name, s) => svg("text", { transform: `translate(${LEFT + middle(s) + 4} ${TOP - 6}) rotate(-90)` }, short(name)));
    tokens.forEach((name, t) => {
      parts.push(svg("text", { x: LEFT - 6, y: TOP + middle(t) + 4, "text-anchor": "end" }, short(name)));
      looks[t].forEach((weight, s) => {
        const place = { x: LEFT + CELL * s, y: TOP + CELL * t, width: CELL, height: CELL };
        parts.push(svg("rect", { ...place, "fill-opacity": weight }, undefined, `${name} looks at ${source[s]}: ${Math.round(100 * weight)}%`));
      });
    });
    const where = looks.map((look, t) => `“${tokens[t]}” at “${source[look.indexOf(Math.max(...look))]}”`);
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) map.setAttribute(key, value);
    map.setAttribute("aria-label", `Where each token that is written looks most: ${where.join(", ")}`);
    map.replaceChildren(...parts);
  }

  function svg(name, attributes, text, title) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (title !== undefined) element.append(svg("title", {}, title));
    return element;
  }

  function make(name, attributes, ...content) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...content);
    return element;
  }

  bookFigures.learning = { render };
})();
