// The profile as data: trees of callees and callers, sums, shares.
//
// Law: knows nothing of the page.  The data is the object that output/html.py writes: columns by node (a parent
// comes before its children; node 0 is the root) and columns by stack.  Trees are walked lazily: a node's
// children are made when they are asked for, so that a profile of any size shows at once.

class Profile {
  constructor(data) {
    this.data = data;
    this.parent = new Int32Array(data.tree.up).map((steps, node) => node - steps);
    this.frame = new Int32Array(data.tree.frame);
    this.base = data.diff ? 1 : -1; // the column that a difference is measured from
    this.linkChildren();
    this.choose(-1, 0);
  }

  // Children as one array: those of node n are kids[first[n]] .. kids[first[n + 1] - 1].
  linkChildren() {
    const count = this.parent.length;
    const first = this.first = new Int32Array(count + 1);
    for (let n = 1; n < count; n++) first[this.parent[n] + 1]++;
    for (let n = 0; n < count; n++) first[n + 1] += first[n];
    const next = first.slice();
    this.kids = new Int32Array(Math.max(0, count - 1));
    for (let n = 1; n < count; n++) this.kids[next[this.parent[n]]++] = n;
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
    const { node, thread, weights } = this.data.stacks;
    const scale = this.data.scales ? this.data.scales[weight] : 1; // of a difference: counts become shares
    const self = new Float64Array(this.parent.length);
    for (let s = 0; s < node.length; s++) {
      if (this.thread < 0 || thread[s] === this.thread) self[node[s]] += weights[weight][s] * scale;
    }
    const total = self.slice();
    for (let n = total.length - 1; n > 0; n--) total[this.parent[n]] += total[n];
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
      inside[n] = inside[this.parent[n]] || hits[this.frame[n]] ? 1 : 0;
      if (inside[n]) weight += this.self[n];
    }
    return { hits, weight };
  }

  // Every function's own weight and its weight with what it called; recursion counts once.
  functions() {
    const count = this.data.frames.text.length;
    const rows = Array.from({ length: count }, (_, frame) => ({ frame, self: 0, total: 0, before: 0, after: 0 }));
    const depth = new Int32Array(count);
    const todo = this.parent.length ? [0] : [];
    while (todo.length) {
      const n = todo.pop();
      if (n < 0) { depth[this.frame[~n]]--; continue; }
      if (n > 0) {
        const row = rows[this.frame[n]];
        row.self += this.self[n];
        if (this.base >= 0) { row.before += this.ownBase[n]; row.after += this.ownNew[n]; }
        if (depth[this.frame[n]]++ === 0) row.total += this.total[n];
        todo.push(~n);
      }
      for (let k = this.first[n]; k < this.first[n + 1]; k++) todo.push(this.kids[k]);
    }
    return rows.filter((row) => row.total > 0 || row.before > 0);
  }
}

// A node of the tree of callees.
class Callee {
  constructor(profile, node, up) {
    this.profile = profile;
    this.node = node;
    this.up = up;
    this.frame = node ? profile.frame[node] : -1;
    this.total = profile.total[node];
    this.self = profile.self[node];
    this.change = profile.base < 0 ? 0 : profile.totalNew[node] - profile.totalBase[node];
  }

  children() {
    if (!this.known) {
      const { first, kids, total } = this.profile;
      this.known = [];
      for (let k = first[this.node]; k < first[this.node + 1]; k++) {
        if (total[kids[k]] > 0) this.known.push(new Callee(this.profile, kids[k], this));
      }
      this.known.sort((a, b) => this.profile.byName(a, b));
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
      const { frame, parent } = this.profile;
      const byFrame = new Map();
      for (const [node, weight, change] of this.ends) {
        if (node === 0) continue;
        if (!byFrame.has(frame[node])) byFrame.set(frame[node], new Caller(this.profile, frame[node], this));
        byFrame.get(frame[node]).add([parent[node], weight, change]);
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
