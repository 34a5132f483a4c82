// The Transformer of this book in JavaScript: it translates in a page, with the weights that book/live/pack.py packs.
// Vectors are arrays of numbers, a sentence is a list of vectors.
//
// A worker is started from the text of the one function here, since a page that was opened as a
// file may not load a worker from another.

"use strict";

function engine() {
  const [PAD, BOS, EOS, UNK] = [0, 1, 2, 3];
  const add = (x, y) => x.map((value, i) => value + y[i]);
  const largest = (values) => values.reduce((a, b) => Math.max(a, b));

  // ---------------------------------------------------------------- Tokenization (chapter 14)

  /** One space for each run of white space, none at the ends, and letters composed: the rule of the training data,
   * `single_spaced`. To JavaScript's \s, which has the byte order mark, it adds what only Python's has.
   */
  const singleSpaced = (text) => text.normalize("NFC").replace(/[\s\x1c-\x1f\x85]+/g, " ").trim();

  const SPLIT =
    /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

  /** A visible sign for each of the 256 bytes; a byte that is no visible character gets the next from 256. */
  function byteSigns() {
    const visible = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
    let next = 256;
    return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(visible(byte) ? byte : next++));
  }

  /** Byte-level BPE from a list of merges, each [left, right]. */
  function makeTokenizer(merges) {
    const signs = byteSigns();
    const special = ["<pad>", "<s>", "</s>", "<unk>"];
    const names = [...new Set([...special, ...[...signs].sort(), ...merges.map(([left, right]) => left + right)])];
    const spaced = merges.map((pair) => pair.join(" "));
    const [ids, bytes, ranks] = [names, signs, spaced].map((list) => new Map(list.map((entry, i) => [entry, i])));

    /** The earliest merge first, the leftmost of several, until none is left. */
    function merge(parts) {
      for (;;) {
        let first = Infinity, place;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`);
          if (rank < first) [first, place] = [rank, i];
        }
        if (first === Infinity) return parts;
        parts.splice(place, 2, parts[place] + parts[place + 1]);
      }
    }

    const split = (text) => text.match(SPLIT) ?? [];
    const spelled = (piece) => Array.from(new TextEncoder().encode(piece), (byte) => signs[byte]);
    const encode = (text) => split(text).flatMap((piece) => merge(spelled(piece)).map((part) => ids.get(part)));
    const bytesOf = (tokens) => tokens.filter((id) => id > UNK).flatMap((id) => Array.from(names[id] ?? "", (sign) => bytes.get(sign)));
    const decode = (tokens) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytesOf(tokens)));

    /** How a token reads: "+" before what goes on with a word, half a letter as a byte, special ones by name. */
    function show(id, place) {
      if (id < special.length) return special[id];
      const text = decode([id]);
      if (text.includes("\ufffd")) return bytesOf([id]).map((byte) => `0x${byte.toString(16)}`).join(" ");
      return text.startsWith(" ") ? text.slice(1) || "␣" : place ? `+${text}` : text;
    }

    return { split, encode, decode, show };
  }

  const MANY = 5; // pieces of a word that the model has hardly seen

  /** What `change` makes of a text: it is given each word, and a function that encodes a spelling in its place. */
  function respell({ encode }, text, change) {
    return text.replace(/[\p{L}\p{M}]+/gu, (word, index) => change(word, (spelling) => encode(index ? ` ${spelling}` : spelling)));
  }

  const inBothCases = (word) => [word[0].toUpperCase() + word.slice(1), word];

  /** A text in capitals as one usually writes it: of each word the spelling in fewer pieces, or in those that were merged first. */
  function withoutCapitals(tokenizer, text) {
    const isInCapitals = /\p{Lu}{2}/u.test(text) && !/\p{Ll}/u.test(text);
    if (!isInCapitals) return text;
    return respell(tokenizer, text, (word, encode) => {
      const spellings = inBothCases(word.toLowerCase()).map((spelling) => [spelling, encode(spelling)]);
      const [[best]] = spellings.sort(([, a], [, b]) => a.length - b.length || a.at(-1) - b.at(-1));
      return best;
    });
  }

  const DOTTED = { a: "ä", o: "ö", u: "ü" };

  /** What a German text may mean: for a word in pieces a spelling that is one token, as `schön` for `schoen`. */
  function meantBy(tokenizer, text) {
    return respell(tokenizer, text, (word, encode) => {
      const dotted = [/([aou])e/g, /[aou]/g].map((letters) => word.replace(letters, ([letter]) => DOTTED[letter]));
      const spellings = [word, ...dotted, word.replace("ss", "ß")].flatMap(inBothCases);
      const known = spellings.filter((spelling) => encode(spelling).length === 1).sort((a, b) => encode(a)[0] - encode(b)[0]);
      return encode(word).length > 1 && known.length ? known[0] : word;
    });
  }

  /** The words of a text that fall into many pieces, each with their number. */
  function rareWords(tokenizer, text) {
    const found = [];
    respell(tokenizer, text, (word, encode) => {
      const pieces = encode(word).length;
      if (pieces >= MANY) found.push(`“${word}” (${pieces})`);
    });
    return found;
  }

  // -------------------------------------------------------------------------- Reading the file

  /** The bytes that are spelled in base64, taken in parts, so as not to hold the whole twice. */
  function unpack(text) {
    const filled = ["==", "="].find((end) => text.endsWith(end)) ?? "";
    const bytes = new Uint8Array(0.75 * text.length - filled.length);
    for (let i = 0; i < text.length; i += 65536) {
      const part = atob(text.slice(i, i + 65536));
      for (let j = 0; j < part.length; j++) bytes[0.75 * i + j] = part.charCodeAt(j);
    }
    return bytes;
  }

  /** From the packed file to a model: safetensors, each matrix in whole numbers, one scale a row. */
  function readModel({ config, merges, weights }) {
    const bytes = typeof weights === "string" ? unpack(weights) : weights;
    const start = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true)); // a header, and its length before it
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));

    function numbers(name) {
      const { dtype, data_offsets: [from, to] } = header[name];
      const [Numbers, size] = dtype === "I8" ? [Int8Array, 1] : [Float32Array, 4];
      return new Numbers(bytes.buffer, start + from, (to - from) / size);
    }
    function tensor(name) {
      if (!header[name]) return undefined;
      const [rows, columns] = header[name].shape;
      return columns ? { rows, columns, scales: numbers(`${name}.scales`), whole: numbers(name) } : numbers(name);
    }
    const linear = (name) => ({ weight: tensor(`${name}.weight`), bias: tensor(`${name}.bias`) });
    const norm = (name) => ({ gain: tensor(`${name}.gain`), bias: tensor(`${name}.bias`) });
    const attention = (name, kind, layer) => {
      const parts = ["query", "key", "value", "output"].map((part) => [part, linear(`${name}.${part}`)]);
      return { ...Object.fromEntries(parts), name, heads: config.heads, kind, layer };
    };
    const network = (name) => ({ name, first: linear(`${name}.linear1`), second: linear(`${name}.linear2`) });
    const residual = (name) => ({ name, norm: norm(`${name}.norm`), preNorm: config.pre_norm });
    const stack = (side) => ({
      norm: header[`${side}.norm.gain`] && norm(`${side}.norm`),
      layers: Array.from({ length: config.layers }, (_, n) => {
        const name = `${side}.layers.${n}`;
        return {
          self: attention(`${name}.self_attention`, side, n),
          cross: side === "decoder" ? attention(`${name}.cross_attention`, "cross", n) : undefined,
          network: network(`${name}.feed_forward`),
          residuals: (side === "decoder" ? [0, 1, 2] : [0, 1]).map((i) => residual(`${name}.residuals.${i}`)),
        };
      }),
    });
    const embedding = tensor("embedding.weight");
    const table = tensor("positions.table"); // if they were learned
    return { config, embedding, table, encoder: stack("encoder"), decoder: stack("decoder"), tokenizer: makeTokenizer(merges) };
  }

  // ---------------------------------------------------------------------- The parts of a layer

  /** What a run computes on its way is kept if it has a `trace`: lists of vectors, a position after the other, under the
   * name that the part has in the package.
   */
  function keep({ trace }, name, vectors) {
    if (!trace) return;
    const kept = (trace[name] ??= {});
    for (const [what, added] of Object.entries(vectors)) (kept[what] ??= []).push(...added);
  }

  /** W x, where a row of W is whole numbers times a scale. */
  function multiply({ rows, columns, scales, whole }, x) {
    const y = new Float32Array(rows);
    for (let r = 0, at = 0; r < rows; r++) {
      let sum = 0;
      for (let c = 0; c < columns; c++) sum += whole[at++] * x[c];
      y[r] = scales[r] * sum;
    }
    return y;
  }

  const linear = ({ weight, bias }, x) => (bias ? add(multiply(weight, x), bias) : multiply(weight, x));
  const row = ({ columns, scales, whole }, r) => Float32Array.from(whole.subarray(r * columns, (r + 1) * columns), (v) => scales[r] * v);

  function softmax(scores) {
    const most = largest(scores);
    const powers = scores.map((score) => Math.exp(score - most));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }

  /** softmax(q k / sqrt(d_k)) v in each head, then joined (chapters 3 and 5). A silenced head adds nothing. */
  function attend(part, x, keys, values, options) {
    const { heads, kind, layer } = part;
    const { silent, maps } = options;
    const query = linear(part.query, x);
    const joined = new Float32Array(values[0].length);
    const [dK, dV] = [query.length / heads, joined.length / heads];
    const [allScores, allWeights] = [[], []]; // of each head
    for (let h = 0; h < heads; h++) {
      const scores = keys.map((key) => {
        let dot = 0;
        for (let i = h * dK; i < (h + 1) * dK; i++) dot += query[i] * key[i];
        return dot / Math.sqrt(dK);
      });
      const weights = softmax(scores);
      allScores.push(scores);
      allWeights.push(weights);
      (((maps[kind] ??= [])[layer] ??= [])[h] ??= []).push(weights);
      if (silent.includes(`${kind}.${layer}.${h}`)) continue;
      weights.forEach((weight, s) => {
        for (let i = h * dV; i < (h + 1) * dV; i++) joined[i] += weight * values[s][i];
      });
    }
    keep(options, part.name, { queries: [query], scores: [allScores], weights: [allWeights], joined: [joined] });
    return linear(part.output, joined);
  }

  /** gain (x - mean) / sqrt(variance + eps) + bias (chapter 9). */
  function normalize({ gain, bias }, x) {
    const mean = x.reduce((a, b) => a + b) / x.length;
    const deviation = Math.sqrt(x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length + 1e-6);
    return x.map((value, i) => (gain[i] * (value - mean)) / deviation + bias[i]);
  }

  /** Add what a sub-layer makes of a sentence, and normalize; with preNorm in the other order. */
  function residual({ name, norm, preNorm }, xs, sublayer, options) {
    const normalized = (vectors) => vectors.map((x) => normalize(norm, x));
    const added = sublayer(preNorm ? normalized(xs) : xs);
    const sums = added.map((y, i) => add(xs[i], y));
    const after = preNorm ? sums : normalized(sums);
    keep(options, name, { added, after });
    return after;
  }

  /** Keys and values of vectors, behind those that are known from the past. */
  function project(part, xs, past, options) {
    const keys = xs.map((x) => linear(part.key, x));
    const values = xs.map((x) => linear(part.value, x));
    keep(options, part.name, { keys, values });
    return { keys: [...past.keys, ...keys], values: [...past.values, ...values] };
  }
  const NOTHING = { keys: [], values: [] };

  /** W2 max(0, W1 x + b1) + b2 (chapter 6). */
  function feedForward({ name, first, second }, x, options) {
    const hidden = linear(first, x).map((value) => Math.max(0, value));
    keep(options, name, { hidden: [hidden] });
    return linear(second, hidden);
  }

  /** Pass vectors through one layer; return them, and all keys and values of its self-attention. */
  function runLayer({ self, cross, network, residuals }, xs, { past = NOTHING, memory, causal }, options) {
    let known;
    const lookAround = (ys) => {
      known = project(self, ys, past, options);
      return ys.map((y, t) => {
        const seen = causal ? past.keys.length + t + 1 : known.keys.length; // the causal mask (chapter 4)
        return attend(self, y, known.keys.slice(0, seen), known.values.slice(0, seen), options);
      });
    };
    const lookAtSource = (ys) => ys.map((y) => attend(cross, y, memory.keys, memory.values, options));
    const think = (ys) => ys.map((y) => feedForward(network, y, options));
    xs = residual(residuals[0], xs, lookAround, options);
    if (cross) xs = residual(residuals[1], xs, lookAtSource, options);
    return [residual(residuals.at(-1), xs, think, options), known];
  }

  // ------------------------------------------------------------------ The model (chapter 10)

  /** sqrt(D) times the token's row, plus its position (chapters 7 and 8). */
  function embed({ config, embedding, table }, side, token, position, options) {
    const D = config.d_model;
    const word = row(embedding, token).map((value) => value * Math.sqrt(D));
    const angle = (i) => position / 10000 ** ((i - (i % 2)) / D);
    const sinusoid = () => Float32Array.from(word, (_, i) => (i % 2 ? Math.cos(angle(i)) : Math.sin(angle(i))));
    const embedded = options.positions ? add(word, table ? row(table, position) : sinusoid()) : word;
    keep(options, side, { embedded: [embedded] });
    return embedded;
  }

  /** Compare the stream at a position with each row of the embedding: the logits of the next word. */
  const logitsOf = ({ decoder, embedding }, x) => multiply(embedding, decoder.norm ? normalize(decoder.norm, x) : x);

  /** What readers may change: positions and causal mask off, heads silenced, as "cross.1.3": kind, layer, head. An
   * object as `trace` fills with all that is computed.
   */
  const complete = (options) => ({ positions: true, causal: true, silent: [], ...options });

  /** Read a source, `</s>` at its end; return what the decoder starts from. */
  function begin(model, source, options) {
    options = { ...complete(options), maps: {} };
    let memory = source.map((token, s) => embed(model, "encoder", token, s, options));
    for (const layer of model.encoder.layers) [memory] = runLayer(layer, memory, { causal: false }, options);
    if (model.encoder.norm) memory = memory.map((x) => normalize(model.encoder.norm, x));
    const memories = model.decoder.layers.map(({ cross }) => project(cross, memory, NOTHING, options));
    return { options, memories, tokens: [], past: [], maps: options.maps };
  }

  /** Read more target tokens: the logits at a place, the attention of these tokens, and the state after them. */
  function read(model, state, added) {
    const options = { ...state.options, maps: {} };
    const { causal } = options;
    const tokens = [...state.tokens, ...added];
    const first = causal ? state.tokens.length : 0; // without the mask, a new token changes all before it
    let xs = tokens.slice(first).map((id, t) => embed(model, "decoder", id, first + t, options));
    const past = model.decoder.layers.map((layer, n) => {
      const context = { past: causal ? state.past[n] : undefined, memory: state.memories[n], causal };
      const [ys, known] = runLayer(layer, xs, context, options);
      xs = ys;
      return known;
    });
    const logitsAt = (place) => logitsOf(model, xs.at(place));
    return { logitsAt, maps: options.maps, state: { ...state, tokens, past } };
  }

  /** Read one more target token: the logits of the next, its attention, and the state after it. */
  function step(model, state, token) {
    const { logitsAt, ...rest } = read(model, state, [token]);
    return { logits: logitsAt(-1), ...rest };
  }

  // --------------------------------------------------------------------- Decoding (chapter 19)

  const RIVALS = 2; // of each round, that are shown though they were dropped
  const TOLD = 5; // likeliest words that are told with each step
  const limitOf = (model, source) => Math.min(source.length + 50, model.config.max_length);

  /** The best entries of a list, as indices, best first. */
  function top(values, count) {
    const best = [];
    for (let i = 0; i < values.length; i++) {
      if (best.length === count && !(values[i] > values[best.at(-1)])) continue;
      let place = best.length;
      while (place && values[i] > values[best[place - 1]]) place--;
      best.splice(place, 0, i);
      best.length = Math.min(best.length, count);
    }
    return best;
  }

  const greedy = (logits) => top(logits, 1)[0];

  /** A function that draws the next token: hot flattens the shares, top-p keeps the best that make up p. */
  const sampler = ({ temperature = 1, topP = 1, random = Math.random }) => (logits) => {
    const shares = softmax(logits.map((logit) => logit / temperature));
    const ordered = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
    let mass = 0;
    const kept = ordered.filter((token) => (mass += shares[token]) - shares[token] < topP);
    let left = random() * kept.reduce((sum, token) => sum + shares[token], 0);
    return kept.find((token) => (left -= shares[token]) < 0) ?? kept[0];
  };

  /** What to choose from: padding and `<s>` are no words. */
  function forbid(logits) {
    logits[PAD] = logits[BOS] = -Infinity;
    return logits;
  }

  /** Write token by token until `</s>`; yields each with its share, the best five with theirs, and its attention,
   * the first with the encoder's, too.
   */
  function* write(model, source, { choose = greedy, ...options } = {}) {
    let state = begin(model, source, options);
    for (let token = BOS, n = 0; n < limitOf(model, source) && token !== EOS; n++) {
      const { logits, maps, state: after } = step(model, state, token);
      token = choose(forbid(logits), n);
      const shares = softmax(logits);
      yield { token, share: shares[token], best: top(shares, TOLD).map((id) => [id, shares[id]]), maps: n ? maps : { ...state.maps, ...maps } };
      state = after;
    }
  }

  /** Beam search; yields the candidates of each round, winners first, and returns the best that has ended. */
  function* beamSearch(model, source, { beam = 4, alpha = 0.6, ...options } = {}) {
    const penalty = (length) => ((5 + length) / 6) ** alpha;
    const limit = limitOf(model, source);
    let running = [{ tokens: [], total: 0, place: 0, next: step(model, begin(model, source, options), BOS) }];
    let free = beam, best = { score: -Infinity };
    for (let length = 1; running.length; length++) {
      const candidates = running.flatMap(({ tokens, total, place, next }) => {
        const logs = forbid(softmax(Array.from(next.logits)).map(Math.log));
        const grown = (token) => ({ tokens: [...tokens, token], total: total + logs[token], from: place, before: next.state });
        return top(logs, free + RIVALS).map(grown);
      });
      candidates.sort((a, b) => b.total - a.total).forEach((candidate, place) => (candidate.place = place));
      const winners = candidates.slice(0, free);
      for (const winner of winners) {
        winner.ended = winner.tokens.at(-1) === EOS || length >= limit;
        winner.score = winner.total / penalty(length);
        if (winner.ended) free--;
        if (winner.ended && winner.score > best.score) best = winner;
      }
      yield candidates.slice(0, winners.length + RIVALS).map(({ tokens, total, from, score, ended }) => (
        { token: tokens.at(-1), tokens, total, from, score, ended, kept: score !== undefined }
      ));
      running = winners.filter(({ ended }) => !ended);
      // The best running one, its penalty as kind as it can get, can no longer win
      if (!running.length || !(running[0].total / Math.max(penalty(limit), penalty(length + 1)) > best.score)) break;
      running = running.map((hypothesis) => ({ ...hypothesis, next: step(model, hypothesis.before, hypothesis.tokens.at(-1)) }));
    }
    return best;
  }

  // -------------------------------------------------------------------------------- Jobs

  /** What one can ask for; each task yields its answer piece by piece, and may be given up between two. */
  const tasks = {
    /** A translation, word by word: greedy, as beam search finds it, or drawn by lot. */
    *translate(model, source, options) {
      const { tokenizer } = model;
      const tokens = [];
      let choose = greedy;
      if (options.temperature) choose = sampler(options);
      else if (options.beam > 1) {
        const best = yield* silently(beamSearch(model, source, options));
        choose = (logits, n) => best.tokens[n];
      }
      for (const { token, share, best, maps } of write(model, source, { ...options, choose })) {
        const name = (id) => tokenizer.show(id, tokens.length);
        const named = { token: name(token), share, best: best.map(([id, share]) => [name(id), share]) };
        tokens.push(token);
        yield { step: { ...named, text: tokenizer.decode(tokens), maps } };
      }
      yield { ended: tokens.at(-1) === EOS };
    },

    /** The candidates of each round of a beam search; of each draw, if there is a temperature. */
    *search(model, source, options) {
      const { tokenizer } = model;
      const told = ({ tokens, token, ...rest }) => (
        { word: tokenizer.show(token, tokens.length - 1), text: tokenizer.decode(tokens), length: tokens.length, ...rest }
      );
      const rounds = options.temperature ? draw(model, source, options) : beamSearch(model, source, options);
      for (const round of rounds) yield { round: round.map(told) };
    },

    /** The share of each word of a translation: with the mask, without it, and with the rest of the translation in view. */
    *shares(model, source) {
      const { tokenizer } = model;
      const free = { causal: false };
      const written = yield* collected(write(model, source));
      const target = [BOS, ...written.slice(0, -1).map(({ token }) => token)];
      const whole = read(model, begin(model, source, free), target);
      let state = begin(model, source, free);
      for (const [place, { token, share }] of written.entries()) {
        const next = step(model, state, target[place]);
        const [alone, inView] = [next.logits, whole.logitsAt(place)].map((logits) => softmax(forbid(logits))[token]);
        yield { word: tokenizer.show(token, place), shares: [share, alone, inView] };
        state = next.state;
      }
      const freely = yield* collected(write(model, source, free));
      const [usual, without] = [written, freely].map((steps) => tokenizer.decode(steps.map(({ token }) => token)));
      yield { usual, without };
    },

    /** The rows of the embedding matrix whose directions are nearest to that of a piece of a word (chapter 7). */
    *neighbors({ embedding, tokenizer }, source, { text, count, piece }) {
      const pieces = tokenizer.encode(` ${text}`);
      const chosen = pieces[piece];
      const directions = Array.from({ length: embedding.rows }, (_, id) => row(embedding, id));
      const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
      const lengths = directions.map((x) => Math.sqrt(dot(x, x)) || 1);
      const cosines = directions.map((x, id) => dot(x, directions[chosen]) / (lengths[id] * lengths[chosen]));
      const others = [...cosines.keys()].slice(UNK + 1).filter((id) => id !== chosen).sort((a, b) => cosines[b] - cosines[a]);
      const name = (id) => tokenizer.show(id, 1);
      const nearest = others.slice(0, count).map((id) => [name(id), cosines[id]]);
      yield { pieces: pieces.map(name), nearest, median: cosines[others[others.length >> 1]] };
    },

    /** A translation with all that the model computed on its way, and what it would say if it stopped below a layer. */
    *inside(model, source) {
      const { config, tokenizer } = model;
      const trace = {};
      const tokens = (yield* collected(write(model, source, { trace }))).map(({ token }) => token);
      const after = Array.from({ length: config.layers }, (_, n) => trace[`decoder.layers.${n}.residuals.2`].after);
      const nearest = (x, place) => {
        const shares = softmax(forbid(logitsOf(model, x)));
        const [id] = top(shares, 1);
        return [tokenizer.show(id, place), shares[id]];
      };
      const lens = after.map((stream) => stream.map(nearest));
      yield { written: tokens.map(tokenizer.show), translation: tokenizer.decode(tokens), trace, lens };
    },
  };

  /** Run a search to its end, telling nothing but that it goes on. */
  function* silently(search) {
    for (;;) {
      const { done, value } = search.next();
      if (done) return value;
      yield undefined;
    }
  }

  /** The same for steps that are wanted all together. */
  function* collected(steps) {
    const all = [];
    for (const one of steps) all.push(one), yield undefined;
    return all;
  }

  /** Draw words by lot; yields them as `beamSearch` does, each with the likeliest that were not drawn. */
  function* draw(model, source, options) {
    const tokens = [];
    let total = 0;
    for (const { token, share, best } of write(model, source, { ...options, choose: sampler(options) })) {
      const grown = (id, share) => ({ token: id, tokens: [...tokens, id], total: total + Math.log(share), from: 0 });
      const drawn = { ...grown(token, share), score: total + Math.log(share), ended: token === EOS, kept: true };
      yield [drawn, ...best.filter(([id]) => id !== token).slice(0, 4).map(([id, share]) => ({ ...grown(id, share), kept: false }))];
      [tokens[tokens.length], total] = [token, drawn.total];
    }
  }

  /** Do a job; yields messages, and between them nothing where it might be given up. */
  function* answer(model, { task, text, most = Infinity, options = {} }) {
    const { tokenizer } = model;
    const typed = singleSpaced(text);
    const clean = withoutCapitals(tokenizer, typed);
    const pieces = tokenizer.encode(clean);
    if (pieces.length > most) return yield { error: `That is ${pieces.length} subwords, and this page takes ${most}. Give it less.` };
    const source = [...pieces, EOS];
    const changed = (text, before) => (text === before ? undefined : text);
    const read = { spelled: changed(clean, typed), meant: changed(meantBy(tokenizer, clean), clean), rare: rareWords(tokenizer, clean) };
    yield { source: source.map(tokenizer.show), ...read };
    yield* tasks[task](model, source, { ...options, text: clean });
    yield { done: true };
  }

  /** In a worker: the first message brings the model; each later one a job, and cancels the one before. */
  function serve(port) {
    let model, newest;

    async function work({ number, ...job }) {
      for (const message of answer(model, job)) {
        if (message) port.postMessage({ number, ...message });
        await new Promise((resolve) => setTimeout(resolve)); // let the next message in
        if (newest !== number) return;
      }
    }

    port.onmessage = ({ data }) => {
      if (!model) return void (model = readModel(data));
      newest = data.number;
      work(data).catch((error) => setTimeout(() => { throw error; })); // where `onerror` hears it
    };
  }

  return { makeTokenizer, unpack, readModel, begin, step, write, sampler, beamSearch, answer, serve };
}

live.engine = engine;
