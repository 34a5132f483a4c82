// As much of a browser as the figures need to compute and draw a still picture while the site is built. An element
// becomes HTML when it is written as a string.

"use strict";

const document = {
  createElement: (name) => new PlainElement(name),
  createElementNS: (_, name) => new PlainElement(name),
};
const addEventListener = () => {};

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

const BASE64 = new Uint8Array(128);
Array.from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/").forEach((sign, n) => (BASE64[sign.charCodeAt(0)] = n));

/** The text whose bytes are spelled in base64. */
function atob(text) {
  const bytes = [];
  for (let i = 0; i < text.length; i += 4) {
    const [a, b, c, d] = [0, 1, 2, 3].map((n) => BASE64[text.charCodeAt(i + n)]);
    bytes.push((a << 2) | (b >> 4), ((b << 4) | (c >> 2)) & 0xff, ((c << 6) | d) & 0xff);
  }
  const padding = text.match(/=*$/)[0].length;
  return String.fromCharCode.apply(null, bytes.slice(0, bytes.length - padding));
}

// ------------------------------------------------------------------------- for Python

const engines = {}; // models, by name

function bring(name, packed) {
  engines[name] = live.engine().readModel(JSON.parse(packed));
  return name;
}

const runner = (name) => (job) => [...live.engine().answer(engines[name], job)].filter(Boolean);

/** What a figure records of a text, as JSON with three decimals. */
function record(figure, model, text) {
  const rounded = (_, value) => {
    if (value instanceof Float32Array) return Array.from(value);
    return typeof value === "number" ? Math.round(1000 * value) / 1000 : value;
  };
  return JSON.stringify(live[figure].record(runner(model), text), rounded);
}

/** The picture of a recording, as HTML. */
const still = (figure, ...recording) => written(live[figure].still(...recording));

/** The picture of a chapter's figure, as HTML. */
const whatIf = async (name, model, languages) => written(await live.whatif.still(name, runner(model), languages));
