// One sentence through the whole machine: the towers, a layer, a head, a network. A sentence that was computed while the
// site was built is a picture; its numbers come with the page's script. Any other comes from the model, with a click.
//
// data: most, layers, heads, pre_norm, directions: as in live.js, text (computed in the first direction, or none), start
//   (word), code: {step of a head: its line of code}, units (whether a table of those of the first model is there)
// The place is in the address: #layer=2&part=cross&head=1&word=3&step=4, all counted from 1; side=encoder; text=...
// and, in another direction than the first, from=en. An address without "=" names a place of the page.

"use strict";

(() => {
  const { make, inLanguage, fieldOf } = live;

  async function render({ data, el }) {
    const [first] = data.directions;
    const crumbs = make("nav", { class: "inside-crumbs", "aria-label": "Place in the machine" });
    const captions = el.querySelectorAll("figcaption [data-level]"); // one for each picture
    const [back, on] = ["Previous", "Next"].map((name) => make("button", { type: "button" }, name));
    const controls = make("div", { class: "inside-controls", role: "group", "aria-label": "Steps" }, back, on);
    const keys = "the left and right arrow keys step, up and down change the layer, Escape goes out";
    const stage = make("div", { class: "inside-stage live-stage", tabindex: 0, role: "group", "aria-label": `The machine; ${keys}` });
    const asking = fieldOf({ data, el, task: "Look inside", answer: compute });
    let answer, place, units;

    // ----------------------------------------------------------------- where the reader is

    const addressAfter = (changes) => `#${addressOf({ ...place, ...entered(changes), ...changes }, answer, data, first)}`;
    const at = () => ({
      answer, place, units: answer.direction === first ? units : undefined, code: data.code, pre_norm: data.pre_norm,
      lang: answer.direction.languages.map(inLanguage),
      link: (changes, ...content) => make("a", { href: addressAfter(changes) }, ...content),
    });

    /** Go to a place; the address follows. */
    function go(changes, zoomed = false) {
      history[zoomed ? "pushState" : "replaceState"](null, "", addressAfter(changes));
      draw();
    }

    function draw() {
      place = placeOf(location.hash, answer, data);
      const level = levelOf(place);
      const { draw: picture, say } = live.inside_views[level];
      const focused = [crumbs, stage].some((part) => part.contains(document.activeElement));
      crumbs.replaceChildren(...path(at()));
      stage.replaceChildren(...picture(at()));
      crumbs.hidden = controls.hidden = stage.hidden = false;
      for (const caption of captions) caption.hidden = caption.dataset.level !== level;
      el.classList.remove("waiting", "refused");
      if (focused && document.activeElement === document.body) stage.focus({ preventScroll: true }); // what had it is gone
      asking.say(named(place), say(at()));
      back.disabled = stepOf() === 0;
      on.disabled = stepOf() === countOf() - 1;
      if (document.activeElement?.disabled) controls.querySelector("button:enabled").focus();
      showChosen(el);
      if (level === "network" && data.units && !units) learnUnits();
    }

    /** What else makes the units fire comes when a network is looked at, and the table grows by a column. */
    async function learnUnits() {
      units = await live.load("inside_units").catch(() => ({})); // without it, the column stays away
      draw();
    }

    const isHead = () => levelOf(place) === "head";
    const countOf = () => (isHead() ? live.inside_views.stepsOf(place) : live.inside_views.tokensOf(answer, place.side)).length;
    const stepOf = () => (isHead() ? place.step : place.word[place.side]);

    function toStep(to) {
      const step = Math.max(0, Math.min(countOf() - 1, to));
      go(isHead() ? { step } : { word: { ...place.word, [place.side]: step } });
    }

    back.onclick = () => toStep(stepOf() - 1);
    on.onclick = () => toStep(stepOf() + 1);

    el.addEventListener("keydown", (event) => {
      const { key, target } = event;
      if (!answer || event.altKey || event.ctrlKey || event.metaKey || target.matches("input")) return;
      const level = levelOf(place);
      const { part, head, layer } = place;
      const climbed = (by) => Math.max(0, Math.min(answer.layers - 1, layer + by));
      const steps = {
        ArrowLeft: () => toStep(stepOf() - 1),
        ArrowRight: () => toStep(stepOf() + 1),
        Home: () => toStep(0),
        End: () => toStep(Infinity),
      };
      const zooms = {
        ArrowUp: () => go({ layer: climbed(1), part, head, step: place.step }),
        ArrowDown: () => go({ layer: climbed(-1), part, head, step: place.step }),
        Escape: () => go(level === "layer" ? { layer: undefined, side: "decoder" } : { layer }, true),
      };
      const scrolls = target.matches(".live-scroll") && target.scrollWidth > target.clientWidth;
      const act = (scrolls ? {} : steps)[key] ?? (level === "machine" ? {} : zooms)[key];
      if (!act) return;
      event.preventDefault();
      act();
    });

    addEventListener("hashchange", () => isPlace(location.hash) && arrive());

    /** Show what the address names: its sentence, or the one that was computed, and its place in it. */
    async function arrive() {
      const { text = data.text, from } = wanted(location.hash);
      const direction = data.directions.find(({ languages }) => from && languages[0] === from) ?? first;
      if (text === undefined) return;
      if (answer?.text === text && answer.direction === direction) return draw();
      asking.turn(direction);
      asking.field.value = text;
      if (text !== data.text || direction !== first) return asking.send();
      answer = { ...(await live.load("inside_example")), text, direction: first, layers: data.layers };
      draw();
    }

    /** Let the model translate a text, and show how. */
    async function compute(text, ask) {
      const found = { text, direction: asking.direction(), layers: data.layers };
      await ask({ task: "inside" }, (message) => Object.assign(found, message));
      const { text: linked, from } = wanted(location.hash);
      answer = found;
      const isLinked = linked === text && (from ?? first.languages[0]) === answer.direction.languages[0];
      if (!isLinked) {
        place = placeOf("", answer, { ...data, start: 0 });
        history.pushState(null, "", addressAfter({}));
      }
      draw();
    }

    crumbs.hidden = controls.hidden = stage.hidden = true;
    stage.append(...el.querySelector(".live-still").childNodes);
    const [ways, form, said] = asking.parts;
    el.querySelector(".live-still").replaceWith(ways, form, crumbs, controls, said, stage);
    stage.hidden = !stage.childNodes.length;
    asking.turn(first);
    if (location.hash.includes("=")) el.scrollIntoView(); // the address names a place in the figure
    await arrive();
  }

  // --------------------------------------------------------------------------- places

  const isPlace = (hash) => hash === "" || hash.includes("=");
  const wanted = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
  const usual = (side) => (side === "decoder" ? "cross" : "self"); // the part whose head is meant if none is named

  /** Another layer or head is entered at its beginning. */
  const entered = (changes) => ("layer" in changes ? { part: undefined, head: undefined, step: 0 } : {});

  /** The place that an address names, within what there is; counted from 0. */
  function placeOf(hash, answer, { start, heads }) {
    const { side: tower, layer, part, head, word, step } = wanted(hash);
    const side = tower === "encoder" && layer ? "encoder" : "decoder";
    const index = (text, count) => (/^\d+$/.test(text ?? "") ? Math.max(0, Math.min(count, Number(text)) - 1) : undefined);
    const lengths = { encoder: answer.source.length, decoder: answer.written.length };
    const place = { side, layer: index(layer, answer.layers), word: { encoder: 0, decoder: Math.min(start, lengths.decoder - 1) }, step: 0 };
    place.word[side] = index(word, lengths[side]) ?? place.word[side];
    if (place.layer === undefined) return place;
    const { SUBLAYERS, stepsOf } = live.inside_views;
    if (SUBLAYERS[side].some(([name]) => name === part)) place.part = part;
    else if (head !== undefined) place.part = usual(side);
    if (!place.part || place.part === "network") return place;
    place.head = index(head, heads) ?? 0;
    place.step = index(step, stepsOf(place).length) ?? 0;
    return place;
  }

  /** The address of a place: what is usual is left out. */
  function addressOf({ side, layer, part, head, word, step }, { text, direction }, data, first) {
    const entries = {
      from: direction === first ? undefined : direction.languages[0],
      text: text === data.text && direction === first ? undefined : text,
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
    return `${tower}, layer ${layer + 1}${head === undefined ? "" : `, ${words[part]}, head ${head + 1}`}. `;
  }

  /** The way from the machine to the place, with its neighbors, and the positions to look at. */
  function path({ answer, place, link, lang }) {
    const { tokensOf, SUBLAYERS } = live.inside_views;
    const { side, layer, part, head } = place;
    const group = (name, ...entries) => make("p", {}, make("span", { lang: "en" }, name), ...entries);
    const entry = (changes, text, now) => {
      const made = link(changes, text);
      if (now) made.setAttribute("aria-current", "true");
      return made;
    };
    const numbers = (count) => [...Array(count).keys()];
    const layers = (name, words) => group(words, ...numbers(answer.layers).map((n) => entry({ side: name, layer: n }, `${n + 1}`, name === side && n === layer)));
    const rows = [[group("", entry({ layer: undefined, side: "decoder" }, "The machine", layer === undefined)), layers("encoder", "Encoder, layer"), layers("decoder", "Decoder, layer")]];
    if (part) {
      const heads = answer.trace[`${side}.layers.${layer}.self_attention`].scores[0].length;
      rows.push(SUBLAYERS[side].map(([name, words]) => {
        if (name === "network") return group("", entry({ part: name, head: undefined, step: 0 }, "network", part === name));
        return group(`${words}, head`, ...numbers(heads).map((h) => entry({ part: name, head: h }, `${h + 1}`, part === name && h === head)));
      }));
    }
    const tokens = tokensOf(answer, side).map((token, i) => entry({ word: { ...place.word, [side]: i } }, token, i === place.word[side]));
    const words = group("at", ...tokens);
    const [code] = Object.values(lang[side === "encoder" ? 0 : 1]);
    if (code) words.lang = code;
    return [...rows, [words]].map((row) => make("div", {}, ...row));
  }

  /** Scroll what is chosen, and what the step is about, into the middle of its own box. */
  function showChosen(el) {
    for (const box of el.querySelectorAll(".live-scroll, .inside-crumbs > div")) {
      const cell = box.querySelector("td.lit, td.chosen, [aria-current]");
      if (cell) box.scrollLeft = cell.offsetLeft + (cell.offsetWidth - box.clientWidth) / 2;
    }
  }

  /** The picture of an answer at a word, without a script. */
  function still(answer, start, languages) {
    const place = { side: "decoder", word: { encoder: 0, decoder: start } };
    const link = (changes, ...content) => make("span", {}, ...content);
    return live.inside_views.machine.draw({ answer, place, link, lang: languages.map(inLanguage) });
  }

  /** All that the model computes of a sentence; `run` does a job at once. */
  const record = (run, text) => Object.assign({}, ...run({ task: "inside", text }));

  live.inside = { render, still, record };
})();
