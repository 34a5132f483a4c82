// A translator that one can watch. Recorded translations are there at once; a model comes with a click,
// works in a worker of its own, and answers word by word. The reader steps through any of them.
//
// data: most (subwords), layers, heads, inside (address of the page that looks inside a sentence of the first
//   direction), directions: [{model (name of its script), megabytes (0: it is in the page), languages (of source and
//   target), label (of the field), examples, trials}]
//   examples: [{text, gloss, note, source, steps}]; a step is {token, share, text (so far), best: [[token, share]],
//   look: [weight of each source token]}
//   trials: [{name, text, options}], what if, and a sentence where it bites
// The site shows a recording without a script: `still` draws it once, while the site is built.

"use strict";

(() => {
  const PACE = 450; // milliseconds a word, so that one can follow
  const LEAST = 0.02; // weight of a line that is drawn
  const SURE = 0.8; // share of a word that is not underlined
  const UNSURE = 0.5; // and below that it has a wavy line
  const MOST_NAMED = 3; // rare words
  const percent = (share) => (share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);
  const starting = {}; // by the model's name: one worker for all figures of a page
  const waiting = {}; // functions that hear how many bytes of it have come
  let requests = 0;

  function start(hear, name = "model") {
    (waiting[name] ??= []).push(hear);
    const hearAll = (bytes) => waiting[name].forEach((hear) => hear(bytes));
    starting[name] ??= Promise.all([bookFigures.load("engine"), bookFigures.load(name, hearAll)]).then(([engine, model]) => {
      const text = new Blob([`"use strict"; (${engine})().serve(self);`], { type: "text/javascript" });
      const worker = new Worker(URL.createObjectURL(text));
      const weights = engine().unpack(model.weights);
      worker.postMessage({ ...model, weights }, [weights.buffer]);
      delete model.weights; // the worker has them now
      return worker;
    });
    starting[name].catch(() => delete starting[name]);
    return starting[name];
  }

  /** Say that the model is on its way; give what hears how much of it has come. The share is not read out: it changes
   * too often.
   */
  function sayLoading(said, megabytes) {
    const share = make("span", { "aria-hidden": "true" });
    said.replaceChildren("Loading the model …", share);
    return (bytes) => (share.textContent = ` ${Math.min(100, Math.floor(bytes / (1e4 * megabytes)))}%`);
  }

  /** A button for each direction, of which one is pressed; none if there is nothing to choose. */
  function directionButtons(directions, turn) {
    const group = make("div", { class: "translator-ways", role: "group", "aria-label": "Direction" });
    for (const way of directions) {
      const names = way.languages.map((lang) => LANGUAGES[lang]).join(" → ");
      const button = make("button", { type: "button" }, names);
      button.onclick = () => turn(way);
      group.append(button);
    }
    group.hidden = directions.length < 2;
    group.press = (way) => [...group.children].forEach((button, n) => button.setAttribute("aria-pressed", directions[n] === way));
    return group;
  }

  function render({ data, el }) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const id = `translator-${++requests}`;
    const loaded = new Set(); // names of models
    let direction; // one of data.directions
    let shown = { source: [], steps: [] }; // the translation on the stage
    let now = 0, reached = 0, hurried = calm, number, timer;

    // ------------------------------------------------------------------- what is asked

    const ways = directionButtons(data.directions, (way) => turn(way));
    const label = make("label", { for: id });
    const field = make("input", { id, dir: "auto", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const submit = make("button", { type: "submit" });
    const form = make("form", { class: "translator-form" }, label, field, submit);
    const offer = make("p", { class: "translator-offer", "aria-live": "polite" });
    const choice = make("div", { class: "translator-examples", role: "group", "aria-label": "Examples" });

    /** Translate in another direction: field, examples and model are its own. */
    function turn(way) {
      const typed = field.value.trim();
      const isOurs = !typed || direction?.examples.some((example) => example.text === typed);
      direction = way;
      const [from, to] = way.languages;
      for (const part of [field, source]) speak(part, from);
      for (const part of [usual, text, target, best]) speak(part, to);
      label.textContent = way.label;
      choice.replaceChildren(...way.examples.map(exampleButton));
      trials.replaceChildren(...way.trials.map(trialButton), whole);
      ways.press(way);
      nameSubmit();
      forget();
      if (way.examples.length) rest(way.examples[0]);
      if (isOurs) field.value = shown.text ?? "";
      suggest();
    }

    function exampleButton(example) {
      const [from, to] = direction.languages;
      const gloss = make("small", inLanguage(to), example.gloss);
      const button = make("button", { type: "button" }, make("span", inLanguage(from), example.text), " ", gloss);
      button.onclick = () => {
        field.value = example.text;
        suggest();
        if (changes().length) return form.requestSubmit(); // the recording is of the model as it is
        forget();
        play(example);
      };
      return button;
    }

    function nameSubmit() {
      const { model, megabytes } = direction;
      const isHere = loaded.has(model) || !megabytes;
      submit.textContent = isHere ? "Translate" : `Load the model (${megabytes} MB) and translate`;
      needed.textContent = isHere ? "" : `These load the model (${megabytes} MB).`;
    }

    /** If what is typed looks like the other language, offer to turn. */
    function suggest() {
      const language = guess(field.value);
      const other = data.directions.find((way) => way !== direction && way.languages[0] === language);
      offer.hidden = !other;
      if (!other) return offer.replaceChildren();
      const button = make("button", { type: "button" }, `Translate from ${other.label}`);
      button.onclick = () => {
        turn(other);
        form.requestSubmit();
      };
      offer.replaceChildren(`That looks like ${other.label}. `, button);
    }
    field.oninput = suggest;

    // ------------------------------------------------------------------- what if

    const positions = make("input", { type: "checkbox" });
    const causal = make("input", { type: "checkbox" });
    const heat = make("input", { type: "range", min: 0, max: 1.5, step: 0.1 });
    const beam = make("input", { type: "range", min: 1, max: 6 });
    const head = make("select", {}, make("option", { value: "" }, "none"));
    for (const kind of ["encoder", "decoder", "cross"]) {
      for (let layer = 0; layer < data.layers; layer++) {
        const heads = Array.from({ length: data.heads }, (_, h) => `${kind}.${layer}.${h}`);
        head.append(make("option", { value: heads }, `${kind}, layer ${layer + 1}: all heads`));
        head.append(...heads.map((value, h) => make("option", { value }, `${kind}, layer ${layer + 1}: head ${h + 1}`)));
      }
    }
    const [degree, width] = [make("output", {}), make("output", {})];
    const choices = make("div", { class: "translator-options", role: "group", "aria-label": "What if" });
    choices.append(
      make("label", {}, positions, "Positions"),
      make("label", {}, causal, "Causal mask"),
      make("label", {}, "Silenced", head),
      make("label", {}, "Beam", beam, width),
      make("label", {}, "Temperature", heat, degree),
    );
    const trials = make("div", { class: "translator-trials", role: "group", "aria-label": "What if, where it bites" });
    const needed = make("p", {});
    const whole = make("button", { type: "button" }, "Whole model");
    const experiments = make("details", {}, make("summary", {}, "What if …"), trials, needed, choices);

    function trialButton({ name, text, options }) {
      const button = make("button", { type: "button" }, name);
      button.onclick = () => {
        change(options);
        field.value = text;
        suggest();
        form.requestSubmit();
      };
      return button;
    }

    /** Set the controls. */
    function change(options) {
      positions.checked = options.positions ?? true;
      causal.checked = options.causal ?? true;
      head.value = (options.silent ?? []).join();
      beam.value = options.beam ?? 1;
      heat.value = options.temperature ?? 0;
      tell();
    }

    function tell() {
      width.value = beam.value;
      degree.value = heat.value;
      beam.disabled = heat.value !== "0"; // drawn by lot, without a search
    }

    const options = () => ({
      positions: positions.checked,
      causal: causal.checked,
      silent: head.value ? head.value.split(",") : [],
      beam: Number(beam.value),
      temperature: Number(heat.value),
    });

    /** What is not as usual: its name, what to say if that changes nothing, and if it does. */
    function changes() {
      const made = [];
      if (!positions.checked) made.push(["No positions", ...CHANGES.positions]);
      if (!causal.checked) made.push(["No mask", ...CHANGES.causal]);
      if (head.value) made.push([`Without ${head.selectedOptions[0].textContent}`, ...CHANGES[head.value.includes(",") ? "heads" : "head"]]);
      if (heat.value !== "0") made.push([`Temperature ${heat.value}`, ...CHANGES.temperature]);
      else if (beam.value !== "1") made.push([`A beam of ${beam.value}`, ...CHANGES.beam]);
      return made;
    }

    const again = () => loaded.has(direction.model) && form.requestSubmit();
    for (const control of [positions, causal, head, beam, heat]) control.onchange = again;
    for (const control of [beam, heat]) control.oninput = tell;
    whole.onclick = () => {
      change({});
      again();
    };

    // ------------------------------------------------------------------- what is shown

    const said = make("p", { class: "translator-said", "aria-live": "polite" });
    const text = make("output", { for: id, dir: "auto", class: "translator-text" });
    const usual = make("dd", { dir: "auto", class: "translator-usual" });
    const how = make("dt", {});
    const comparison = [make("dt", {}, "Whole model"), usual, how];
    const result = make("dl", { class: "translator-result" }, ...comparison, make("dd", {}, text));
    const source = sourceList([]);
    const target = targetGroup([]);
    const best = make("div", { class: "translator-best" });
    let lines = svg("svg", {});
    const pair = pairOf(source, [lines], target);
    const stage = stageOf(pair, best);
    const [back, pause, on, end] = ["Previous", "Play", "Next", "To the end"].map((name) => make("button", { type: "button" }, name));
    const controls = make("div", { class: "player-controls", role: "group", "aria-label": "Steps of the translation" });
    const inside = make("a", { class: "translator-inside" }, "Look inside");
    controls.append(back, ...(calm ? [] : [pause]), on, end, inside);

    const attributesOf = (t) => ({ name: `${id}-step`, id: `${id}-${t}` });
    const all = choiceOf(allItem(attributesOf("all")), Infinity);

    /** The last step that can be shown: of a translation that is done, all its words together. */
    const last = () => shown.steps.length - (shown.done ? 0 : 1);

    /** Show step `step`, and the words up to the furthest that was reached. */
    function show(step) {
      const { steps } = shown;
      now = Math.max(0, Math.min(last(), step));
      reached = Math.max(reached, Math.min(now, steps.length - 1));
      const drawn = attention(shown, now);
      lines.replaceWith(drawn);
      lines = drawn;
      for (let t = target.children.length - 1; t < steps.length; t++) all.before(choiceOf(choiceItem(steps[t], attributesOf(t)), t));
      [...target.children].forEach((item, t) => (item.hidden = t > reached));
      all.hidden = !shown.done || reached < steps.length - 1;
      (now === steps.length ? all : target.children[now]).querySelector("input").checked = true;
      best.replaceChildren(...rivals(shown, now));
      text.replaceChildren(...pieces(steps.slice(0, reached + 1), now));
      if (now === steps.length) sum();
      else said.textContent = `Step ${now + 1} of ${shown.done ? steps.length : "…"}: ${looksMost(shown.source, steps[now])}.`;
      lookInside();
      back.disabled = now === 0;
      on.disabled = now === last();
      end.disabled = shown.done && now === last();
      keepFocus(controls);
      follow();
    }

    /** Say what there is to say of a whole translation; beside that of the whole model, words that differ are marked. */
    function sum() {
      const written = shown.steps.at(-1).text;
      let verdict;
      if (shown.usual !== undefined) {
        const [usualWords, words] = differences(shown.usual.split(" "), written.split(" "));
        usual.replaceChildren(...marked(usualWords));
        text.replaceChildren(...marked(words));
        verdict = verdictOn(usualWords, words, shown.changes);
      }
      const remarks = [verdict, shown.note].filter(Boolean).join(" ");
      const heard = make("span", { class: "heard" }, `Translation: ${written} `); // others see it
      said.replaceChildren(heard, remarks || "Choose a word to see where it came from.");
    }

    /** The address of the page that looks inside, at this sentence and this word. */
    function lookInside() {
      const word = Math.min(now + 1, shown.steps.length);
      const from = direction === data.directions[0] ? "" : `from=${direction.languages[0]}&`;
      inside.setAttribute("href", `${data.inside}#${from}text=${encodeURIComponent(shown.text)}&word=${word}`);
    }

    /** A long translation scrolls within the figure; the page stays where it is. */
    function follow() {
      const isWhole = now === shown.steps.length;
      pair.scrollTop = isWhole ? 0 : target.children[now].offsetTop - pair.clientHeight / 2;
    }

    function choiceOf(item, t) {
      item.querySelector("input").onchange = () => (stop(), show(t));
      return item;
    }

    /** Put a translation on the empty stage. */
    function place(translation) {
      stop();
      shown = translation;
      now = reached = 0;
      hurried = calm;
      stage.hidden = controls.hidden = result.hidden = legend.hidden = false;
      source.replaceChildren(...sourceItems(shown.source));
      target.replaceChildren(all);
      for (const part of [lines, best, text]) part.replaceChildren();
      for (const part of comparison) part.hidden = shown.usual === undefined;
      usual.textContent = shown.usual ?? "";
      how.textContent = (shown.changes ?? []).map(([name]) => name).join(", ");
    }

    /** Show a translation that is done, all of it. */
    function rest(translation) {
      place(translation);
      reached = shown.steps.length - 1;
      show(last());
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
        const isWhole = shown.done && now >= shown.steps.length - 1;
        if (isWhole) stop(); // and say the whole
        if (now < last()) show(now + 1);
      };
      stop();
      if (hurried) return show(last());
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
      if (now === last()) play(shown);
      else run();
    };
    back.onclick = () => (stop(), show(now - 1));
    on.onclick = () => (stop(), show(now + 1));
    end.onclick = () => {
      stop();
      hurried = true; // also what is still to come
      show(last());
    };

    // ------------------------------------------------------------------- the model

    /** Whatever was asked for before, nobody waits for it any more. */
    function forget() {
      stop();
      return (number = ++requests);
    }

    form.onsubmit = async (event) => {
      event.preventDefault();
      const mine = forget();
      const refused = refusal(field.value);
      if (refused) return void (said.textContent = refused);
      const { model, megabytes } = direction;
      const made = changes();
      said.textContent = "Translating …";
      const hear = loaded.has(model) || !megabytes ? () => {} : sayLoading(said, megabytes);
      let worker;
      try {
        worker = await start(hear, model);
      } catch (error) {
        return void (said.textContent = `The model could not be loaded (${error.message}). Try again.`);
      }
      loaded.add(model);
      nameSubmit();
      if (number === mine) translate(worker, field.value.trim(), made);
    };

    /** Translate; a model that is changed comes after the whole one, and is compared with it. */
    async function translate(worker, words, made) {
      const changed = options();
      if (!made.length) return ask(worker, words, {}, {}, grow);
      const { steps } = await ask(worker, words, {}, {}, () => {});
      return ask(worker, words, changed, { usual: steps.at(-1).text, changes: made }, grow);
    }

    /** Ask the model; `hear` gets the translation whenever it has grown. What is forgotten never comes. */
    const ask = (worker, words, options, more, hear) => new Promise((resolve) => {
      const mine = (number = ++requests);
      const translation = { text: words, source: [], steps: [], done: false, ...more };
      const listen = ({ data: answer }) => {
        if (number !== mine) return worker.removeEventListener("message", listen); // nobody waits for it any more
        if (answer.number !== mine) return; // the end of the one before
        if (answer.done || answer.tooLong) worker.removeEventListener("message", listen);
        if (answer.tooLong) return void (said.textContent = tooMany(answer.tooLong, data.most));
        if (answer.source) {
          translation.source = answer.source;
          translation.rare = answer.rare;
        } else if (answer.done) {
          translation.done = true;
          translation.note = remark(translation, answer.ended);
        } else {
          const { maps, ...step } = answer;
          translation.steps.push({ ...step, look: meanOfHeads(maps.cross.at(-1)) });
        }
        hear(translation);
        if (answer.done) resolve(translation);
      };
      worker.addEventListener("message", listen);
      worker.onerror = () => (said.textContent = "The model stopped working. Load the page again.");
      worker.postMessage({ number: mine, text: words, language: direction.languages[0], most: data.most + 1, options });
    });

    /** Show a translation as it comes. */
    function grow(translation) {
      const { steps, done } = translation;
      if (!steps.length) place(translation);
      else if (done) timer || show(hurried ? last() : now);
      else if (steps.length === 1) (show(0), run());
      else if (hurried) show(last());
    }

    const legend = legendOf();
    stage.hidden = controls.hidden = result.hidden = legend.hidden = true; // until there is something to show
    change({});
    turn(data.directions[0]);
    el.querySelector(".translator-still").replaceWith(ways, form, offer, choice, experiments, controls, result, said, stage, legend);
  }

  // --------------------------------------------------------------------- what is said

  const LANGUAGES = { de: "German", en: "English" };

  // Small words that one language has and the other has not
  const TELLING = {
    de: `der das dem des ein eine einen einem einer und ich ist nicht du er sie wir ihr zu mit auf im vom für sind haben
      habe dass wie wo wann warum kein keine mein meine dein sich auch noch nur sehr mir mich dir dich ihm ihn uns als
      wenn aber oder bei nach vor aus`,
    en: `the a and is are i you he she it we they of to my your his our their do does did don have this that with for on
      at from what where when why who how can would been were there him them but`,
  };
  const UMLAUT = /[äöüß]/g;

  /** The language that a text seems to be in, or undefined. */
  function guess(text) {
    const small = text.normalize("NFC").toLowerCase();
    const words = small.match(/\p{L}+/gu) ?? [];
    const count = (language) => words.filter((word) => TELLING[language].split(/\s+/).includes(word)).length;
    const german = count("de") + (small.match(UMLAUT) ?? []).length;
    const english = count("en");
    if (german === english) return undefined;
    return german > english ? "de" : "en";
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

  /** What to say of a translation that may be wrong for a reason that the page can see. */
  function remark({ source, steps, rare }, ended) {
    const bytes = source.filter((token) => token.startsWith("0x")).length;
    const strange = "Most of the text was spelled byte by byte: the model has hardly seen such letters.";
    const endless = `It found no end and was stopped after ${steps.length} subwords.`;
    const isStrange = bytes > source.length / 2;
    return [isStrange ? strange : ofRareWords(rare), ended ? "" : endless].join(" ").trim();
  }

  function ofRareWords(rare) {
    const meant = rare.filter((entry) => entry.meant).map((entry) => `“${entry.meant}”`);
    const others = rare.filter((entry) => !entry.meant).map(({ word, pieces }) => `“${word}” (${pieces})`);
    const question = meant.length ? `Did you mean ${meant.slice(0, MOST_NAMED).join(", ")}?` : "";
    const doubt = others.length ? `It has hardly seen what falls into so many pieces: ${others.slice(0, MOST_NAMED).join(", ")}.` : "";
    return [question, doubt].join(" ").trim();
  }

  // Of a changed model, if its translation stays the same, and if it does not
  const CHANGES = {
    positions: ["the words were enough here, whatever their order.", "It reads the same words, but not their order."],
    causal: [
      "it made no difference here that words see later ones.",
      "Each word that it has written now sees later ones, too, as it never did in training.",
    ],
    head: ["this head wasn’t needed here.", "This head was needed here."],
    heads: ["these heads weren’t needed here.", "These heads were needed here."],
    beam: ["the search found nothing better.", "It kept several beginnings, and another one came out ahead."],
    temperature: ["each word was drawn by lot, but it was sure of them.", "Each word was drawn by lot; translate again for other ones."],
  };

  /** The words of two sentences, each {word, odd}: odd are those that are not in the other one, in the same order. */
  function differences(first, second) {
    const common = Array.from({ length: first.length + 1 }, () => Array(second.length + 1).fill(0)); // words from here on
    for (let i = first.length - 1; i >= 0; i--) {
      for (let j = second.length - 1; j >= 0; j--) {
        common[i][j] = first[i] === second[j] ? 1 + common[i + 1][j + 1] : Math.max(common[i + 1][j], common[i][j + 1]);
      }
    }
    const words = [first, second].map((list) => list.map((word) => ({ word, odd: true })));
    for (let i = 0, j = 0; i < first.length && j < second.length; ) {
      if (first[i] === second[j]) words[0][i++].odd = words[1][j++].odd = false;
      else if (common[i + 1][j] >= common[i][j + 1]) i++;
      else j++;
    }
    return words;
  }

  const marked = (words) => words.flatMap(({ word, odd }) => [odd ? make("mark", {}, word) : word, " "]);

  /** What became of a translation when the model was changed. */
  function verdictOn(usualWords, words, changes) {
    const countOf = (list) => list.filter(({ odd }) => odd).length;
    const [lost, fresh] = [countOf(usualWords), countOf(words)];
    const [, same, other] = changes.length === 1 ? changes[0] : ["", "", ""]; // of several, who knows which
    if (!lost && !fresh) return `The same: ${same || "nothing of that was needed here."}`;
    const told = (count, all, fate) => `Of ${all.length} words ${count} ${count === 1 ? "is" : "are"} ${fate}.`;
    return `${fresh ? told(fresh, words, "new") : told(lost, usualWords, "gone")} ${other}`.trim();
  }

  // --------------------------------------------------------------------- the picture of a translation

  const inLanguage = (lang) => (lang ? { lang } : {});

  function speak(part, lang) {
    if (lang) part.setAttribute("lang", lang);
  }

  const sourceItems = (tokens) => tokens.map((token) => make("li", {}, token));
  const sourceList = (items, lang) => make("ol", { class: "translator-source", ...inLanguage(lang), "aria-label": "Source" }, ...items);

  function targetGroup(items, lang) {
    return make("div", { class: "translator-target", ...inLanguage(lang), role: "radiogroup", "aria-label": "Translation, word by word" }, ...items);
  }

  function choiceItem({ token, share }, attributes) {
    const label = make("label", { for: attributes.id, class: doubt(share), title: percent(share) }, token);
    return make("div", {}, make("input", { type: "radio", ...attributes }), label);
  }

  function allItem(attributes) {
    return make("div", { class: "all", lang: "en" }, make("input", { type: "radio", ...attributes }), make("label", { for: attributes.id }, "all words"));
  }

  const pairOf = (source, lines, target) => make("div", { class: "translator-pair" }, source, ...lines, target);
  const stageOf = (pair, best) => make("div", { class: "translator-stage" }, pair, best);

  /** How a word looks of which the model was less sure. */
  function doubt(share) {
    if (share >= SURE) return "";
    return share < UNSURE ? "doubt much" : "doubt";
  }

  function legendOf() {
    const sample = (share, text) => make("span", { class: doubt(share) }, text);
    return make("p", { class: "translator-legend" }, "How sure it was of a word: ", sample(UNSURE, `below ${percent(SURE)}`), ", ", sample(0, `below ${percent(UNSURE)}`), ".");
  }

  /** What was written, piece by piece, with doubts underlined; what comes after step `now` is pale. */
  function pieces(steps, now) {
    const { text } = steps.at(-1);
    return steps.flatMap((step, t) => {
      const piece = text.slice(t ? steps[t - 1].text.length : 0, step.text.length);
      const word = piece.trimStart();
      if (!word) return [piece];
      const kind = [doubt(step.share), t > now ? "later" : ""].join(" ").trim();
      return [piece.slice(0, piece.length - word.length), make("span", { class: kind, title: percent(step.share) }, word)];
    });
  }

  /** Say where a step looks most. */
  function looksMost(source, { token, share, look }) {
    const most = look.indexOf(Math.max(...look));
    return `“${token}” (share ${percent(share)}) looks most at “${source[most]}” (${percent(look[most])})`;
  }

  /** The lines of step `t`, from the token that is written to those that it looks at; after the last step, of all. */
  function attention({ source, steps }, t, panel = "") {
    const rows = Math.max(source.length, steps.length);
    const isWhole = t === steps.length;
    const drawn = isWhole ? [...steps.keys()] : [t];
    const curves = drawn.flatMap((t) => steps[t].look.flatMap((weight, s) => {
      if (weight < LEAST) return [];
      const d = `M0,${s + 0.5}C50,${s + 0.5} 50,${t + 0.5} 100,${t + 0.5}`;
      return [svg("path", { d, "stroke-opacity": weight, "stroke-width": (1 + 4 * weight).toFixed(2) })];
    }));
    const label = isWhole ? "Lines from each word to those that it looks at" : looksMost(source, steps[t]);
    const view = { viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none", style: `--rows:${rows}` };
    return svg("svg", { class: `translator-lines${panel}`, role: "img", ...view, "aria-label": label }, ...curves);
  }

  const RIVALS = 5;

  /** What else might have been written at a step; after the last one, the words that were least sure. */
  function rivals({ steps }, t) {
    if (t < steps.length) return [make("p", {}, "The five likeliest next"), make("ol", {}, ...bars(steps[t].best, steps[t].token))];
    const unsure = [...steps].sort((a, b) => a.share - b.share).slice(0, RIVALS);
    return [make("p", { lang: "en" }, "Least sure of"), make("ol", {}, ...bars(unsure.map(({ token, share }) => [token, share])))];
  }

  /** Tokens with their shares, and which of them is written. */
  function bars(entries, token) {
    return entries.map(([name, share]) => make("li", name === token ? { class: "chosen" } : {},
      make("span", {}, name), make("i", { style: `--share:${share}` }), make("span", {}, percent(share))));
  }

  /** A translation that needs no script: each step has panels, and style rules show those of the chosen one. */
  function still(translation, languages) {
    const { source, steps } = translation;
    const [from, to] = languages;
    const names = [...steps.keys(), "all"];
    const panel = (name) => ` step step-${name}`;
    const shown = names.map((name) => `.translator-still:has(#step-${name}:checked) .step-${name}{display:block}`);
    const choices = steps.map((step, t) => choiceItem(step, { name: "step", id: `step-${t}` }));
    const all = allItem({ name: "step", id: "step-all", checked: "" });
    return make("div", { class: "translator-still" },
      make("style", {}, `.translator-still .step{display:none}${shown.join("")}`),
      make("p", { class: "translator-text", ...inLanguage(to) }, ...pieces(steps, steps.length)),
      stageOf(
        pairOf(
          sourceList(sourceItems(source), from),
          names.map((name, t) => attention(translation, t, panel(name))),
          targetGroup([...choices, all], to),
        ),
        make("div", { class: "translator-best", ...inLanguage(to) }, ...names.map((name, t) => make("div", { class: panel(name).trim() }, ...rivals(translation, t)))),
      ),
      legendOf(),
    );
  }

  /** A button that was pressed and is off now hands the focus on, so that the keyboard is not lost. */
  function keepFocus(controls) {
    const focused = document.activeElement;
    if (controls.contains(focused) && focused.disabled) controls.querySelector("button:enabled").focus();
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

  bookFigures.translator = { render, still, start, sayLoading, directionButtons, refusal, tooMany, keepFocus, make, svg, percent }; // from `start` on for others
})();
