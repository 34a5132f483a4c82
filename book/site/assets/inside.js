// One sentence through the whole machine: the towers, a layer, a head, a network. A recorded sentence is a picture
// until the reader comes to it; any other comes from the model, with a click, through the translator's worker.
//
// data: most, layers, pre_norm, directions: [{model (name of its script), megabytes (0: it is in the page), languages
//   (of source and target), label (of the field; none: the page has no model for other sentences)}], text (recorded in
//   the first direction, or none), example (what was recorded; else it is a script of its own), start (word), code:
//   {step of a head: its line of code}, one_head (the code is for one head of one sentence), units (whether a table of
//   those of the first model is there)
// The place is in the address: #layer=2&part=cross&head=1&word=3&step=4, all counted from 1; side=encoder; text=...
// and, in another direction than the first, from=en.
// An address without "=" names a place of the page, such as a section, and leaves the figure as it is.

"use strict";

(() => {
  const PACE = { machine: 1100, head: 3000 }; // milliseconds a step when it plays
  const STROKE = 40; // pixels that a finger goes to the side
  const VIEWS = ["inside_parts", "inside_machine", "inside_layer", "inside_head"]; // each may use those before it
  let requests = 0;

  async function render({ data, el }) {
    const { start, sayLoading, directionButtons, refusal, tooMany, make } = await bookFigures.load("translator");
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const id = `inside-${++requests}`;
    const [first] = data.directions;
    const loaded = new Set(); // names of models
    let direction; // of what is typed; an answer has its own
    let views, units, answer, place, number, timer, all = false;

    const ways = directionButtons(data.directions, (way) => turn(way));
    const label = make("label", { for: id });
    const field = make("input", { id, dir: "auto", type: "text", value: data.text ?? "", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" });
    const form = make("form", { class: "translator-form" }, label, field, submit);
    const crumbs = make("nav", { class: "inside-crumbs", "aria-label": "Place in the machine" });
    const [back, play, on] = ["Previous", "Play", "Next"].map((name) => make("button", { type: "button" }, name));
    const slider = make("input", { type: "range", min: 1, max: data.steps ?? 1, value: data.start + 1, "aria-label": "Word" });
    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Steps" });
    controls.append(back, ...(calm ? [] : [play]), on, slider);
    const said = make("p", { class: "translator-said", "aria-live": "polite" }, data.text ? "A recorded sentence. Choose a layer or a word." : "");
    const stage = make("div", { class: "inside-stage", tabindex: 0, role: "group", "aria-label": "The machine; the left and right arrow keys step, up and down change the layer, Escape goes out" });
    stage.append(...el.querySelector(".inside-still").childNodes);
    el.querySelector(".inside-still").replaceWith(...(first.label ? [ways, form] : []), crumbs, controls, said, stage);
    crumbs.hidden = controls.hidden = stage.hidden = !data.text;

    /** Sentences are typed in another language; a model has it or has to come. */
    function turn(way) {
      direction = way;
      ways.press(way);
      label.textContent = way.label ?? "";
      field.lang = way.languages[0];
      nameSubmit();
    }

    function nameSubmit() {
      const { model, megabytes } = direction;
      const isHere = loaded.has(model) || !megabytes;
      submit.textContent = isHere ? "Look inside" : `Load the model (${megabytes} MB) and look inside`;
    }
    turn(first);

    // ------------------------------------------------------------------- where the reader is

    const addressAfter = (at, changes) => `#${addressOf(moved(at, changes), data.text, first)}`;
    const context = (at = place) => ({
      answer, place: at, all, everything, code: data.code, config: data,
      lang: answer.direction.languages.map((code) => (code ? { lang: code } : {})),
      units: answer.direction === first ? units : undefined,
      to: (changes) => addressAfter(at, changes).slice(1),
      link: (changes, ...content) => make("a", { href: addressAfter(at, changes) }, ...content),
    });

    /** Go to a place; the address follows, as a new entry of the history when the reader zooms. */
    function go(changes, zoomed = false) {
      const to = addressAfter(place, changes);
      if (to !== location.hash) history[zoomed ? "pushState" : "replaceState"](null, "", to);
      place = placeOf(location.hash, answer);
      draw();
    }

    function draw() {
      const level = levelOf(place);
      if (level === "head") place.step = Math.min(place.step, countOf(context()) - 1);
      const at = context();
      const focused = [crumbs, stage].some((part) => part.contains(document.activeElement));
      const { draw: picture, say } = viewOf(views, level);
      const count = countOf(at);
      const now = stepOf(at);
      crumbs.replaceChildren(...path(at, make));
      stage.className = `inside-stage inside-at-${level}`;
      stage.replaceChildren(...picture(at));
      if (focused && document.activeElement === document.body) stage.focus({ preventScroll: true }); // what had it is gone
      said.textContent = [named(place), say(at), level === "machine" && answer.note].filter(Boolean).join(" ");
      Object.assign(slider, { max: count, value: now + 1 });
      slider.setAttribute("aria-label", level === "head" ? "Step" : "Word");
      slider.setAttribute("aria-valuetext", `${now + 1} of ${count}`);
      back.disabled = now === 0;
      on.disabled = now === count - 1;
      play.hidden = !(level in PACE);
      showLit(el);
      if (level === "network" && data.units && !units) learnUnits();
    }

    /** What else makes the units fire comes when a network is looked at, and the table grows by a column. */
    async function learnUnits() {
      units = await bookFigures.load("inside_units").catch(() => ({})); // without it, the column stays away
      if (levelOf(place) === "network") draw();
    }

    /** All dimensions of a head, or the first ones. */
    function everything() {
      const box = make("input", { type: "checkbox", ...(all ? { checked: "" } : {}) });
      box.onchange = () => ((all = box.checked), draw(), stage.querySelector("input").focus());
      return make("label", { class: "inside-all" }, box, "all dimensions");
    }

    const countOf = (at = context()) => (levelOf(at.place) === "head" ? views.head.stepsOf(at).length : views.parts.tokensOf(answer, at.place.side).length);
    const stepOf = ({ place }) => (levelOf(place) === "head" ? place.step : place.word[place.side]);
    const toStep = (step) => {
      const within = Math.max(0, Math.min(countOf() - 1, step));
      go(levelOf(place) === "head" ? { step: within } : { word: { ...place.word, [place.side]: within } });
    };

    /** The next layer of the same tower, at the same head. */
    function climb(by) {
      const layer = Math.max(0, Math.min(answer.layers - 1, place.layer + by));
      const { part, head, step } = place;
      if (layer !== place.layer) go({ layer, part, head, step });
    }

    // ------------------------------------------------------------------- time

    function stop() {
      clearInterval(timer);
      timer = undefined;
      play.textContent = "Play";
      said.setAttribute("aria-live", "polite");
    }

    async function run() {
      await ready();
      if (stepOf({ place }) === countOf() - 1) toStep(0);
      said.setAttribute("aria-live", "off"); // not a sentence for each step
      play.textContent = "Pause";
      timer = setInterval(() => {
        toStep(stepOf({ place }) + 1);
        if (stepOf({ place }) === countOf() - 1) stop();
      }, PACE[levelOf(place)]);
    }

    async function step(by) {
      stop();
      await ready();
      if (answer) toStep(by(stepOf({ place })));
    }

    play.onclick = () => (timer ? stop() : run());
    back.onclick = () => step((now) => now - 1);
    on.onclick = () => step((now) => now + 1);
    slider.oninput = () => step(() => slider.value - 1);

    el.addEventListener("keydown", (event) => {
      const { key, target } = event;
      if (event.altKey || event.ctrlKey || event.metaKey || target.matches("input, select")) return;
      const by = { ArrowLeft: (now) => now - 1, ArrowRight: (now) => now + 1, Home: () => 0, End: () => Infinity }[key];
      if (by && !(target.matches(".inside-scroll") && scrolls(target))) (event.preventDefault(), step(by));
      if (!place || levelOf(place) === "machine") return;
      const up = { ArrowUp: 1, ArrowDown: -1 }[key];
      if (up) (event.preventDefault(), stop(), climb(up));
      if (key === "Escape") (stop(), go(outwards(place), true), stage.focus());
    });

    // A finger's stroke to the side steps, unless what it touches scrolls that way
    let touched;
    stage.addEventListener("touchstart", ({ touches, target }) => {
      const box = target.closest(".inside-scroll");
      touched = touches.length === 1 && !(box && scrolls(box)) ? touches[0] : undefined;
    }, { passive: true });
    stage.addEventListener("touchend", ({ changedTouches: [touch] }) => {
      if (!touched) return;
      const [x, y] = [touch.clientX - touched.clientX, touch.clientY - touched.clientY];
      touched = undefined;
      if (Math.abs(x) > STROKE && Math.abs(x) > 2 * Math.abs(y)) step((now) => now - Math.sign(x));
    });

    // ------------------------------------------------------------------- choosing

    stage.addEventListener("click", async (event) => {
      const chosen = event.target.closest("[data-to]");
      if (!chosen) return;
      await ready();
      location.hash = chosen.getAttribute("data-to");
    });

    addEventListener("hashchange", async () => {
      if (!isPlace(location.hash)) return;
      stop();
      const linked = linkedText();
      if (linked && !isAnswered(linked)) return ask(linked.text, linked.way);
      if (!linked && answer && !isAnswered({ text: data.text, way: first })) {
        answer = undefined; // back to the recorded one
        field.value = data.text ?? "";
        turn(first);
      }
      const level = place && levelOf(place);
      await ready();
      if (!answer) return;
      place = placeOf(location.hash, answer);
      draw();
      if (level !== levelOf(place)) arrive();
    });

    /** After a zoom, the keyboard is where the picture is, and the picture is in view. */
    function arrive() {
      stage.focus({ preventScroll: true });
      bringIntoView();
    }

    function bringIntoView() {
      const { top } = crumbs.getBoundingClientRect();
      if (top < 0 || top > 0.7 * innerHeight) crumbs.scrollIntoView({ block: "start" });
    }

    /** The sentence that the address names, and its direction, if it is another than the recorded one. */
    function linkedText() {
      const { text, from } = wanted(location.hash);
      const way = data.directions.find(({ languages }) => languages[0] === from) ?? first;
      if (text === undefined || !first.label || (text === data.text && way === first)) return undefined;
      return { text, way };
    }

    const isAnswered = ({ text, way }) => answer?.text === text && answer.direction === way;

    // ------------------------------------------------------------------- what is shown

    async function load() {
      for (const name of VIEWS) await bookFigures.load(name);
      const [parts, machine, layer, head] = VIEWS.map((name) => bookFigures[name]);
      views = { parts, machine, layer, head };
    }

    /** The recorded sentence, unless there is another. */
    async function ready() {
      if (answer || !data.text) return;
      await load();
      const example = data.example ?? (await bookFigures.load("inside_example"));
      answer ??= { ...example, layers: data.layers, direction: first };
      place ??= placeOf(location.hash, answer, data.start);
      draw();
    }

    form.onsubmit = (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text && text === data.text && direction === first) location.hash = "word=1"; // no model is needed
      else ask(text, direction, true);
    };

    /** Let the model translate a text, and show how. */
    async function ask(text, way, typed = false) {
      stop();
      turn(way);
      field.value = text;
      const refused = refusal(text);
      if (refused) return void (said.textContent = refused);
      const mine = (number = ++requests);
      said.textContent = "Translating …";
      const { model, megabytes } = way;
      const hear = loaded.has(model) || !megabytes ? () => {} : sayLoading(said, megabytes);
      try {
        await load();
        const worker = await start(hear, model);
        loaded.add(model);
        nameSubmit();
        if (number === mine) listen(worker, text, way, typed);
      } catch (error) {
        said.textContent = `The model could not be loaded (${error.message}). Try again.`;
      }
    }

    function listen(worker, text, way, typed) {
      const mine = number;
      const key = `inside ${mine}`;
      let source;
      const hear = ({ data: message }) => {
        if (message.number !== key) return;
        if (message.source) source = message.source;
        if (!message.done && !message.tooLong) return;
        worker.removeEventListener("message", hear);
        if (mine !== number) return;
        if (message.tooLong) return void (said.textContent = tooMany(message.tooLong, data.most));
        const note = message.ended ? "" : "It found no end and was stopped.";
        answer = { ...message, text, source, layers: data.layers, direction: way, note };
        const from = way === first ? "" : `from=${way.languages[0]}&`;
        if (typed) history.pushState(null, "", `#${from}text=${encodeURIComponent(text)}`);
        place = placeOf(location.hash, answer);
        crumbs.hidden = controls.hidden = stage.hidden = false;
        draw();
        if (!typed) arrive();
      };
      worker.addEventListener("message", hear);
      worker.onerror = () => (said.textContent = "The model stopped working. Load the page again.");
      worker.postMessage({ number: key, task: "inside", text, most: data.most + 1, options: {} });
    }

    // A link may name a sentence and a place; else the recorded one waits for the reader
    const linked = wanted(location.hash);
    if (linkedText()) await ask(linkedText().text, linkedText().way);
    else if ("layer" in linked || "word" in linked) (await ready(), bringIntoView());
    else for (const part of [controls, stage]) {
      for (const sign of ["pointerenter", "focusin"]) part.addEventListener(sign, () => ready(), { once: true });
    }
  }

  // ----------------------------------------------------------------------- places

  const isPlace = (hash) => hash === "" || hash.includes("=");
  const wanted = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
  const usual = (side) => (side === "decoder" ? "cross" : "self"); // the part whose head is meant if none is named

  /** The place that an address names, within what there is; counted from 0. */
  function placeOf(hash, answer, start = 0) {
    const { text, source, written, layers, direction } = answer;
    const { side: tower, layer, part, head, word, step } = wanted(hash);
    const side = tower === "encoder" ? "encoder" : "decoder";
    const index = (text, count) => (/^\d+$/.test(text ?? "") ? Math.max(0, Math.min(count, Number(text)) - 1) : undefined);
    const lengths = { encoder: source.length, decoder: written.length };
    const place = { text, direction, side, layer: index(layer, layers), word: { encoder: 0, decoder: Math.min(start, written.length - 1) }, step: 0 };
    place.word[side] = index(word, lengths[side]) ?? place.word[side];
    if (place.layer === undefined) return { ...place, side: "decoder" };
    const { SUBLAYERS, headsOf } = bookFigures.inside_parts;
    const parts = SUBLAYERS[side].map(([name]) => name);
    if (parts.includes(part)) place.part = part;
    else if (head !== undefined) place.part = usual(side);
    if (place.part && place.part !== "network") place.head = index(head, headsOf(answer, side, place.layer, place.part));
    if (place.head !== undefined) place.step = index(step, Infinity) ?? 0;
    return place;
  }

  /** The address of a place: what is usual is left out. */
  function addressOf({ text, direction, side, layer, part, head, word, step }, recorded, first) {
    const entries = {
      from: direction === first ? undefined : direction.languages[0],
      text: text === recorded && direction === first ? undefined : text,
      side: side === "encoder" && layer !== undefined ? side : undefined,
      layer: layer === undefined ? undefined : layer + 1,
      part: head !== undefined && part === usual(side) ? undefined : part,
      head: head === undefined ? undefined : head + 1,
      word: word[side] + 1,
      step: head === undefined || !step ? undefined : step + 1,
    };
    const named = Object.entries(entries).filter(([, value]) => value !== undefined);
    return named.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  }

  /** A place after some changes; another layer or head is entered at its beginning. */
  function moved(place, changes) {
    const entered = "layer" in changes ? { part: undefined, head: undefined, step: 0 } : {};
    return { ...place, ...entered, ...changes };
  }

  function levelOf({ layer, part, head }) {
    if (layer === undefined) return "machine";
    if (part === "network") return "network";
    return head === undefined ? "layer" : "head";
  }

  /** Which part of the machine a place is, in words. */
  function named({ side, layer, part, head }) {
    if (layer === undefined) return "";
    const tower = side === "encoder" ? "Encoder" : "Decoder";
    const words = { self: "self-attention", cross: "cross-attention" };
    return `${tower}, layer ${layer + 1}${head === undefined ? "" : `, ${words[part]}, head ${head + 1}`}.`;
  }

  const outwards = (place) => (levelOf(place) === "layer" ? { layer: undefined, side: "decoder" } : { layer: place.layer });

  function viewOf(views, level) {
    if (level === "network") return { draw: views.layer.drawNetwork, say: views.layer.sayNetwork };
    return views[level];
  }

  /** The way from the machine to the place, with its neighbors, and the positions to look at. */
  function path(at, make) {
    const { answer, place, link, lang } = at;
    const level = levelOf(place);
    if (level === "machine") return [make("p", {}, make("b", {}, "The machine"), ": choose a layer to look into it")];
    const { tokensOf, headsOf, SUBLAYERS } = bookFigures.inside_parts;
    const group = (name, ...entries) => make("p", {}, make("span", {}, name), ...entries);
    const entry = (changes, text, now) => {
      const made = link(changes, text);
      if (now) made.setAttribute("aria-current", "true");
      return made;
    };
    const numbers = (count) => [...Array(count).keys()];
    const { side, layer, part, head } = place;
    const layers = (name, words) => group(words, ...numbers(answer.layers).map((n) => entry({ side: name, layer: n }, `${n + 1}`, name === side && n === layer)));
    const rows = [make("div", {}, make("p", {}, link({ layer: undefined, side: "decoder" }, "The machine")), layers("encoder", "Encoder, layer"), layers("decoder", "Decoder, layer"))];
    if (level !== "layer") {
      const parts = SUBLAYERS[side].map(([name, words]) => {
        if (name === "network") return group("", entry({ part: name, head: undefined, step: 0 }, "network", part === name));
        return group(`${words}, head`, ...numbers(headsOf(answer, side, layer, name)).map((h) => entry({ part: name, head: h }, `${h + 1}`, part === name && h === head)));
      });
      rows.push(make("div", {}, ...parts));
    }
    const tokens = tokensOf(answer, side).map((token, i) => entry({ word: { ...place.word, [side]: i } }, token, i === place.word[side]));
    const name = make("span", { lang: "en" }, "at");
    return [...rows, make("div", {}, make("p", lang[side === "encoder" ? 0 : 1], name, ...tokens))];
  }

  const scrolls = (box) => box.scrollWidth > box.clientWidth;

  /** Scroll what the step is about into view, within its own box, and where one is in the rows of places. */
  function showLit(el) {
    for (const chosen of el.querySelectorAll(".inside-crumbs [aria-current]")) {
      const row = chosen.closest("div");
      row.scrollLeft += chosen.getBoundingClientRect().left - row.getBoundingClientRect().left - row.clientWidth / 2;
    }
    for (const box of el.querySelectorAll(".inside-scroll")) {
      const lit = [...box.querySelectorAll("td.lit, td.chosen")];
      if (!lit.length || !scrolls(box)) continue;
      const names = box.querySelector("th[scope=row]").offsetWidth;
      box.scrollLeft = Math.min(...lit.map((cell) => cell.offsetLeft)) - names - (lit[0].matches(".chosen") ? 1.5 * lit[0].offsetWidth : 0);
    }
  }

  /** The picture of a recorded sentence at a word, without a script. */
  function still(answer, start, languages) {
    const { make } = bookFigures.translator;
    const at = {
      answer,
      place: { side: "decoder", word: { encoder: 0, decoder: start } },
      lang: languages.map((code) => (code ? { lang: code } : {})),
      to: (changes) => addressOf(moved(at.place, changes)),
      link: (changes, ...content) => make("span", { class: "inside-link", "data-to": at.to(changes) }, ...content),
    };
    return make("div", { class: "inside-still" }, ...bookFigures.inside_machine.draw(at));
  }

  bookFigures.inside = { render, still };
})();
