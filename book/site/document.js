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

// --- What a browser offers and the engine uses

class TextEncoder {
  encode(text) {
    return Uint8Array.from(unescape(encodeURIComponent(text)), (sign) => sign.charCodeAt(0));
  }
}

class TextDecoder {
  decode(bytes) {
    const signs = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
    try {
      return decodeURIComponent(escape(signs));
    } catch {
      return "\ufffd"; // half a letter
    }
  }
}

/** The text whose bytes are spelled in base64. */
function atob(text) {
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const values = Array.from(text.replace(/=+$/, ""), (sign) => alphabet.indexOf(sign));
  let bits = 0, held = 0, signs = "";
  for (const value of values) {
    held = ((held << 6) | value) & 0xffff;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    signs += String.fromCharCode((held >> bits) & 0xff);
  }
  return signs;
}

/** What the model computes of a sentence, all numbers with three decimals, as JSON. */
function inside(packed, text) {
  const engine = bookFigures.engine();
  const model = JSON.parse(packed);
  const rounded = (_, value) => {
    if (value instanceof Float32Array) return Array.from(value);
    return typeof value === "number" ? Math.round(1000 * value) / 1000 : value;
  };
  return JSON.stringify({ text, ...engine.lookInside(engine.readModel(model), text) }, rounded);
}
