// What the live figures share: elements, scripts that come when they are asked for, the model in its worker, and the
// field in which a reader types.
//
// A figure is <figure class="book-translator" data-module="NAME">: a still picture in an element of the class "live-still", and its
// data as JSON in a script element. live.NAME is { render({ data, el }), still(...) }: the first takes the place of the
// picture, the second draws it, while the site is built.
//
// No script is a module, and the model comes as a script: a page that was opened as a file may load neither modules nor data.

"use strict";

const live = {}; // what the scripts offer, by file name

(() => {
  const home = document.currentScript?.src;
  const scripts = {}; // promises, by name
  const workers = {}; // the same, by the model's name
  const FAST = 5; // megabits a second, with which a model is there before a sentence is typed
  let jobs = 0, fields = 0;

  // ------------------------------------------------------------------------- Elements

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

  const percent = (share) => (share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);
  const signed = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
  const bar = (share) => make("i", { style: `--share:${Math.max(0, Math.min(1, share)).toFixed(3)}` });
  const inLanguage = (lang) => (lang ? { lang } : {});
  const meanOf = (heads) => heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, rows) => sum + rows[i][j], 0) / heads.length));
  const scrolling = (label, ...content) => make("div", { class: "live-scroll", role: "region", "aria-label": label, tabindex: 0 }, ...content);

  // -------------------------------------------------------------------------- Scripts

  /** Load a script that lies beside this one, once; give what it offers. `hear` is told how many bytes have come. */
  function load(name, hear) {
    if (live[name]) return Promise.resolve(live[name]);
    scripts[name] ??= bring(new URL(`${name}.js`, home).href, hear).then(() => live[name]);
    scripts[name].catch(() => delete scripts[name]); // the next time may be better
    return scripts[name];
  }

  async function bring(address, hear) {
    const counted = hear && address.startsWith("http"); // a page that was opened as a file may fetch nothing
    const source = counted ? await download(address, hear) : address;
    await new Promise((resolve, reject) => {
      const script = make("script", { src: source });
      Object.assign(script, { onload: resolve, onerror: () => reject(new Error("A file could not be loaded. Try again.")) });
      document.head.append(script);
    });
  }

  /** Download a script, and count its bytes; give an address within the page. */
  async function download(address, hear) {
    const response = await fetch(address).catch(() => ({}));
    if (!response.ok) throw new Error("The model could not be loaded. Try again.");
    const reader = response.body.getReader();
    const parts = [];
    let bytes = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      hear((bytes += part.value.length));
    }
    return URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  }

  // ------------------------------------------------------------------------ The model

  /** The worker that has a model. */
  function start(name, hear) {
    workers[name] ??= load(name, hear).then((model) => {
      const text = new Blob([`"use strict"; (${live.engine})().serve(self);`], { type: "text/javascript" });
      const worker = new Worker(URL.createObjectURL(text));
      const weights = live.engine().unpack(model.weights);
      worker.postMessage({ ...model, weights }, [weights.buffer]);
      delete model.weights; // the worker has them now
      return worker;
    });
    workers[name].catch(() => delete workers[name]);
    return workers[name];
  }

  /** Give a worker a job; `hear` gets each message. It ends with the last one, or never, if another job comes first. */
  function ask(worker, job, hear) {
    const number = ++jobs;
    return new Promise((resolve, reject) => {
      const listen = ({ data: message }) => {
        if (number === jobs && message.number !== number) return; // the last words of the job before
        if (number !== jobs || message.done || message.error) worker.removeEventListener("message", listen);
        if (number !== jobs) return;
        if (message.error) return reject(new Error(message.error));
        hear(message);
        if (message.done) resolve();
      };
      worker.addEventListener("message", listen);
      worker.onerror = () => reject(new Error("The model stopped working. Load the page again."));
      worker.postMessage({ number, ...job });
    });
  }

  // ------------------------------------------------------------------------ The field

  /** A field, the button that sends what is typed, a choice of directions, and a line in which the page speaks.
   *
   * data.directions: [{model (name of its script), megabytes (0: it is in the page), languages (of source and target),
   * label (of the field)}]. `answer(text, ask)` is called with what was typed, and `ask(job, hear)`; `turned(direction)`
   * when another direction is chosen.
   */
  function fieldOf({ data, el, task, answer, turned = () => {} }) {
    const id = `live-${++fields}`;
    const typing = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
    const field = make("input", { id, type: "text", dir: "auto", value: data.text ?? "", ...typing });
    const label = make("label", { for: id });
    const submit = make("button", { type: "submit" });
    const form = make("form", { class: "live-form" }, label, field, submit);
    const said = make("p", { class: "live-said", "aria-live": "polite" });
    const ways = make("div", { class: "live-ways", role: "group", "aria-label": "Direction" });
    const languages = { de: "German", en: "English" };
    let direction, newest = 0;

    for (const way of data.directions) {
      const names = way.languages.map((code) => languages[code]).join(" → ");
      const button = make("button", { type: "button" }, names);
      button.onclick = () => turn(way);
      ways.append(button);
    }
    ways.hidden = data.directions.length < 2;

    function turn(way) {
      direction = way;
      [...ways.children].forEach((button, n) => button.setAttribute("aria-pressed", data.directions[n] === way));
      label.textContent = way.label;
      Object.assign(field, { lang: way.languages[0] });
      nameSubmit();
      turned(way);
    }

    function nameSubmit() {
      submit.textContent = direction.megabytes ? `Load the model (${direction.megabytes} MB) and ${task.toLowerCase()}` : task;
    }

    /** The worker of a direction. The share that has come is not read out: it changes too often. */
    async function prepare(way) {
      const tell = (bytes) => way === direction && (submit.textContent = `Loading … ${Math.min(100, Math.floor(bytes / (1e4 * way.megabytes)))}%`);
      const worker = await start(way.model, way.megabytes && tell);
      way.megabytes = 0;
      nameSubmit();
      return worker;
    }

    async function send() {
      const mine = cancel();
      const way = direction;
      const text = field.value.trim();
      el.classList.add("waiting"); // what stands there answers something else
      say(way.megabytes ? "Loading the model …" : "Working …");
      try {
        if (!text) throw new Error("Type something first.");
        const worker = await prepare(way);
        if (mine !== newest) return;
        say("Working …");
        await answer(text, (job, hear) => ask(worker, { text, most: data.most, ...job }, hear));
        el.classList.remove("waiting");
      } catch (error) {
        nameSubmit();
        if (mine !== newest) return;
        el.classList.add("refused");
        say(error.message);
      }
    }

    /** Whatever was asked for, nobody waits for it any more. */
    function cancel() {
      jobs++;
      el.classList.remove("waiting", "refused");
      return ++newest;
    }

    const say = (...content) => said.replaceChildren(...content);

    form.onsubmit = (event) => {
      event.preventDefault();
      send();
    };
    field.onfocus = () => {
      const { downlink, saveData } = navigator.connection ?? {}; // which not every browser tells
      if (downlink >= FAST && !saveData) prepare(direction).catch(nameSubmit);
    };
    return { parts: [ways, form, said], field, turn, send, say, cancel, direction: () => direction };
  }

  Object.assign(live, { make, svg, percent, signed, bar, inLanguage, meanOf, scrolling, load, fieldOf });

  addEventListener("DOMContentLoaded", () => {
    for (const el of document.querySelectorAll("figure[data-module]:has(.live-still)")) {
      const data = JSON.parse(el.querySelector('script[type="application/json"]').textContent);
      live[el.dataset.module].render({ data, el });
      el.dataset.drawn = "true";
    }
  });
})();
