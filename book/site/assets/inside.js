// One sentence through the whole machine: the towers, a layer, a head, a network. A recorded sentence is a picture
// until the reader comes to it; any other comes from the model, with a click, through the translator's worker.
//
// data: most, layers, heads, pre_norm, megabytes (0: the model is in the page), languages, label, text (recorded,
//   or none), start (word), code: {part of a head: its line in the package}, units (whether a table of them is there)
// The place is in the address: #layer=2&part=cross&head=1&word=3&step=4, all counted from 1; side=encoder, text=...

"use strict";

(() => {
  const PACE = { machine: 1100, head: 3000 }; // milliseconds a step when it plays
  const VIEWS = ["inside_parts", "inside_machine", "inside_layer", "inside_head"]; // each may use those before it
  let requests = 0;

  async function render({ data, el }) {
    const { start, refusal, tooMany, make } = await bookFigures.load("translator");
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const id = `inside-${++requests}`;
    const lang = data.languages.map((code) => (code ? { lang: code } : {}));
    let views, units, answer, place, number, timer, all = false;
    let loaded = !data.megabytes;

    const field = make("input", { id, ...lang[0], dir: "auto", type: "text", value: data.text ?? "", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" }, loaded ? "Look inside" : `Load the model (${data.megabytes} MB) and look inside`);
    const form = make("form", { class: "translator-form" }, make("label", { for: id }, data.label), field, submit);
    const crumbs = make("nav", { class: "inside-crumbs", "aria-label": "Place in the machine" });
    const [back, play, on] = ["Previous", "Play", "Next"].map((name) => make("button", { type: "button" }, name));
    const slider = make("input", { type: "range", min: 1, max: data.steps ?? 1, value: data.start + 1, "aria-label": "Word" });
    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Steps" });
    controls.append(back, ...(calm ? [] : [play]), on, slider);
    const said = make("p", { class: "translator-said", "aria-live": "polite" }, data.text ? "A recorded sentence. Choose a layer or a word." : "");
    const stage = make("div", { class: "inside-stage", tabindex: 0, role: "group", "aria-label": "The machine; the left and right arrow keys step, Escape goes out" });
    stage.append(...el.querySelector(".inside-still").childNodes);
    el.querySelector(".inside-still").replaceWith(form, crumbs, controls, said, stage);
    crumbs.hidden = controls.hidden = stage.hidden = !data.text;

    // ------------------------------------------------------------------- where the reader is

    const context = (at = place) => ({
      answer, place: at, lang, all, everything, units, code: data.code, config: data,
      to: (changes) => addressOf(moved(at, changes), data.text),
      link: (changes, ...content) => make("a", { href: `#${addressOf(moved(at, changes), data.text)}` }, ...content),
    });

    /** Go to a place; the address follows, as a new entry of the history when the reader zooms. */
    function go(changes, zoomed = false) {
      const to = `#${addressOf(moved(place, changes), data.text)}`;
      if (to !== location.hash) history[zoomed ? "pushState" : "replaceState"](null, "", to);
      place = placeOf(location.hash, answer);
      draw();
    }

    function draw() {
      const at = context();
      const level = levelOf(place);
      const { draw: picture, say } = viewOf(views, level);
      const count = countOf(at);
      const now = stepOf(at);
      crumbs.replaceChildren(...path(at, make));
      stage.className = `inside-stage inside-at-${level}`;
      stage.replaceChildren(...picture(at));
      said.textContent = [say(at), level === "machine" && answer.note].filter(Boolean).join(" ");
      Object.assign(slider, { max: count, value: now + 1 });
      slider.setAttribute("aria-label", level === "head" ? "Step" : "Word");
      slider.setAttribute("aria-valuetext", `${now + 1} of ${count}`);
      back.disabled = now === 0;
      on.disabled = now === count - 1;
      play.hidden = !(level in PACE);
      showLit(stage);
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

    const countOf = (at) => (levelOf(at.place) === "head" ? views.head.stepsOf(at.place).length : views.parts.tokensOf(answer, at.place.side).length);
    const stepOf = ({ place }) => (levelOf(place) === "head" ? place.step : place.word[place.side]);
    const toStep = (step) => {
      const within = Math.max(0, Math.min(countOf({ place }) - 1, step));
      go(levelOf(place) === "head" ? { step: within } : { word: { ...place.word, [place.side]: within } });
    };

    // ------------------------------------------------------------------- time

    function stop() {
      clearInterval(timer);
      timer = undefined;
      play.textContent = "Play";
      said.setAttribute("aria-live", "polite");
    }

    async function run() {
      await ready();
      if (stepOf({ place }) === countOf({ place }) - 1) toStep(0);
      said.setAttribute("aria-live", "off"); // not a sentence for each step
      play.textContent = "Pause";
      timer = setInterval(() => {
        toStep(stepOf({ place }) + 1);
        if (stepOf({ place }) === countOf({ place }) - 1) stop();
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
      const scrolls = target.matches(".inside-scroll") && target.scrollWidth > target.clientWidth;
      if (by && !scrolls) (event.preventDefault(), step(by));
      if (key === "Escape" && place && levelOf(place) !== "machine") (stop(), go(outwards(place), true), stage.focus());
    });

    // ------------------------------------------------------------------- choosing

    stage.addEventListener("click", async (event) => {
      const chosen = event.target.closest("[data-to]");
      if (!chosen) return;
      await ready();
      location.hash = chosen.getAttribute("data-to");
    });

    addEventListener("hashchange", async () => {
      stop();
      const text = linkedText();
      if (text !== undefined && text !== answer?.text) return ask(text);
      if (text === undefined && answer && answer.text !== data.text) {
        answer = undefined; // back to the recorded one
        field.value = data.text ?? "";
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
      const { top } = crumbs.getBoundingClientRect();
      if (top < 0 || top > 0.7 * innerHeight) crumbs.scrollIntoView({ block: "start" });
    }

    /** The sentence that the address names, if it is another than the recorded one. */
    function linkedText() {
      const { text } = wanted(location.hash);
      return text === data.text ? undefined : text;
    }

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
      const example = await bookFigures.load("inside_example");
      answer ??= { ...example, layers: data.layers };
      place ??= placeOf(location.hash, answer, data.start);
      draw();
    }

    form.onsubmit = (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text && text === data.text) location.hash = "word=1"; // no model is needed
      else ask(text, true);
    };

    /** Let the model translate a text, and show how. */
    async function ask(text, typed = false) {
      stop();
      field.value = text;
      const refused = refusal(text);
      if (refused) return void (said.textContent = refused);
      const mine = (number = ++requests);
      said.textContent = loaded ? "Translating …" : "Loading the model …";
      try {
        await load();
        const worker = await start();
        loaded = true;
        submit.textContent = "Look inside";
        if (number === mine) listen(worker, text, mine, typed);
      } catch (error) {
        said.textContent = `The model could not be loaded (${error.message}). Try again.`;
      }
    }

    function listen(worker, text, mine, typed) {
      let source;
      const key = `inside ${mine}`;
      const hear = ({ data: message }) => {
        if (message.number !== key) return;
        if (message.source) source = message.source;
        if (!message.done && !message.tooLong) return;
        worker.removeEventListener("message", hear);
        if (mine !== number) return;
        if (message.tooLong) return void (said.textContent = tooMany(message.tooLong, data.most));
        answer = { ...message, text, source, layers: data.layers, note: message.ended ? "" : "It found no end and was stopped." };
        if (typed) history.pushState(null, "", `#text=${encodeURIComponent(text)}`);
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
    if (linkedText() !== undefined) await ask(linkedText());
    else if ("layer" in linked || "word" in linked) await ready();
    else for (const part of [controls, stage]) {
      for (const sign of ["pointerenter", "focusin"]) part.addEventListener(sign, () => ready(), { once: true });
    }
  }

  // ----------------------------------------------------------------------- places

  const wanted = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
  const usual = (side) => (side === "decoder" ? "cross" : "self"); // the part whose head is meant if none is named

  /** The place that an address names, within what there is; counted from 0. */
  function placeOf(hash, { text, source, written, layers, trace }, start = 0) {
    const { side: named, layer, part, head, word, step } = wanted(hash);
    const side = named === "encoder" ? "encoder" : "decoder";
    const index = (text, count) => (/^\d+$/.test(text ?? "") ? Math.max(0, Math.min(count, Number(text)) - 1) : undefined);
    const lengths = { encoder: source.length, decoder: written.length };
    const place = { text, side, layer: index(layer, layers), word: { encoder: 0, decoder: Math.min(start, written.length - 1) }, step: 0 };
    place.word[side] = index(word, lengths[side]) ?? place.word[side];
    if (place.layer === undefined) return { ...place, side: "decoder" };
    const parts = side === "decoder" ? ["self", "cross", "network"] : ["self", "network"];
    const heads = trace[`${side}.layers.0.self_attention`].scores[0].length;
    place.head = part === "network" ? undefined : index(head, heads);
    if (parts.includes(part)) place.part = part;
    else if (place.head !== undefined) place.part = usual(side);
    const steps = side === "decoder" && place.part === "self" ? 8 : 7;
    if (place.head !== undefined) place.step = index(step, steps) ?? 0;
    return place;
  }

  /** The address of a place: what is usual is left out. */
  function addressOf({ text, side, layer, part, head, word, step }, recorded) {
    const entries = {
      text: text === recorded ? undefined : text,
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

  const outwards = (place) => (levelOf(place) === "layer" ? { layer: undefined, side: "decoder" } : { layer: place.layer });

  function viewOf(views, level) {
    if (level === "network") return { draw: views.layer.drawNetwork, say: views.layer.sayNetwork };
    return views[level];
  }

  /** The way from the machine to the place, with its neighbors, and the positions to look at. */
  function path(at, make) {
    const { answer, place, config, link, lang } = at;
    const level = levelOf(place);
    if (level === "machine") return [make("p", {}, make("b", {}, "The machine"), ": choose a layer to look into it")];
    const { tokensOf, SUBLAYERS } = bookFigures.inside_parts;
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
        return group(`${words}, head`, ...numbers(config.heads).map((h) => entry({ part: name, head: h }, `${h + 1}`, part === name && h === head)));
      });
      rows.push(make("div", {}, ...parts));
    }
    const tokens = tokensOf(answer, side).map((token, i) => entry({ word: { ...place.word, [side]: i } }, token, i === place.word[side]));
    const name = make("span", { lang: "en" }, "at");
    return [...rows, make("div", {}, make("p", lang[side === "encoder" ? 0 : 1], name, ...tokens))];
  }

  /** Scroll what the step is about into view, within its own box. */
  function showLit(stage) {
    for (const box of stage.querySelectorAll(".inside-scroll")) {
      const lit = [...box.querySelectorAll("td.lit, td.chosen")];
      if (!lit.length || box.scrollWidth <= box.clientWidth) continue;
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
      lang: languages.map((code) => ({ lang: code })),
      to: (changes) => addressOf(moved(at.place, changes)),
      link: (changes, ...content) => make("span", { class: "inside-link", "data-to": at.to(changes) }, ...content),
    };
    return make("div", { class: "inside-still" }, ...bookFigures.inside_machine.draw(at));
  }

  bookFigures.inside = { render, still };
})();
