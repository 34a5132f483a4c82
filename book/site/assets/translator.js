// A translator that one can watch. Recorded translations are there at once; the model comes with a click,
// works in a worker of its own, and answers word by word. The reader steps through any of them.
//
// data: most (subwords), megabytes (0: it is in the page), languages (of source and target), label (of the
//   field), layers, heads, start (step), inside (address of the page that looks inside), examples: [{text, note, source, steps}]; a step is
//   {token, text (so far), best: [[token, share]], look: [weight of each source token]}
// The site shows a recording without a script: `still` draws it once, while the site is built.

"use strict";

(() => {
  const PACE = 450; // milliseconds a word, so that one can follow
  const LEAST = 0.02; // weight of a line that is drawn
  const percent = (share) => (share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);
  let starting, requests = 0; // one worker for all figures of a page

  function start() {
    starting ??= Promise.all([bookFigures.load("engine"), bookFigures.load("model")]).then(([engine, model]) => {
      const text = new Blob([`"use strict"; (${engine})().serve(self);`], { type: "text/javascript" });
      const worker = new Worker(URL.createObjectURL(text));
      const weights = engine().unpack(model.weights);
      worker.postMessage({ ...model, weights }, [weights.buffer]);
      delete model.weights; // the worker has them now
      return worker;
    });
    starting.catch(() => (starting = undefined));
    return starting;
  }

  function render({ data, el }) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const id = `translator-${++requests}`;
    const [from, to] = data.languages.map(inLanguage);
    let shown = { source: [], steps: [] }; // the translation on the stage
    let now = 0, reached = 0, number, timer, loaded = false;

    // ------------------------------------------------------------------- what is asked

    const field = make("input", { id, ...from, dir: "auto", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" }, data.megabytes ? `Load the model (${data.megabytes} MB) and translate` : "Translate");
    const form = make("form", { class: "translator-form" }, make("label", { for: id }, data.label), field, submit);
    const choice = make("div", { class: "translator-examples", role: "group", "aria-label": "Examples" });
    for (const example of data.examples) {
      const button = make("button", { type: "button", ...from }, example.text);
      button.onclick = () => {
        field.value = example.text;
        if (changed()) return form.requestSubmit(); // the recording is of the model as it is
        number = undefined;
        play(example);
      };
      choice.append(button);
    }

    // ------------------------------------------------------------------- what if

    const positions = make("input", { type: "checkbox", checked: "" });
    const causal = make("input", { type: "checkbox", checked: "" });
    const heat = make("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0 });
    const beam = make("input", { type: "range", min: 1, max: 6, value: 1 });
    const head = make("select", {}, make("option", { value: "" }, "none"));
    for (const kind of ["encoder", "decoder", "cross"]) {
      for (let layer = 0; layer < data.layers; layer++) {
        const heads = Array.from({ length: data.heads }, (_, h) => `${kind}.${layer}.${h}`);
        head.append(make("option", { value: heads }, `${kind}, layer ${layer + 1}: all heads`));
        head.append(...heads.map((value, h) => make("option", { value }, `${kind}, layer ${layer + 1}: head ${h + 1}`)));
      }
    }
    const [degree, width] = [heat, beam].map(({ value }) => make("output", {}, value));
    heat.oninput = () => ([degree.value, beam.disabled] = [heat.value, heat.value !== "0"]); // drawn by lot, without a search
    beam.oninput = () => (width.value = beam.value);
    const choices = make("div", { class: "translator-options", role: "group", "aria-label": "What if" });
    choices.append(
      make("label", {}, positions, "Positions"),
      make("label", {}, causal, "Causal mask"),
      make("label", {}, "Silenced", head),
      make("label", {}, "Beam", beam, width),
      make("label", {}, "Temperature", heat, degree),
    );
    for (const control of [positions, causal, head, beam, heat]) control.onchange = () => loaded && form.requestSubmit();
    const options = () => ({
      positions: positions.checked,
      causal: causal.checked,
      silent: head.value ? head.value.split(",") : [],
      beam: Number(beam.value),
      temperature: Number(heat.value),
    });
    const changed = () => !positions.checked || !causal.checked || head.value !== "" || beam.value !== "1" || heat.value !== "0";
    const experiments = make("details", {}, make("summary", {}, "What if …"), choices);

    // ------------------------------------------------------------------- what is shown

    const said = make("p", { class: "translator-said", "aria-live": "polite" });
    const text = make("output", { for: id, ...to, dir: "auto", class: "translator-text" });
    const source = sourceList([], from);
    const target = targetGroup([], to);
    const best = make("ol", to);
    let lines = svg("svg", {});
    const stage = stageOf(source, [lines], target, [best]);
    const [back, pause, on] = ["Previous", "Play", "Next"].map((name) => make("button", { type: "button" }, name));
    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Steps of the translation" });
    const inside = make("a", { class: "translator-inside" }, "Look inside");
    controls.append(back, ...(calm ? [] : [pause]), on, inside);

    /** Show step `step`, and the words up to the furthest that was reached. */
    function show(step) {
      const { steps } = shown;
      now = Math.max(0, Math.min(steps.length - 1, step));
      reached = Math.max(reached, now);
      const drawn = attention(shown, now);
      lines.replaceWith(drawn);
      lines = drawn;
      for (let t = target.children.length; t < steps.length; t++) target.append(choiceOf(steps[t], t));
      [...target.children].forEach((item, t) => (item.hidden = t > reached));
      target.children[now].querySelector("input").checked = true;
      best.replaceChildren(...bars(steps[now]));
      const later = make("span", {}, steps[reached].text.slice(steps[now].text.length));
      text.replaceChildren(steps[now].text, later);
      said.textContent = `Step ${now + 1} of ${shown.done ? steps.length : "…"}: ${looksMost(shown.source, steps[now])}.`;
      if (shown.done && now === steps.length - 1) said.textContent += ` Translation: ${steps[now].text} ${shown.note ?? ""}`;
      inside.setAttribute("href", `${data.inside}#text=${encodeURIComponent(shown.text)}&word=${now + 1}`);
      back.disabled = now === 0;
      on.disabled = now === steps.length - 1;
    }

    function choiceOf({ token }, t) {
      const item = choiceItem(token, { name: `${id}-step`, id: `${id}-${t}` });
      item.querySelector("input").onchange = () => (stop(), show(t));
      return item;
    }

    /** Put a translation on the empty stage. */
    function place(translation) {
      stop();
      shown = translation;
      now = reached = 0;
      stage.hidden = controls.hidden = false;
      source.replaceChildren(...sourceItems(shown.source));
      for (const part of [target, lines, best]) part.replaceChildren();
      text.replaceChildren();
    }

    // ------------------------------------------------------------------- time

    function stop() {
      clearInterval(timer);
      timer = undefined;
      pause.textContent = "Play";
      said.setAttribute("aria-live", "polite");
    }

    /** Word by word, as fast as one can follow; with reduced motion all at once. */
    function run() {
      const next = () => {
        if (now < shown.steps.length - 1) show(now + 1);
        if (shown.done && now === shown.steps.length - 1) (stop(), show(now)); // and say the whole
      };
      stop();
      if (calm) return show(shown.steps.length - 1);
      said.setAttribute("aria-live", "off"); // not a sentence for each word
      pause.textContent = "Pause";
      timer = setInterval(next, PACE);
    }

    function play(translation) {
      place(translation);
      show(0);
      run();
    }

    pause.onclick = () => {
      if (timer) return stop();
      if (now === shown.steps.length - 1) play(shown);
      else run();
    };
    back.onclick = () => (stop(), show(now - 1));
    on.onclick = () => (stop(), show(now + 1));

    // ------------------------------------------------------------------- the model

    form.onsubmit = async (event) => {
      event.preventDefault();
      const refused = refusal(field.value);
      if (refused) return void (said.textContent = refused);
      const mine = (number = ++requests);
      said.textContent = loaded ? "Translating …" : "Loading the model …";
      try {
        const worker = await start();
        loaded = true;
        submit.textContent = "Translate";
        if (number === mine) ask(worker, field.value.trim(), mine);
      } catch (error) {
        said.textContent = `The model could not be loaded (${error.message}). Try again.`;
      }
    };

    function ask(worker, words, mine) {
      const translation = { text: words, source: [], steps: [], done: false };
      const hear = ({ data: answer }) => {
        if (answer.number !== mine) return;
        if (number !== mine || answer.done || answer.tooLong) worker.removeEventListener("message", hear);
        if (number !== mine) return;
        if (answer.tooLong) {
          said.textContent = tooMany(answer.tooLong, data.most);
        } else if (answer.source) {
          translation.source = answer.source;
          place(translation);
        } else if (answer.done) {
          translation.done = true;
          translation.note = remark(translation, answer.ended);
          if (!timer) show(now);
        } else {
          const { maps, ...step } = answer;
          translation.steps.push({ ...step, look: meanOfHeads(maps.cross.at(-1)) });
          if (translation.steps.length === 1) (show(0), run());
          else if (calm) show(now + 1);
        }
      };
      worker.addEventListener("message", hear);
      worker.onerror = () => (said.textContent = "The model stopped working. Load the page again.");
      worker.postMessage({ number: mine, text: words, most: data.most + 1, options: options() });
    }

    stage.hidden = controls.hidden = true; // until there is something to show
    el.querySelector(".translator-still").replaceWith(form, choice, said, text, stage, controls, experiments);
    if (data.examples.length) {
      place(data.examples[0]);
      reached = shown.steps.length - 1;
      show(data.start);
      field.value = shown.text;
    }
  }

  /** Why a text is not translated, or undefined. */
  function refusal(words) {
    if (!words.trim()) return "Type a sentence first.";
    if (!/\p{L}/u.test(words)) return "There is no word in that. Type a sentence.";
    return undefined;
  }

  const tooMany = (count, most, thing = "sentence") => `That is ${count} subwords, and this page takes ${most}. Give it one ${thing}.`;

  /** The last layer's heads look at each source token with these weights, in the mean. */
  const meanOfHeads = (heads) => heads[0][0].map((_, s) => heads.reduce((sum, rows) => sum + rows.at(-1)[s], 0) / heads.length);

  /** What to say of a translation that went wrong in a way that the page can see. */
  function remark({ source, steps }, ended) {
    const bytes = source.filter((token) => token.startsWith("0x")).length;
    const strange = "Most of the text was spelled byte by byte: the model has hardly seen such letters.";
    const endless = `It found no end and was stopped after ${steps.length} subwords.`;
    return [bytes > source.length / 2 ? strange : "", ended ? "" : endless].join(" ").trim();
  }

  // --------------------------------------------------------------------- the picture of a translation

  const inLanguage = (lang) => (lang ? { lang } : {});
  const sourceItems = (tokens) => tokens.map((token) => make("li", {}, token));
  const sourceList = (items, lang) => make("ol", { class: "translator-source", ...lang, "aria-label": "Source" }, ...items);

  function targetGroup(items, lang) {
    return make("div", { class: "translator-target", ...lang, role: "radiogroup", "aria-label": "Translation, word by word" }, ...items);
  }

  function choiceItem(token, attributes) {
    return make("div", {}, make("input", { type: "radio", ...attributes }), make("label", { for: attributes.id }, token));
  }

  function stageOf(source, lines, target, best) {
    const rivals = make("div", { class: "translator-best" }, make("p", {}, "The five likeliest next"), ...best);
    return make("div", { class: "translator-stage" }, source, ...lines, target, rivals);
  }

  /** Say where a step looks most. */
  function looksMost(source, { token, look }) {
    const most = look.indexOf(Math.max(...look));
    return `“${token}” looks most at “${source[most]}” (${percent(look[most])})`;
  }

  /** The lines of step `t`: from the token that is written to those that it looks at. */
  function attention({ source, steps }, t, panel = "") {
    const rows = Math.max(source.length, steps.length);
    const curves = steps[t].look.flatMap((weight, s) => {
      if (weight < LEAST) return [];
      const d = `M0,${s + 0.5}C50,${s + 0.5} 50,${t + 0.5} 100,${t + 0.5}`;
      return [svg("path", { d, "stroke-opacity": weight, "stroke-width": (1 + 4 * weight).toFixed(2) })];
    });
    const label = looksMost(source, steps[t]);
    const view = { viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none", style: `--rows:${rows}` };
    return svg("svg", { class: `translator-lines${panel}`, role: "img", ...view, "aria-label": label }, ...curves);
  }

  /** The likeliest tokens of a step, and which of them is written. */
  function bars({ token, best }) {
    return best.map(([name, share]) => make("li", name === token ? { class: "chosen" } : {},
      make("span", {}, name), make("i", { style: `--share:${share}` }), make("span", {}, percent(share))));
  }

  /** A translation that needs no script: each step has panels, and style rules show those of the chosen one. */
  function still(translation, start, languages) {
    const { source, steps } = translation;
    const [from, to] = languages.map(inLanguage);
    const panel = (t) => ` step step-${t}`;
    const shown = steps.map((_, t) => `.translator-still:has(#step-${t}:checked) .step-${t}{display:block}`);
    const choices = steps.map(({ token }, t) => choiceItem(token, { name: "step", id: `step-${t}`, ...(t === start ? { checked: "" } : {}) }));
    return make("div", { class: "translator-still" },
      make("style", {}, `.translator-still .step{display:none}${shown.join("")}`),
      make("p", { class: "translator-text", ...to }, steps.at(-1).text),
      stageOf(
        sourceList(sourceItems(source), from),
        steps.map((_, t) => attention(translation, t, panel(t))),
        targetGroup(choices, to),
        steps.map((step, t) => make("ol", { class: panel(t).trim(), ...to }, ...bars(step))),
      ),
    );
  }

  function make(name, attributes, ...content) {
    return fill(document.createElement(name), attributes, content);
  }

  function svg(name, attributes, ...content) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, content);
  }

  function fill(element, attributes, content) {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...content);
    return element;
  }

  bookFigures.translator = { render, still, start, refusal, tooMany, make, svg, percent }; // from `start` on for others
})();
