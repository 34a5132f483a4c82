// Figures that react. Each comes as a still picture with its data beside it, as JSON. When the reader
// comes near, a live figure takes its place; if that fails, the still stays.
// Scripts here are no modules: a browser loads none for a page that was opened as a file.

"use strict";

const bookFigures = {}; // what the scripts that are loaded on demand offer, by file name

(() => {
  const home = document.currentScript.src;
  const asked = {};

  /** Load a script that lies beside this one, once; give what it offers. `hear`, if there is one, is told how many bytes
   * have come.
   */
  function load(name, hear) {
    asked[name] ??= bring(name, hear);
    asked[name].catch(() => delete asked[name]); // the next time may be better
    return asked[name];
  }

  async function bring(name, hear) {
    const file = new URL(`${name}.js`, home).href;
    const counted = hear && file.startsWith("http"); // a page that was opened as a file may fetch none
    await (counted ? download(file, hear).then(run) : run(file)).catch(() => {
      throw new Error(`${name}.js cannot be loaded`);
    });
    if (!bookFigures[name]) throw new Error(`${name}.js is no figure`);
    return bookFigures[name];
  }

  function run(address) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: address, onload: resolve, onerror: reject });
      document.head.append(script);
    });
  }

  /** Download a script, and count its bytes; give an address within the page. */
  async function download(file, hear) {
    const response = await fetch(file);
    if (!response.ok) throw new Error(response.status);
    const reader = response.body.getReader();
    const parts = [];
    let bytes = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      bytes += part.value.length;
      hear(bytes);
    }
    return URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  }

  bookFigures.load = load;

  /** A figure names a script of ours; its `render({ data, el })` replaces the still. */
  async function enliven(figure) {
    const { render } = await load(figure.dataset.module);
    await render({ data: dataOf(figure), el: figure });
  }

  // Data lie beside the drawing, as JSON in a script element.
  function dataOf(element) {
    const script = element.querySelector('script[type="application/json"]');
    return script ? JSON.parse(script.textContent) : null;
  }

  // Replace figures when the reader comes near them
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        watch.unobserve(target);
        enliven(target).then(
          () => (target.dataset.drawn = "true"),
          (error) => console.error("The figure stays a picture:", error),
        );
      }
    },
    { rootMargin: "400px" },
  );
  for (const figure of document.querySelectorAll("figure[data-module]")) watch.observe(figure);

  // An address may name a place in a figure, as in #layer=2&word=3: then this is where the reader wants to be
  if (location.hash.includes("=")) document.querySelector('figure[data-module="inside"]')?.scrollIntoView();
})();
