// Figures of the chapters that ask the book's own model "what if". Each is a picture that the engine computed while the
// site was built; in the page the model comes with a click, and computes the same of another sentence.
//
// A figure is {text (at first), start (its settings at first), task (on its button), controls(settings, redraw),
// compute(ask, settings, text), draw(found, languages, settings), say(found, settings)}. Its controls change the settings;
// then settings.changed() asks the model again, or redraw() only draws.

"use strict";

(() => {
  const { make, svg, percent, signed, bar, meanOf, scrolling, fieldOf } = live;
  const MASKS = ["causal mask", "no mask", "no mask, rest in view"];
  const PRINTED = 12; // rows and columns of a table whose numbers have room
  const MIDDLE = 0.45; // weights from which a cell is too dark for white numbers on a dark page,
  const HIGH = 0.62; // and for black ones on a light page

  function render({ data, el }) {
    const { text, start, task, controls, compute, draw, say } = FIGURES[data.figure];
    const settings = { ...structuredClone(start), layers: data.layers, heads: data.heads };
    const stage = el.querySelector(".live-still");
    const asking = fieldOf({ data: { ...data, text }, el, task: task ?? "Translate", answer });
    let found;

    const redraw = () => stage.replaceChildren(...draw(found, data.directions[0].languages, settings));
    async function answer(typed, ask) {
      found = await compute(ask, settings, typed);
      options.hidden = false;
      redraw();
      asking.say(say(found, settings));
    }
    settings.changed = asking.send;
    const options = make("div", { class: "live-options", role: "group", "aria-label": "What if" }, ...controls(settings, redraw));
    options.hidden = true; // until the model is there
    stage.className = "what-if-stage live-stage";
    stage.before(...asking.parts, options);
    asking.turn(data.directions[0]);
    asking.say("Computed when the site was made. With the model, everything here can be changed.");
  }

  /** The picture of a figure as it starts; `run` does a job at once. */
  async function still(name, run, languages) {
    const { text, start, compute, draw } = FIGURES[name];
    const ask = async (job, hear) => run({ text, ...job }).forEach(hear);
    return draw(await compute(ask, start, text), languages, start);
  }

  // ------------------------------------------------------------------------ What all share

  /** Translate: tokens read and written, and maps[kind][layer][head][row]. */
  async function translate(ask, options, text) {
    const found = { read: [], written: [], text: "", maps: {} };
    await ask({ task: "translate", options, ...(text ? { text } : {}) }, ({ source, step }) => {
      if (source) found.read = source;
      if (!step) return;
      for (const [kind, layers] of Object.entries(step.maps)) {
        layers.forEach((heads, n) => heads.forEach((rows, h) => (((found.maps[kind] ??= [])[n] ??= [])[h] ??= []).push(...rows)));
      }
      found.written.push(step.token);
      found.text = step.text;
    });
    return found;
  }

  function select(label, entries, value, choose) {
    const control = make("select", {}, ...entries.map(([key, name]) => make("option", { value: key }, name)));
    control.value = value;
    control.onchange = () => choose(control.value);
    return make("label", {}, label, control);
  }

  function number(label, range, choose) {
    const control = make("input", { type: "number", ...range });
    control.onchange = () => choose(Number(control.value));
    return make("label", {}, label, control);
  }

  /** Named sentences, one below the other. */
  const lines = (entries, lang) => make("dl", { class: "live-lines" }, ...entries.flatMap(([name, text]) => [make("dt", {}, name), make("dd", { lang }, text)]));

  /** A table of weights, in percent where there is room; what is not in a row is hidden from it. */
  function heatmap(label, rows, columns, weights) {
    const printed = Math.max(rows.length, columns.length) <= PRINTED;
    const cell = (weight) => {
      if (weight === undefined) return make("td", { class: "hidden" });
      const share = Math.round(100 * weight);
      const ground = weight > HIGH ? "high" : weight > MIDDLE ? "middle" : "";
      return make("td", { class: ground, style: `--w:${weight.toFixed(3)}` }, printed ? `${share || ""}` : make("span", { class: "heard" }, `${share}`));
    };
    const head = make("tr", {}, make("td", {}), ...columns.map((name) => make("th", { scope: "col" }, make("span", {}, name))));
    const body = rows.map((name, i) => make("tr", {}, make("th", { scope: "row" }, name), ...columns.map((_, j) => cell(weights[i][j]))));
    return scrolling(label, make("table", { class: "what-if-map" }, make("thead", {}, head), make("tbody", {}, ...body)));
  }

  /** A table from the names of its columns and from its rows. */
  function table(kind, names, rows) {
    const heads = names.map((name) => make("th", { scope: "col" }, name));
    return make("table", { class: kind }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  }

  const title = (text) => make("p", { class: "what-if-title" }, text);

  // -------------------------------------------------------------- Chapter 21: attention maps

  const maps = {
    text: "Zwei Hunde spielen im Schnee.",
    start: { kind: "cross", layer: 2, head: 0, silent: ["cross.2.0"] },

    controls(settings, redraw) {
      const { layers, heads, changed } = settings;
      const numbers = (count) => Array.from({ length: count }, (_, n) => [n, `${n + 1}`]);
      const box = make("input", { type: "checkbox" });
      const restore = make("button", { type: "button" }, "Restore all");
      const chosen = () => {
        const among = settings.head === "mean" ? [...Array(heads).keys()] : [settings.head];
        return among.map((h) => `${settings.kind}.${settings.layer}.${h}`);
      };
      const tick = () => (box.checked = chosen().every((name) => settings.silent.includes(name)));
      const choose = (what) => (value) => {
        settings[what] = value;
        tick();
        redraw();
      };
      const silence = (names) => {
        settings.silent = names.sort();
        tick();
        changed();
      };
      box.onchange = () => {
        const others = settings.silent.filter((name) => !chosen().includes(name));
        silence(box.checked ? [...others, ...chosen()] : others);
      };
      restore.onclick = () => silence([]);
      tick();
      return [
        select("Attention", ["encoder", "decoder", "cross"].map((name) => [name, name]), settings.kind, choose("kind")),
        select("Layer", numbers(layers), settings.layer, choose("layer")),
        select("Head", [...numbers(heads), ["mean", "all (mean)"]], settings.head, choose("head")),
        make("label", {}, box, "Silenced"), restore,
      ];
    },

    async compute(ask, { silent }) {
      const usual = await translate(ask, {});
      return { usual, changed: silent.length ? await translate(ask, { silent }) : usual };
    },

    draw({ usual, changed: { read, written, maps, text } }, languages, { kind, layer, head, silent }) {
      const heads = maps[kind][layer];
      const weights = head === "mean" ? meanOf(heads) : heads[head];
      const steps = written.map((token, t) => `${t ? written[t - 1] : "<s>"} → ${token}`);
      const axes = { encoder: [read, read], decoder: [steps, ["<s>", ...written.slice(0, -1)]], cross: [steps, read] };
      const named = `${kind}, layer ${+layer + 1}, ${head === "mean" ? "mean of the heads" : `head ${+head + 1}`}`;
      const sentences = [["Whole model", usual.text], ...(silent.length ? [[without(silent), text]] : [])];
      return [lines(sentences, languages[1]), title(named), heatmap(`Weights: ${named}`, ...axes[kind], weights)];
    },

    say({ usual, changed }, { silent }) {
      if (!silent.length) return `Translation: ${usual.text}`;
      return `${without(silent)}: ${changed.text === usual.text ? "the same translation" : changed.text}`;
    },
  };

  /** Say which heads are missing; layers and heads count from 1, as in the text. */
  function without(names) {
    const spelled = names.map((name) => name.split(".")).map(([kind, layer, head]) => `${kind} ${+layer + 1}.${+head + 1}`);
    return `Without ${spelled.join(", ")}`;
  }

  // ------------------------------------------------------------------ Chapter 8: positions

  const positions = {
    text: "Eine Frau mit einem Hund sieht ein Kind.",
    start: { order: "Eine sieht einem mit Frau ein Hund Kind." },

    controls(settings) {
      settings.order = undefined; // another one each time
      const shuffle = make("button", { type: "button" }, "Shuffle anew");
      shuffle.onclick = settings.changed;
      return [shuffle];
    },

    async compute(ask, { order }, typed) {
      const text = typed.split(/\s+/).join(" ");
      const orders = [text, order ?? shuffled(text)].filter(Boolean);
      const found = [];
      for (const order of orders) {
        const pair = [];
        for (const positions of [true, false]) pair.push(await translate(ask, { positions }, order));
        found.push({ order, pair });
      }
      return found;
    },

    draw(found, languages) {
      const panel = (order, name, { read, written, text, maps }) => make("div", {},
        lines([[name, text]], languages[1]),
        heatmap(`Cross-attention. ${name}: ${order} → ${text}`, written, read, meanOf(maps.cross.at(-1))));
      return found.flatMap(({ order, pair }) => [
        make("p", { class: "what-if-source", lang: languages[0] }, order),
        make("div", { class: "what-if-pair" }, panel(order, "With positions", pair[0]), panel(order, "Without positions", pair[1])),
      ]);
    },

    say([first, second]) {
      if (!second) return "Too few words to shuffle: the first one stays where it is. Type a longer sentence.";
      const [kept, lost] = [0, 1].map((i) => (first.pair[i].text === second.pair[i].text ? "stays the same" : "changes"));
      return `Shuffled, the translation ${kept} with positions and ${lost} without.`;
    },
  };

  /** The words in another order; the first one, whose token has no space before it, stays where it is. */
  function shuffled(text) {
    const [first, ...others] = text.split(" ");
    if (new Set(others).size < 2) return undefined;
    for (;;) {
      const drawn = others.map((word) => [Math.random(), word]).sort(([a], [b]) => a - b);
      const order = [first, ...drawn.map(([, word]) => word)].join(" ");
      if (order !== text) return order;
    }
  }

  // ---------------------------------------------------------------------- Chapter 4: masks

  const masks = {
    text: "Zwei Hunde spielen im Schnee.",
    start: {},
    controls: () => [],

    async compute(ask) {
      const found = { rows: [] };
      await ask({ task: "shares" }, ({ word, shares, usual, without }) => {
        if (word) found.rows.push([word, shares]);
        if (usual) Object.assign(found, { usual, without });
      });
      return found;
    },

    draw({ rows, usual, without }, [, lang]) {
      const body = rows.map(([word, shares]) => make("tr", {}, make("th", { scope: "row", lang }, word),
        ...shares.map((share) => make("td", {}, bar(share), make("span", {}, percent(share))))));
      return [lines([["Causal mask", usual], ["No mask", without]], lang), table("what-if-shares", ["next word", ...MASKS], body)];
    },

    say({ rows, without }) {
      const means = MASKS.map((_, k) => percent(rows.reduce((sum, [, shares]) => sum + shares[k], 0) / rows.length));
      const told = `Mean share of these words: ${means[0]} with the causal mask, ${means[1]} without it, ${means[2]} with the rest in view.`;
      return `${told} Left to itself without a mask, the model writes: ${without}`;
    },
  };

  // ------------------------------------------------------------------ Chapter 7: neighbors

  const neighbors = {
    text: "snow",
    start: { piece: 0 },
    task: "Find neighbors",
    controls: () => [],

    async compute(ask, settings, text) {
      if (text !== settings.text) Object.assign(settings, { text, piece: 0 });
      let found;
      const options = { count: 10, piece: settings.piece };
      await ask({ task: "neighbors", options }, (message) => (found = message.nearest ? message : found));
      return found;
    },

    draw({ pieces, nearest, median }, languages, settings) {
      const { piece } = settings;
      const button = (name, i) => {
        const made = make("button", { type: "button", "aria-pressed": i === piece }, name);
        made.onclick = () => {
          settings.piece = i;
          settings.changed();
        };
        return made;
      };
      const choice = pieces.length > 1 ? [make("div", { class: "what-if-pieces" }, ...pieces.map(button))] : [];
      const entry = ([name, cosine], attributes = {}) => make("li", attributes, make("span", {}, name), bar(cosine), make("span", {}, signed(cosine)));
      const rows = [...nearest.map((one) => entry(one)), entry(["half of all", median], { class: "median" })];
      return [...choice, title(`Nearest to ${pieces[piece]}, by cosine`), make("ol", { class: "what-if-nearest" }, ...rows)];
    },

    say({ pieces, nearest }, { piece }) {
      const count = pieces.length > 1 ? `This falls into ${pieces.length} tokens; choose one. ` : "";
      return `${count}Nearest to ${pieces[piece]}: ${nearest[0][0]} (${signed(nearest[0][1])}).`;
    },
  };

  // ------------------------------------------------------------------ Chapter 19: decoding

  const search = {
    text: "Zwei Männer stehen neben einem Auto und reden miteinander.",
    start: { way: "search", beam: 3, alpha: 0.6, temperature: 1, topP: 1 },

    controls(settings) {
      const choose = (what) => (value) => {
        settings[what] = value;
        show();
        settings.changed();
      };
      const searched = [
        number("Beam", { min: 1, max: 6, value: settings.beam }, choose("beam")),
        number("Length penalty", { min: 0, max: 3, step: 0.1, value: settings.alpha }, choose("alpha")),
      ];
      const drawn = [
        number("Temperature", { min: 0.1, max: 2, step: 0.1, value: settings.temperature }, choose("temperature")),
        number("Top-p", { min: 0.1, max: 1, step: 0.05, value: settings.topP }, choose("topP")),
      ];
      const show = () => {
        for (const one of searched) one.hidden = settings.way !== "search";
        for (const one of drawn) one.hidden = settings.way === "search";
      };
      show();
      return [select("Words are", [["search", "searched by beam"], ["draw", "drawn by lot"]], settings.way, choose("way")), ...searched, ...drawn];
    },

    async compute(ask, { way, beam, alpha, temperature, topP }) {
      const rounds = [];
      const options = way === "search" ? { beam, alpha } : { temperature, topP };
      await ask({ task: "search", options }, ({ round }) => round && rounds.push(round));
      return rounds;
    },

    draw(rounds, [, lang], { way }) {
      return [scrolling("Tree of hypotheses, one step a row", tree(rounds)), ...(way === "search" ? [finished(rounds, lang)] : [])];
    },

    say: (rounds) => `${rounds.length} steps. Best: ${bestOf(rounds).text}`,
  };

  const endings = (rounds) => rounds.flat().filter(({ kept, ended }) => kept && ended).sort((a, b) => b.score - a.score);
  const bestOf = (rounds) => endings(rounds)[0] ?? rounds.at(-1)[0]; // a draw may have found no end

  /** The steps of a search, with the path to the hypothesis that has the best score. */
  function tree(rounds) {
    const columns = Math.max(...rounds.map((round) => round.length));
    const best = bestOf(rounds);
    const path = [];
    for (let n = best.length - 1, place = rounds[n].indexOf(best); n >= 0; n--) {
      path[n] = place;
      place = rounds[n][place].from;
    }
    const levels = rounds.map((round, n) => level(round, columns, path[n]));
    return make("ol", { class: "what-if-tree", style: `--columns:${columns}` }, ...levels);
  }

  /** One step of the tree: who continues whom, kept or dropped. */
  function level(round, columns, winner) {
    const picture = svg("svg", { class: "what-if-branches", viewBox: `0 0 ${columns} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const boxes = round.map(({ word, from, total, kept, ended }, place) => {
      const fate = !kept ? "dropped" : ended ? "ended" : "kept";
      const kind = `${fate}${place === winner ? " wins" : ""}`;
      picture.append(svg("path", { class: kind, d: `M${from + 0.5},0L${place + 0.5},1` }));
      return make("li", { class: kind }, make("b", {}, word), make("span", {}, signed(total)), make("span", { class: "heard" }, fate));
    });
    return make("li", {}, picture, make("ol", {}, ...boxes));
  }

  /** What has ended, best score first. */
  function finished(rounds, lang) {
    const rows = endings(rounds).map(({ text, total, length, score }) => make("tr", {},
      make("th", { scope: "row", lang }, text), ...[signed(total), `${length}`, signed(score)].map((cell) => make("td", {}, cell))));
    return table("what-if-finished", ["ended", "log P", "length", "score"], rows);
  }

  const FIGURES = { maps, positions, masks, neighbors, search };

  live.whatif = { render, still };
})();
