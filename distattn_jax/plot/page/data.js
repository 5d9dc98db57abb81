"use strict";
// Attention maps of one part of a model, decoded from the data of the page.

/** Return the numbers of an array that was compressed and written as text. */
async function unpack(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  return packed.dtype === "uint8" ? new Uint8Array(buffer) : new Float32Array(buffer);
}

/** Attention maps of L layers of N heads. Head N of a layer is the mean of its heads. */
class Part {
  /** Decode a part. `levels` is the integer of the largest weight of a map. */
  static async load(json, levels) {
    const part = new Part();
    [part.integers, part.largest, part.receivedByHead] = await Promise.all(
      [json.maps, json.largest, json.received].map(unpack));
    [part.layers, part.heads, part.queries, part.keys] = json.maps.shape;
    part.name = json.name;
    part.levels = levels;
    part.tokens = json.tokens;
    part.isSelf = json.queryTokens === null;
    part.queryTokens = part.isSelf ? json.tokens : json.queryTokens;
    part.segments = json.segments;
    part.isCausal = json.causal; // No query attends to a later key.
    [part.queryName, part.keyName] = json.axisNames;
    part.layerNumbers = json.layers;
    part.positions = json.positions && await Promise.all(json.positions.map(loadPositions));
    part.size = part.queries * part.keys;
    part.cache = new Map();
    part.overallLargest = part.largest.reduce((a, b) => Math.max(a, b), 0);
    return part;
  }

  isMean(head) { return head === this.heads; }

  /** Return the integers of one map, row by row. */
  integersOf(layer, head) {
    const start = (layer * this.heads + head) * this.size;
    return this.integers.subarray(start, start + this.size);
  }

  /** Return the weights of one map, row by row: the weight of query i and key j is at i * S + j. */
  weights(layer, head) {
    const name = `${layer} ${head}`;
    if (!this.cache.has(name)) {
      if (this.cache.size > 400) this.cache.clear(); // Bounds the memory of very large models.
      this.cache.set(name, this.isMean(head) ? this.meanWeights(layer) : this.decode(layer, head));
    }
    return this.cache.get(name);
  }

  decode(layer, head) {
    const integers = this.integersOf(layer, head);
    const factor = this.largest[layer * this.heads + head] / this.levels ** 2;
    return Float32Array.from(integers, (integer) => factor * integer * integer);
  }

  meanWeights(layer) {
    const sum = new Float32Array(this.size);
    for (let head = 0; head < this.heads; head++) {
      const integers = this.integersOf(layer, head);
      const factor = this.largest[layer * this.heads + head] / this.levels ** 2 / this.heads;
      for (let i = 0; i < sum.length; i++) sum[i] += factor * integers[i] * integers[i];
    }
    return sum;
  }

  /** Return the attention of one query to all keys. */
  row(layer, head, query) {
    return this.weights(layer, head).subarray(query * this.keys, (query + 1) * this.keys);
  }

  /** Return the attention of all queries to one key. */
  column(layer, head, key) {
    const weights = this.weights(layer, head);
    return Float32Array.from({ length: this.queries }, (_, i) => weights[i * this.keys + key]);
  }

  /** Return the largest weight of a map. */
  largestOf(layer, head) {
    if (!this.isMean(head)) return this.largest[layer * this.heads + head];
    return this.weights(layer, head).reduce((a, b) => Math.max(a, b), 0);
  }

  /** Return the attention that each key receives, summed over the queries. It is exact. */
  received(layer, head) {
    const of = (n) => {
      const start = (layer * this.heads + n) * this.keys;
      return this.receivedByHead.subarray(start, start + this.keys);
    };
    if (!this.isMean(head)) return of(head);
    const mean = new Float32Array(this.keys);
    for (let n = 0; n < this.heads; n++) of(n).forEach((x, j) => { mean[j] += x / this.heads; });
    return mean;
  }

  /** Return the number of keys that a query can attend to. */
  visibleKeys(query) { return this.isCausal ? query + 1 : this.keys; }

  /** Return the attention that each key would receive if all queries attended evenly. */
  evenReceived() {
    const even = new Float32Array(this.keys);
    for (let i = 0; i < this.queries; i++) {
      const visible = this.visibleKeys(i);
      for (let j = 0; j < visible; j++) even[j] += 1 / visible;
    }
    return even;
  }

  /** Return true if the attention of query i to key j is selected. `between` is such as "01". */
  isSelected(query, key, between) {
    if (!between || !this.segments) return true;
    return between === `${this.segments[query]}${this.segments[key]}`;
  }

  /** Format a weight as a percentage, with no more digits than the stored bits justify. */
  format(weight, layer, head) {
    const error = 100 * Math.sqrt(weight * this.largestOf(layer, head)) / this.levels;
    const digits = error > 0 ? Math.max(0, Math.min(2, Math.floor(-Math.log10(error)))) : 0;
    return `${(100 * weight).toFixed(digits)}\u00a0%`;
  }
}

/** Decode what the heads of one layer compute from positions. */
async function loadPositions(json) {
  const numbers = {};
  for (const [name, packed] of Object.entries(json.numbers)) numbers[name] = await unpack(packed);
  const curves = await Promise.all(json.curves.map(async (curve) => (
    { ...curve, x: await unpack(curve.x), y: await unpack(curve.y) })));
  const tables = await Promise.all(json.tables.map(async (table) => (
    { ...table, cosines: await unpack(table.cosines) })));
  return { numbers, curves, tables };
}

/** Return a token as it is shown: white space at its beginning and its end is made visible. */
function nameToken(token) {
  if (token === "") return "\u2205";
  const visible = token.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5");
  return visible.replace(/^\s+|\s+$/g, (spaces) => "\u2423".repeat(spaces.length));
}
