// Figures of the chapters that ask the book's own model "what if". Each comes as a recorded picture; the model
// comes with a click, works in the translator's worker, and what it answers takes the place of the picture.
//
// data: figure (a name below), text (that was recorded), label (of the field), most, megabytes, layers, heads,
//   languages, start (of the controls). `still` draws the recordings, while the site is built.

"use strict";

(() => {
  const PACE = 700; // milliseconds a step of a search
  const NEAREST = 10;
  const MASKS = ["causal mask", "no mask", "no mask, rest in view"];
  const PRINTED = 12; // rows and columns of a table whose numbers have room
  let tools, make, svg; // shared with the translator
  let newest = 0, requests = 0, figures = 0;

  async function render({ data, el }) {
    share(await bookFigures.load("translator"));
    FIGURES[data.figure](frame(data, el));
  }

  /** A recorded answer as a picture: a list of elements. */
  function still(figure, recorded, languages) {
    share(bookFigures.translator);
    return STILLS[figure](recorded, languages);
  }

  function share(translator) {
    tools = translator;
    ({ make, svg } = tools);
  }

  // --------------------------------------------------------------------- What all figures share

  /** Put a form above the picture; return what a figure needs. It sets `answer(text, ask)`. */
  function frame(data, el) {
    const id = `what-if-${++figures}`;
    const field = make("input", { id, type: "text", value: data.text, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" }, `Load the model (${data.megabytes} MB)`);
    const form = make("form", { class: "translator-form" }, make("label", { for: id }, data.label), field, submit);
    const controls = make("div", { class: "translator-options", role: "group", "aria-label": "What if" });
    const said = make("p", { class: "translator-said", "aria-live": "polite" }, "A recording. With the model, everything here can be changed.");
    const stage = el.querySelector(".what-if-still");
    const say = (text) => (said.textContent = text);
    const self = { data, stage, controls, field, form, said, say, task: "Translate", thing: "sentence", loaded: false };
    self.refusal = tools.refusal;
    self.again = () => self.loaded && form.requestSubmit();

    /** Send a job to the worker; each of its messages goes to `hear`, the last one is returned.
     * Meanwhile what the page says is not read out, for it may be a word after the other.
     */
    const asker = (worker, mine) => (job, hear = () => {}) => new Promise((resolve) => {
      const number = `what if ${++requests}`;
      const listen = ({ data: answer }) => {
        if (mine !== newest) return worker.removeEventListener("message", listen); // nobody waits for it any more
        if (answer.number !== number) return;
        if (answer.done || answer.tooLong) {
          worker.removeEventListener("message", listen);
          said.setAttribute("aria-live", "polite");
        }
        if (answer.tooLong) return void say(tools.tooMany(answer.tooLong, data.most, self.thing));
        hear(answer);
        if (answer.done) resolve(answer);
      };
      worker.addEventListener("message", listen);
      said.setAttribute("aria-live", "off");
      worker.onerror = () => say("The model stopped working. Load the page again.");
      worker.postMessage({ number, most: data.most + 1, options: {}, ...job });
    });

    form.onsubmit = async (event) => {
      event.preventDefault();
      const text = field.value.trim();
      const refused = self.refusal(text);
      const mine = ++newest;
      said.setAttribute("aria-live", "polite");
      if (refused) return void say(refused);
      say("Working …");
      const hear = self.loaded ? () => {} : tools.sayLoading(said, data.megabytes);
      let worker;
      try {
        worker = await tools.start(hear);
      } catch (error) {
        return void say(`The model could not be loaded (${error.message}). Try again.`);
      }
      self.loaded = true;
      submit.textContent = self.task;
      if (mine === newest) self.answer(text, asker(worker, mine));
    };

    stage.className = "what-if-stage";
    stage.before(form, controls, said);
    return self;
  }

  /** Translate; `write` hears of each word. What one gets: tokens read and written, and maps[kind][layer][head][row]. */
  async function translate(ask, text, options, write = () => {}) {
    const found = { read: [], written: [], text: "", maps: {} };
    await ask({ task: "translate", text, options }, ({ source, token, text, maps }) => {
      if (source) found.read = source;
      if (!token) return;
      for (const [kind, layers] of Object.entries(maps)) {
        layers.forEach((heads, n) => heads.forEach((rows, h) => (((found.maps[kind] ??= [])[n] ??= [])[h] ??= []).push(...rows)));
      }
      found.written.push(token);
      write((found.text = text));
    });
    return found;
  }

  const meanOf = (heads) => heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, rows) => sum + rows[i][j], 0) / heads.length));

  function select(label, entries, value) {
    const control = make("select", {}, ...entries.map(([key, name]) => make("option", { value: key }, name)));
    control.value = value;
    return [make("label", {}, label, control), control];
  }

  /** A slider, with its value beside it. */
  function slider(label, range, told = (value) => value) {
    const control = make("input", { type: "range", ...range });
    const shown = make("output", {}, told(control.value));
    control.addEventListener("input", () => (shown.value = told(control.value)));
    return [make("label", {}, label, control, shown), control];
  }

  // --------------------------------------------------------------------- Drawing

  /** Named sentences, one below the other. */
  const lines = (entries, lang) => make("dl", { class: "what-if-lines" }, ...entries.flatMap(([name, text]) => [make("dt", {}, name), make("dd", { lang }, text)]));

  const scrolling = (label, content) => make("div", { class: "what-if-scroll", role: "region", "aria-label": label, tabindex: 0 }, content);

  /** A table of weights, in percent where there is room; what is not in a row is hidden from it. */
  function heatmap(label, rows, columns, weights) {
    const printed = Math.max(rows.length, columns.length) <= PRINTED;
    const cell = (weight) => {
      if (weight === undefined) return make("td", { class: "hidden" });
      const number = Math.round(100 * weight);
      return make("td", { style: `--w:${weight.toFixed(3)}` }, printed ? `${number || ""}` : make("span", { class: "heard" }, `${number}`));
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
  const bar = (share) => make("i", { style: `--share:${Math.max(0, share).toFixed(3)}` });
  const signed = (value) => value.toFixed(2).replace("-", "−");

  // --------------------------------------------------------------------- Chapter 21: attention maps

  function maps(self) {
    const { data, stage, controls, say, again } = self;
    const numbers = (count, name) => Array.from({ length: count }, (_, n) => [n, `${name}${n + 1}`]);
    const [kindLabel, kind] = select("Attention", ["encoder", "decoder", "cross"].map((name) => [name, name]), data.start.kind);
    const [layerLabel, layer] = select("Layer", numbers(data.layers, ""), data.start.layer);
    const [headLabel, head] = select("Head", [...numbers(data.heads, ""), ["mean", "all (mean)"]], data.start.head);
    const silence = make("input", { type: "checkbox" });
    const restore = make("button", { type: "button" }, "Restore all");
    const silent = new Set([`${data.start.kind}.${data.start.layer}.${data.start.head}`]);
    let usual, changed, how; // the two translations, and what is missing from the second
    controls.append(kindLabel, layerLabel, headLabel, make("label", {}, silence, "Silenced"), restore);

    const chosen = () => {
      const heads = head.value === "mean" ? [...Array(data.heads).keys()] : [head.value];
      return heads.map((h) => `${kind.value}.${layer.value}.${h}`);
    };

    function draw() {
      silence.checked = chosen().every((name) => silent.has(name));
      restore.disabled = !silent.size;
      if (!changed) return;
      const { read, written, maps } = changed;
      const heads = maps[kind.value][layer.value];
      const weights = head.value === "mean" ? meanOf(heads) : heads[head.value];
      const sentences = [["Whole model", usual.text]];
      if (how) sentences.push([how, changed.text]);
      const picture = mapPicture({ kind: kind.value, layer: layer.value, head: head.value, read, written, weights });
      stage.replaceChildren(lines(sentences, data.languages[1]), ...picture);
    }

    for (const control of [kind, layer, head]) control.onchange = draw;
    silence.onchange = () => {
      for (const name of chosen()) silence.checked ? silent.add(name) : silent.delete(name);
      draw();
      again();
    };
    restore.onclick = () => {
      silent.clear();
      draw();
      again();
    };
    self.answer = async (text, ask) => {
      const names = [...silent].sort();
      const whole = await translate(ask, text, {}, say);
      const cut = names.length ? await translate(ask, text, { silent: names }, say) : whole;
      [usual, changed, how] = [whole, cut, names.length && without(names)];
      draw();
      if (!how) say(`Translation: ${usual.text}`);
      else say(`${how}: ${changed.text === usual.text ? "the same translation" : changed.text}`);
    };
    draw();
  }

  /** Say which heads are missing; layers and heads count from 1, as in the text. */
  function without(names) {
    const spelled = names.map((name) => {
      const [kind, layer, head] = name.split(".");
      return `${kind} ${+layer + 1}.${+head + 1}`;
    });
    return `Without ${spelled.join(", ")}`;
  }

  function mapPicture({ kind, layer, head, read, written, weights }) {
    const steps = written.map((token, t) => `${t ? written[t - 1] : "<s>"} → ${token}`);
    const axes = { encoder: [read, read], decoder: [steps, ["<s>", ...written.slice(0, -1)]], cross: [steps, read] };
    const [rows, columns] = axes[kind];
    const named = `${kind}, layer ${+layer + 1}, ${head === "mean" ? "mean of the heads" : `head ${+head + 1}`}`;
    return [title(named), heatmap(`Weights: ${named}`, rows, columns, weights)];
  }

  function stillMaps({ start, usual, changed, read, written, weights }, languages) {
    const name = without([`${start.kind}.${start.layer}.${start.head}`]);
    const sentences = lines([["Whole model", usual], [name, changed]], languages[1]);
    return [sentences, ...mapPicture({ ...start, read, written, weights })];
  }

  // --------------------------------------------------------------------- Chapter 8: positions

  function positions(self) {
    const { data, stage, say } = self;
    const shuffle = make("button", { type: "button" }, "Shuffle anew");
    shuffle.onclick = self.again;
    self.controls.append(shuffle);
    shuffle.disabled = true;

    /** The first word, whose token has no space before it, stays where it is. */
    function shuffled(text) {
      const [first, ...others] = text.split(" ");
      if (new Set(others).size < 2) return undefined;
      for (;;) {
        const drawn = others.map((word) => [Math.random(), word]).sort(([a], [b]) => a - b);
        const order = [first, ...drawn.map(([, word]) => word)].join(" ");
        if (order !== text) return order;
      }
    }

    self.answer = async (typed, ask) => {
      const text = typed.split(/\s+/).join(" ");
      const orders = [text, shuffled(text)].filter(Boolean);
      const found = [];
      for (const order of orders) {
        const pair = [];
        for (const positions of [true, false]) {
          const translation = await translate(ask, order, { positions }, say);
          pair.push({ ...translation, weights: meanOf(translation.maps.cross.at(-1)) });
        }
        found.push({ text: order, pair });
      }
      shuffle.disabled = orders.length < 2;
      stage.replaceChildren(...ordersPicture(found, data.languages));
      if (orders.length < 2) return void say("Too few words to shuffle: the first one stays where it is. Type a longer sentence.");
      const same = [0, 1].map((i) => found[0].pair[i].text === found[1].pair[i].text);
      say(`Shuffled, the translation ${same[0] ? "stays the same" : "changes"} with positions and ${same[1] ? "stays the same" : "changes"} without.`);
    };
  }

  /** Orders of the same words, each translated with positions and without. */
  function ordersPicture(orders, languages) {
    const panel = (order, name, { read, written, text, weights }) => make("div", {},
      lines([[name, text]], languages[1]),
      heatmap(`Cross-attention. ${name}: ${order} → ${text}`, written, read, weights));
    return orders.flatMap(({ text, pair }) => [
      make("p", { class: "what-if-source", lang: languages[0] }, text),
      make("div", { class: "what-if-pair" }, panel(text, "With positions", pair[0]), panel(text, "Without positions", pair[1])),
    ]);
  }

  // --------------------------------------------------------------------- Chapter 4: masks

  function masks(self) {
    const { data, stage, say } = self;
    self.answer = async (text, ask) => {
      const entries = [];
      const shown = table("what-if-shares", ["next word", ...MASKS], []);
      let usual;
      const { freely } = await ask({ task: "shares", text }, ({ text, word, shares }) => {
        if (text !== undefined) {
          usual = text;
          stage.replaceChildren(lines([["Causal mask", usual]], data.languages[1]), shown);
          say(text);
        }
        if (!word) return;
        entries.push(shares);
        shown.querySelector("tbody").append(sharesRow(word, shares, data.languages[1]));
      });
      stage.firstChild.replaceWith(lines([["Causal mask", usual], ["No mask", freely]], data.languages[1]));
      const means = MASKS.map((_, k) => tools.percent(entries.reduce((sum, shares) => sum + shares[k], 0) / entries.length));
      const told = `Mean share of these words: ${means[0]} with the causal mask, ${means[1]} without it, ${means[2]} with the rest in view.`;
      say(`${told} Left to itself without a mask, the model writes: ${freely}`);
    };
  }

  function sharesRow(word, shares, lang) {
    const cells = shares.map((share) => make("td", {}, bar(share), make("span", {}, tools.percent(share))));
    return make("tr", {}, make("th", { scope: "row", lang }, word), ...cells);
  }

  function stillMasks({ usual, freely, rows }, languages) {
    const sentences = lines([["Causal mask", usual], ["No mask", freely]], languages[1]);
    const body = rows.map(({ word, shares }) => sharesRow(word, shares, languages[1]));
    return [sentences, table("what-if-shares", ["next word", ...MASKS], body)];
  }

  // --------------------------------------------------------------------- Chapter 7: neighbors

  function neighbors(self) {
    const { stage, say } = self;
    self.task = "Find neighbors";
    self.thing = "word";
    self.refusal = (text) => (text ? undefined : "Type a word first.");
    let pieces, only; // of what was typed; the token that was clicked
    const button = ({ id, name }, pressed) => {
      const made = make("button", { type: "button", ...(pressed === undefined ? {} : { "aria-pressed": pressed }) }, name);
      made.onclick = () => {
        only = id;
        self.form.requestSubmit();
      };
      return made;
    };
    self.answer = async (text, ask) => {
      const clicked = only;
      only = undefined;
      const found = await ask({ task: "neighbors", text, token: clicked, options: { count: NEAREST } });
      if (clicked === undefined) ({ pieces } = found);
      const { token, nearest, median } = found;
      const picture = neighborsPicture(token.name, nearest.map((entry) => [button(entry), entry.cosine]), median);
      const typed = make("div", { class: "what-if-pieces", role: "group", "aria-label": "Tokens of what you typed" });
      typed.append(...pieces.map((piece) => button(piece, piece.id === token.id)));
      const focused = stage.contains(document.activeElement);
      stage.replaceChildren(typed, ...picture);
      if (focused) (typed.querySelector("[aria-pressed=true]") ?? stage.querySelector("ol button")).focus();
      const [first, second, third] = nearest.map(({ name, cosine }) => `${name} (${signed(cosine)})`);
      const count = pieces.length > 1 && clicked === undefined ? `This falls into ${pieces.length} tokens; choose one. ` : "";
      say(`${count}Nearest to ${token.name}: ${first}, ${second}, ${third}. Half of all tokens have ${signed(median)} or less.`);
    };
  }

  /** The nearest tokens, as names or as buttons, with their cosines. */
  function neighborsPicture(name, nearest, median) {
    const entry = (content, cosine, attributes = {}) => make("li", attributes, make("span", {}, content), bar(cosine), make("span", {}, signed(cosine)));
    const rows = nearest.map(([content, cosine]) => entry(content, cosine));
    rows.push(entry("half of all", median, { class: "median" }));
    return [title(`Nearest to ${name}, by cosine`), make("ol", { class: "what-if-nearest" }, ...rows)];
  }

  const stillNeighbors = ({ pieces, nearest, median }) => neighborsPicture(pieces[0], nearest, median);

  // --------------------------------------------------------------------- Chapter 19: decoding

  function search(self) {
    const { data, stage, controls, said, say, again } = self;
    const [wayLabel, way] = select("Words are", [["search", "searched by beam"], ["draw", "drawn by lot"]], "search");
    const [beamLabel, beam] = slider("Beam", { min: 1, max: 6, value: data.start.beam }, (value) => (value === "1" ? "1 (greedy)" : value));
    const [alphaLabel, alpha] = slider("Length penalty", { min: 0, max: 3, step: 0.1, value: data.start.alpha });
    const [heatLabel, heat] = slider("Temperature", { min: 0.1, max: 2, step: 0.1, value: 1 });
    const [massLabel, mass] = slider("Top-p", { min: 0.1, max: 1, step: 0.05, value: 1 });
    controls.append(wayLabel, beamLabel, alphaLabel, heatLabel, massLabel);
    const choose = () => {
      beamLabel.hidden = alphaLabel.hidden = way.value === "draw";
      heatLabel.hidden = massLabel.hidden = way.value === "search";
    };
    for (const control of [way, beam, alpha, heat, mass]) control.onchange = () => (choose(), again());
    choose();

    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const [back, pause, on] = ["Previous", "Play", "Next"].map((name) => make("button", { type: "button" }, name));
    const steps = make("div", { class: "player-controls", role: "group", "aria-label": "Steps of the search" }, back, ...(calm ? [] : [pause]), on);
    steps.hidden = true;
    stage.after(steps);
    let rounds = [], done = false, now = 0, timer, tree;

    self.answer = async (text, ask) => {
      stop();
      [rounds, done, now] = [[], false, 0];
      const drawn = way.value === "draw" ? { temperature: +heat.value, topP: +mass.value } : {};
      await ask({ task: "search", text, options: { beam: +beam.value, alpha: +alpha.value, ...drawn } }, ({ round }) => {
        if (!round) return;
        rounds.push(round);
        if (rounds.length > 1) return void show(now);
        tree = treeOf(rounds, 1);
        stage.replaceChildren(scrollingTree(tree));
        steps.hidden = false;
        show(0);
        if (!calm) run();
      });
      done = true;
      if (timer) said.setAttribute("aria-live", "off"); // until it has played
      show(calm ? rounds.length - 1 : now);
    };

    /** Show the tree up to a step; at the end also who has won, and by which score. */
    function show(step) {
      now = Math.max(0, Math.min(rounds.length - 1, step));
      const last = done && now === rounds.length - 1;
      const path = last ? winningPath(rounds) : [];
      const grown = treeOf(rounds, now + 1, path);
      tree.replaceWith(grown);
      tree = grown;
      stage.querySelector(".what-if-finished")?.remove();
      if (last && way.value === "search") stage.append(finished(rounds, data.languages[1]));
      const named = (kept) => rounds[now].filter((one) => one.kept === kept).map(({ word, total }) => `${word} (${signed(total)})`).join(", ");
      const dropped = named(false);
      const best = last ? ` Best: ${bestOf(rounds).text}` : "";
      say(`Step ${now + 1} of ${done ? rounds.length : "…"}. Kept: ${named(true)}.${dropped ? ` Dropped: ${dropped}.` : ""}${best}`);
      back.disabled = now === 0;
      on.disabled = now === rounds.length - 1;
      tools.keepFocus(steps);
      const view = tree.parentElement;
      view.scrollTop = view.scrollHeight;
    }

    function stop() {
      clearInterval(timer);
      timer = undefined;
      pause.textContent = "Play";
      said.setAttribute("aria-live", "polite");
    }

    function run() {
      if (done && now === rounds.length - 1) show(0);
      said.setAttribute("aria-live", "off"); // not a sentence for each step
      pause.textContent = "Pause";
      timer = setInterval(() => {
        const last = now + 1 >= rounds.length - 1;
        if (done && last) stop();
        if (now < rounds.length - 1 || done) show(now + 1);
      }, PACE);
    }

    pause.onclick = () => (timer ? stop() : run());
    back.onclick = () => (stop(), show(now - 1));
    on.onclick = () => (stop(), show(now + 1));
  }

  const endings = (rounds) => rounds.flat().filter(({ kept, ended }) => kept && ended).sort((a, b) => b.score - a.score);
  const bestOf = (rounds) => endings(rounds)[0] ?? rounds.at(-1)[0]; // a draw may have found no end

  /** The places, step by step, of the hypothesis with the best score. */
  function winningPath(rounds) {
    const best = bestOf(rounds);
    const path = [];
    for (let n = best.length - 1, place = rounds[n].indexOf(best); n >= 0; n--) {
      path[n] = place;
      place = rounds[n][place].from;
    }
    return path;
  }

  const scrollingTree = (tree) => scrolling("Tree of hypotheses, one step a row", tree);

  /** The first `count` steps of a search; `path` has the winner's place in each. */
  function treeOf(rounds, count = rounds.length, path = []) {
    const columns = Math.max(...rounds.map((round) => round.length));
    const levels = rounds.slice(0, count).map((round, n) => level(round, columns, path[n]));
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

  function stillSearch({ rounds }, languages) {
    const tree = treeOf(rounds, rounds.length, winningPath(rounds));
    return [scrollingTree(tree), finished(rounds, languages[1])];
  }

  const FIGURES = { maps, positions, masks, neighbors, search };
  const STILLS = {
    maps: stillMaps,
    positions: ({ orders }, languages) => ordersPicture(orders, languages),
    masks: stillMasks,
    neighbors: stillNeighbors,
    search: stillSearch,
  };
  bookFigures.whatif = { render, still };
})();
