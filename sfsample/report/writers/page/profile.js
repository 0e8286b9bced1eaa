// The profile as data: trees of callees and callers, sums, shares.
//
// Law: knows nothing of the page.  The data is the object that output/page_data.py writes: columns by path and by
// function.  Paths come sorted, so a node's first child is the next node, and its subtree ends where its next sibling
// begins.  Objects for nodes are made when they are asked for, so that a profile of any size shows at once.

const ZERO = "?".charCodeAt(0), BASE = 64; // letters of a function's number

class Profile {
  constructor(data) {
    this.data = data;
    this.base = data.diff ? 1 : -1; // the column that a difference is measured from
    this.unpack(data.paths);
    this.choose(-1, 0);
  }

  // parent and end (of the subtree) of each node, 0 being the root; and `ends`, the node of each path.
  unpack({ shared, more, width, letters }) {
    const count = letters.length / width + 1;
    const parent = this.parent = new Int32Array(count), end = this.end = new Int32Array(count).fill(count);
    const ends = this.ends = new Int32Array(more.length);
    const way = new Int32Array(count); // the nodes from the root to here
    let node = 0, depth = 0;
    for (let path = 0; path < more.length; path++) {
      if (more[path]) while (depth > shared[path]) end[way[depth--]] = node + 1;
      for (let left = more[path]; left; left--) {
        parent[++node] = way[depth++];
        way[depth] = node;
      }
      ends[path] = way[depth];
    }
  }

  // The function of a node; -1 is the root's.
  frameOf(node) {
    if (node === 0) return -1;
    const { letters, width } = this.data.paths;
    let value = 0;
    for (let at = (node - 1) * width, stop = at + width; at < stop; at++) value = value * BASE + letters.charCodeAt(at) - ZERO;
    return value;
  }

  // Sum up one thread (-1: all) by one weight.
  choose(thread, weight) {
    this.thread = thread;
    this.weight = weight;
    [this.self, this.total] = this.sums(weight);
    if (this.base >= 0) {
      [this.ownBase, this.totalBase] = this.sums(this.base);
      [this.ownNew, this.totalNew] = this.sums(0);
    }
  }

  sums(weight) {
    const { parent, ends, thread: chosen } = this, { thread, weights: { [weight]: weights } } = this.data.stacks;
    const scale = this.data.scales ? this.data.scales[weight] : 1; // of a difference: counts become shares
    const self = new Float64Array(parent.length);
    for (let path = 0; path < ends.length; path++) {
      if (chosen < 0 || thread[path] === chosen) self[ends[path]] += weights[path] * scale;
    }
    const total = self.slice();
    for (let n = total.length - 1; n > 0; n--) total[parent[n]] += total[n];
    return [self, total];
  }

  threadTotals() {
    const { thread, weights } = this.data.stacks;
    const sums = this.data.threads.map(() => 0);
    thread.forEach((one, s) => { sums[one] += weights[this.weight][s]; });
    return sums;
  }

  name(frame) { return frame < 0 ? "all" : this.data.frames.text[frame]; }
  module(frame) { return frame < 0 ? "" : this.data.modules[this.data.frames.module[frame]] || ""; }
  noise(frame) { return frame < 0 || this.data.frames.noise[frame]; }
  verdict(frame) { return frame < 0 || !this.data.diff ? "" : this.data.frames.change[frame]; }
  found(frame) { return frame < 0 ? "" : this.data.frames.found[frame]; }
  byName(a, b) { return this.name(a.frame) < this.name(b.frame) ? -1 : 1; }

  callees() { return new Callee(this, 0, null); }
  callers() { return Caller.root(this); }

  // Which frames match a word, and the weight of all stacks with one of them.
  search(word) {
    const wanted = word.toLowerCase();
    const hits = this.data.frames.text.map((text, frame) =>
      text.toLowerCase().includes(wanted) || this.module(frame).toLowerCase().includes(wanted));
    const inside = new Uint8Array(this.parent.length);
    let weight = 0;
    for (let n = 1; n < inside.length; n++) {
      inside[n] = inside[this.parent[n]] || hits[this.frameOf(n)] ? 1 : 0;
      if (inside[n]) weight += this.self[n];
    }
    return { hits, weight };
  }

  // Every function's own weight and its weight with what it called; recursion counts once.
  functions() {
    const count = this.data.frames.text.length;
    const rows = Array.from({ length: count }, (_, frame) => ({ frame, self: 0, total: 0, before: 0, after: 0 }));
    const inside = new Int32Array(count); // up to which node a function has been counted
    for (let n = 1; n < this.parent.length; n++) {
      const frame = this.frameOf(n), row = rows[frame];
      row.self += this.self[n];
      if (this.base >= 0) { row.before += this.ownBase[n]; row.after += this.ownNew[n]; }
      if (n < inside[frame]) continue;
      row.total += this.total[n];
      inside[frame] = this.end[n];
    }
    return rows.filter((row) => row.total > 0 || row.before > 0);
  }

  // The sums of a weight by what `nameOf` calls each function, added to `sums`, the heaviest first.
  shares(nameOf, weights, sums = new Map()) {
    for (let n = 1; n < weights.length; n++) {
      if (!weights[n]) continue;
      const name = nameOf(this.frameOf(n));
      sums.set(name, (sums.get(name) || 0) + weights[n]);
    }
    return [...sums].sort((a, b) => b[1] - a[1]);
  }
}

// A node of the tree of callees.
class Callee {
  constructor(profile, node, up) {
    this.profile = profile;
    this.node = node;
    this.up = up;
    this.frame = profile.frameOf(node);
    this.total = profile.total[node];
    this.self = profile.self[node];
    this.change = profile.base < 0 ? 0 : profile.totalNew[node] - profile.totalBase[node];
  }

  children() {
    if (!this.known) {
      const { end, total } = this.profile;
      this.known = [];
      for (let kid = this.node + 1; kid < end[this.node]; kid = end[kid]) {
        if (total[kid] > 0) this.known.push(new Callee(this.profile, kid, this));
      }
    }
    return this.known;
  }
}

// A node of the tree of callers: below a function stand those that called it.  `ends` are (where in the tree of
// callees, own weight) pairs: the stacks that pass through here, each at the frame it has been followed to.
class Caller {
  constructor(profile, frame, up) {
    this.profile = profile;
    this.frame = frame;
    this.up = up;
    this.total = this.self = this.change = 0;
    this.ends = [];
  }

  static root(profile) {
    const root = new Caller(profile, -1, null);
    for (let n = 1; n < profile.parent.length; n++) {
      const change = profile.base < 0 ? 0 : profile.ownNew[n] - profile.ownBase[n];
      if (profile.self[n] > 0 || change) root.add([n, profile.self[n], change]);
    }
    return root;
  }

  add(end) {
    this.ends.push(end);
    this.total += end[1];
    this.change += end[2];
    if (end[0] === 0) this.self += end[1];
  }

  children() {
    if (!this.known) {
      const { parent } = this.profile;
      const byFrame = new Map();
      for (const [node, weight, change] of this.ends) {
        if (node === 0) continue;
        const frame = this.profile.frameOf(node);
        if (!byFrame.has(frame)) byFrame.set(frame, new Caller(this.profile, frame, this));
        byFrame.get(frame).add([parent[node], weight, change]);
      }
      this.known = [...byFrame.values()].filter((kid) => kid.total > 0);
      this.known.sort((a, b) => b.total - a.total || this.profile.byName(a, b));
    }
    return this.known;
  }
}

// Numbers for people: time, samples, or the shares of a difference.
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
function amount(value, data, weight) {
  if (data.unit) return `${value.toFixed(2)} ${data.unit}`;
  if (data.weights[weight].endsWith("_ns")) {
    const [size, unit] = UNITS.find(([one]) => Math.abs(value) >= one) || UNITS[3];
    return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value.toLocaleString("en")} sample${value === 1 ? "" : "s"}`;
}

function percent(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  return share > 0 && share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 10 ? 2 : 1)} %`;
}
