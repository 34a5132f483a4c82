// As much of a document as the site's scripts need to draw a still picture without a browser. An
// element becomes HTML when it is written as a string.

"use strict";

const bookFigures = {};

const document = {
  createElement: (name) => new PlainElement(name),
  createElementNS: (_, name) => new PlainElement(name),
};

class PlainElement {
  constructor(name) {
    this.name = name;
    this.attributes = new Map();
    this.content = [];
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  append(...content) {
    this.content.push(...content);
  }

  toString() {
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${escaped(value)}"`);
    const head = `<${this.name}${attributes.join("")}>`;
    return this.name === "input" ? head : `${head}${written(this.content)}</${this.name}>`;
  }
}

const written = (content) => content.map((part) => (part instanceof PlainElement ? `${part}` : escaped(part))).join("");

function escaped(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return `${text}`.replace(/[&<>"]/g, (sign) => entities[sign]);
}

/** What a figure's script draws of a recording. */
function still(figure, ...recording) {
  return written([bookFigures[figure].still(...recording)].flat());
}
