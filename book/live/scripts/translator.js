// A translator that one can watch. Recorded translations are there at once; the model comes with a click, and answers
// word by word. One steps through the words of either with a finger, a pointer or the arrow keys: each word is a radio
// button, and style rules show the lines and the rivals of the chosen one, so that a still picture needs no script.
//
// data: most (subwords), layers, heads, inside (address of the page that looks inside a sentence), directions: as in
//   live.js, each with examples: [{text, gloss, note, source, steps}] and trials: [{name, text, options}], what if, and
//   a sentence where it bites. A step is {token, share, text (so far), best: [[token, share]], look: [weight of each
//   source token]}.

"use strict";

(() => {
  const { make, svg, percent, bar, inLanguage, meanOf, fieldOf } = live;
  const LEAST = 0.02; // weight of a line that is drawn
  const SURE = 0.8; // share of a word that is not underlined
  const UNSURE = 0.5; // and below that it has a wavy line
  const LEAST_SURE = 5; // words that are listed beside a whole translation
  const SIGNS = { "+": "goes on with the word before", "</s>": "is the end", "␣": "is a space", "0x": "is a byte of a sign that has no token" };
  let pictures = 0;

  function render({ data, el }) {
    const result = make("div", { class: "live-result" });
    const stage = make("div", { class: "live-stage" });
    const offer = make("p", { class: "translator-offer", "aria-live": "polite" });
    const choice = make("div", { class: "translator-examples", role: "group", "aria-label": "Examples" });
    const trials = make("div", { class: "translator-examples", role: "group", "aria-label": "What if, where it bites" });
    const controls = controlsFor(data);
    const experiments = make("details", {}, make("summary", {}, "What if …"), trials, controls.element);
    const asking = fieldOf({ data, el, task: "Translate", answer, turned });
    const { field, send } = asking;
    let recalled = ""; // the recorded sentence in the field

    function draw(translation) {
      const { languages } = asking.direction();
      result.replaceChildren(headline(translation, languages));
      stage.replaceChildren(picture(translation, languages, addressOf(translation)));
      el.classList.remove("waiting");
      if (!translation.done) return;
      const heard = make("span", { class: "heard" }, `Translation: ${translation.steps.at(-1).text} `); // others see it
      const remarks = [verdictOn(translation), translation.note].filter(Boolean).join(" ");
      asking.say(heard, remarks || "Choose a word to see where it came from.");
      if (languages[0] === "de" && translation.meant) offerInstead("Did you mean ", translation.meant, "?");
    }

    /** A function from a word's number to the address that looks inside there. */
    function addressOf({ text }) {
      const { languages } = asking.direction();
      const from = data.directions.indexOf(asking.direction()) ? `from=${languages[0]}&` : "";
      return (t) => `${data.inside}#${from}text=${encodeURIComponent(text)}&word=${t + 1}`;
    }

    /** A model that is changed comes after the whole one, and is compared with it. */
    async function answer(text, ask) {
      const changes = controls.changes();
      const whole = { text, steps: [] };
      await ask({ task: "translate" }, (message) => {
        grow(whole, message);
        if (message.step && !changes.length) draw(whole);
      });
      if (!changes.length) return draw({ ...whole, done: true });
      const changed = { text, steps: [], changes, usual: whole.steps.at(-1).text };
      await ask({ task: "translate", options: controls.options() }, (message) => grow(changed, message));
      draw({ ...changed, done: true });
    }

    function turned({ languages: [from, to], examples, trials: tried }) {
      const button = (act, ...content) => {
        const made = make("button", { type: "button" }, ...content);
        made.onclick = () => {
          act();
          form.scrollIntoView({ block: "nearest" }); // the answer comes below it
        };
        return made;
      };
      choice.replaceChildren(...examples.map((example) => {
        const show = () => (controls.changes().length ? translate(example.text) : recall(example));
        const gloss = make("small", inLanguage(to), example.gloss);
        return button(show, make("span", inLanguage(from), example.text), " ", gloss);
      }));
      trials.replaceChildren(...tried.map(({ name, text, options }) => {
        const attempt = () => {
          controls.set(options);
          translate(text);
        };
        return button(attempt, name);
      }));
      const typed = field.value;
      const isOurs = typed === recalled;
      if (examples.length) recall(examples[0]);
      if (!isOurs) field.value = typed;
      suggest();
    }

    function translate(text) {
      field.value = text;
      suggest();
      send();
    }

    /** Show a recording. */
    function recall(example) {
      asking.cancel();
      field.value = recalled = example.text;
      suggest();
      draw({ ...example, done: true });
    }

    /** If what is typed looks like the other language, offer to turn. */
    function suggest() {
      const typed = field.value;
      const language = guess(typed);
      const other = data.directions.find((way) => way !== asking.direction() && way.languages[0] === language);
      offer.replaceChildren();
      if (other) offerInstead(`That looks like ${other.label}. `, `Translate from ${other.label}`, "", other, typed);
    }

    /** A button, between two pieces of text, that translates something else than what was asked for. */
    function offerInstead(before, name, after, way = asking.direction(), text = name) {
      const button = make("button", { type: "button" }, name);
      button.onclick = () => {
        asking.turn(way);
        translate(text);
      };
      offer.replaceChildren(before, button, after);
    }
    field.addEventListener("input", suggest);
    controls.element.onchange = () => asking.direction().megabytes || send();

    const [ways, form, said] = asking.parts;
    el.querySelector(".live-still").replaceWith(ways, form, offer, result, said, stage, choice, experiments);
    asking.turn(data.directions[0]);
  }

  /** Take in what the model tells of a translation. */
  function grow(translation, { source, spelled, meant, rare, step, ended }) {
    if (source) Object.assign(translation, { source, spelled, meant, rare });
    if (step) {
      const { maps, ...told } = step;
      translation.steps.push({ ...told, look: meanOf(maps.cross.at(-1)).at(-1) });
    }
    if (ended !== undefined) translation.note = remark(translation, ended);
  }

  /** What to say of a translation that may be wrong for a reason that the page can see. */
  function remark({ steps, spelled, rare }, ended) {
    const read = spelled ? `Read as “${spelled}”.` : "";
    const doubt = rare.length ? `It has hardly seen what falls into so many pieces: ${rare.slice(0, 3).join(", ")}.` : "";
    return [read, doubt, ended ? "" : `It found no end and was stopped after ${steps.length} subwords.`].join(" ").trim();
  }

  // -------------------------------------------------------------------------- What if

  // Of a changed model, if its translation stays the same, and if it does not
  const CHANGES = {
    positions: ["the words were enough here, whatever their order.", "It reads the same words, but not their order."],
    causal: [
      "it made no difference here that words see later ones.",
      "Each word that it has written now sees later ones, too, as it never did in training.",
    ],
    silent: ["what is silenced wasn’t needed here.", "What is silenced was needed here."],
    beam: ["the search found nothing better.", "It kept several beginnings, and another one came out ahead."],
    temperature: ["each word was drawn by lot, but it was sure of them.", "Each word was drawn by lot; translate again for other ones."],
  };

  /** What one can change of the model and of its search. */
  function controlsFor({ layers, heads }) {
    const positions = make("input", { type: "checkbox", checked: "" });
    const causal = make("input", { type: "checkbox", checked: "" });
    const beam = make("input", { type: "number", min: 1, max: 6, value: 1 });
    const heat = make("input", { type: "number", min: 0, max: 1.5, step: 0.1, value: 0 });
    const head = make("select", {}, make("option", { value: "" }, "none"));
    for (const kind of ["encoder", "decoder", "cross"]) {
      for (let layer = 0; layer < layers; layer++) {
        const names = Array.from({ length: heads }, (_, h) => `${kind}.${layer}.${h}`);
        head.append(make("option", { value: names }, `${kind}, layer ${layer + 1}: all heads`));
        head.append(...names.map((value, h) => make("option", { value }, `${kind}, layer ${layer + 1}: head ${h + 1}`)));
      }
    }
    const whole = make("button", { type: "button" }, "Whole model");
    const element = make("div", { class: "live-options", role: "group", "aria-label": "What if" },
      make("label", {}, positions, "Positions"), make("label", {}, causal, "Causal mask"), make("label", {}, "Silenced", head),
      make("label", {}, "Beam", beam), make("label", {}, "Temperature", heat), whole);

    function set(options) {
      positions.checked = options.positions ?? true;
      causal.checked = options.causal ?? true;
      head.value = (options.silent ?? []).join();
      beam.value = options.beam ?? 1;
      heat.value = options.temperature ?? 0;
    }
    whole.onclick = () => {
      set({});
      element.onchange();
    };
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
      if (head.value) made.push([`Without ${head.selectedOptions[0].textContent}`, ...CHANGES.silent]);
      if (heat.value > 0) made.push([`Temperature ${heat.value}`, ...CHANGES.temperature]);
      else if (beam.value > 1) made.push([`A beam of ${beam.value}`, ...CHANGES.beam]);
      return made;
    }
    return { element, set, options, changes };
  }

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

  const compared = ({ usual, steps }) => differences(usual.split(" "), steps.at(-1).text.split(" "));

  /** What was written; of a changed model, below what the whole one writes, with the words marked that differ. */
  function headline(translation, [, to]) {
    const { steps, usual: before } = translation;
    if (before === undefined) return make("p", { class: "translator-text", dir: "auto", ...inLanguage(to) }, ...pieces(steps));
    const marked = (words) => words.flatMap(({ word, odd }) => [odd ? make("mark", {}, word) : word, " "]);
    const [usual, changed] = compared(translation).map((words) => make("dd", { dir: "auto", ...inLanguage(to) }, ...marked(words)));
    const how = translation.changes.map(([name]) => name).join(", ");
    return make("dl", { class: "live-lines" }, make("dt", {}, "Whole model"), usual, make("dt", {}, how), changed);
  }

  /** What became of a translation when the model was changed. */
  function verdictOn(translation) {
    if (translation.usual === undefined) return "";
    const [lost, fresh] = compared(translation).map((words) => words.filter(({ odd }) => odd).length);
    const { changes, usual, steps } = translation;
    const [, same, other] = changes.length === 1 ? changes[0] : ["", "", ""]; // of several, who knows which
    if (!lost && !fresh) return `The same: ${same || "nothing of that was needed here."}`;
    const told = (count, text, fate) => `Of ${text.split(" ").length} words ${count} ${count === 1 ? "is" : "are"} ${fate}.`;
    return `${fresh ? told(fresh, steps.at(-1).text, "new") : told(lost, usual, "gone")} ${other}`.trim();
  }

  // Small words that one language has and the other has not
  const TELLING = {
    de: "der das dem des ein eine einen und ich ist nicht du er sie wir ihr zu mit auf im haben dass wo wann kein mein auch",
    en: "the a and is are i you he she it we they of to my your his her do did have this that with for on at where what who how",
  };

  /** The language that a text seems to be in, or undefined. */
  function guess(text) {
    const small = text.normalize("NFC").toLowerCase();
    const words = small.match(/\p{L}+/gu) ?? [];
    const count = (language) => words.filter((word) => TELLING[language].split(" ").includes(word)).length;
    const [german, english] = [count("de") + (/[äöüß]/.test(small) ? 1 : 0), count("en")];
    if (german === english) return undefined;
    return german > english ? "de" : "en";
  }

  // ---------------------------------------------------------------------- The picture

  /** How a word looks of which the model was less sure. */
  function doubt(share) {
    if (share >= SURE) return "";
    return share < UNSURE ? "doubt much" : "doubt";
  }

  /** What was written, piece by piece, with doubts underlined. */
  function pieces(steps) {
    const { text } = steps.at(-1);
    return steps.flatMap(({ share, text: upTo }, t) => {
      const piece = text.slice(t ? steps[t - 1].text.length : 0, upTo.length);
      const word = piece.trimStart();
      const space = piece.slice(0, piece.length - word.length);
      return word ? [space, make("span", { class: doubt(share), title: percent(share) }, word)] : [piece];
    });
  }

  /** Lines from the words of some steps to those that they look at, the heavier the more. */
  function lines({ source, steps }, drawn, kind, label) {
    const rows = Math.max(source.length, steps.length);
    const curves = drawn.flatMap((t) => steps[t].look.flatMap((weight, s) => {
      if (weight < LEAST) return [];
      const d = `M0,${s + 0.5}C50,${s + 0.5} 50,${t + 0.5} 100,${t + 0.5}`;
      return [svg("path", { d, "stroke-opacity": weight.toFixed(3), "stroke-width": (1 + 4 * weight).toFixed(2) })];
    }));
    const view = { viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none", style: `--rows:${rows}` };
    return svg("svg", { class: `translator-lines ${kind}`, role: "img", "aria-label": label, ...view }, ...curves);
  }

  /** Tokens with their shares, and which of them is written. */
  function bars(entries, token) {
    const items = entries.map(([name, share]) => make("li", name === token ? { class: "chosen" } : {},
      make("span", {}, name), bar(share), make("span", {}, percent(share))));
    return make("ol", {}, ...items);
  }

  /** A word of the translation, or all of them, as something to choose. */
  function option(id, name, text, attributes, kind = {}) {
    const input = make("input", { type: "radio", name: id, id: `${id}-${name}`, ...attributes });
    return make("div", kind, input, make("label", { for: `${id}-${name}`, ...kind }, text));
  }

  /** A whole translation: each step has panels, of which those of the chosen one are shown. */
  function picture(translation, languages, addressOf) {
    const { source, steps, done } = translation;
    const id = `translation-${++pictures}`;
    const [from, to] = languages.map(inLanguage);
    const panel = (name) => `step step-${name}`;
    const whole = [...steps.keys()];
    const chosen = (name) => ((done ? "all" : steps.length - 1) === name ? { checked: "" } : {});
    const rules = [...whole, "all"].map((name) => `#${id}:has(#${id}-${name}:checked) .step-${name}`);
    const looks = ({ token, share, look }) => {
      const most = look.indexOf(Math.max(...look));
      return `“${token}” (${percent(share)}) looks most at “${source[most]}” (${percent(look[most])}).`;
    };
    const options = steps.map(({ token, share }, t) => option(id, t, token, chosen(t), { class: doubt(share), title: percent(share) }));
    if (done) options.push(option(id, "all", "all words", chosen("all"), { class: "all", lang: "en" }));
    const english = { lang: "en" };
    const told = steps.map((step, t) => make("div", { class: panel(t) },
      make("p", english, "The five likeliest next"), bars(step.best, step.token),
      make("p", english, looks(step), ...(addressOf ? [" ", make("a", { href: addressOf(t) }, "Look inside")] : []))));
    const unsure = [...steps].sort((a, b) => a.share - b.share).slice(0, LEAST_SURE);
    const summary = [make("p", english, "Least sure of"), bars(unsure.map(({ token, share }) => [token, share]))];
    const sample = (share, text) => make("span", { class: doubt(share) }, text);
    const tokens = [...source, ...steps.map(({ token }) => token)];
    const signs = Object.entries(SIGNS).filter(([sign]) => tokens.some((token) => token.startsWith(sign)));
    return make("div", { id, class: "translator-picture" },
      make("style", {}, `#${id} .step{display:none}${rules.join()}{display:block}`),
      make("p", { class: "translator-legend" }, "How sure it was of a word: ",
        sample(UNSURE, `below ${percent(SURE)}`), ", ", sample(0, `below ${percent(UNSURE)}`), `. Signs: ${signs.map((sign) => sign.join(" ")).join(", ")}.`),
      make("div", { class: "translator-stage" },
        make("div", { class: "translator-pair" },
          make("ol", { class: "translator-source", ...from, "aria-label": "Source" }, ...source.map((token) => make("li", {}, token))),
          ...steps.map((step, t) => lines(translation, [t], panel(t), looks(step))),
          lines(translation, whole, panel("all"), "Lines from each word to those that it looks at"),
          make("div", { class: "translator-target", ...to, role: "radiogroup", "aria-label": "Translation, word by word" }, ...options)),
        make("div", { class: "translator-best", ...to }, ...told, make("div", { class: panel("all") }, ...summary))));
  }

  /** A translation as the page records it; `run` does a job at once. */
  function record(run, text) {
    const translation = { text, steps: [] };
    for (const message of run({ task: "translate", text })) grow(translation, message);
    return translation;
  }

  const still = (translation, languages) => [headline(translation, languages), picture({ ...translation, done: true }, languages)];

  live.translator = { render, still, record };
})();
