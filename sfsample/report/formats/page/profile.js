// The profile as data: trees of callees and callers, sums and shares.  It does not use the page.
//
// The data is the object that report/formats/html.py writes: columns by path and by function.  Paths are
// sorted, so a node's first child is the next node, and its subtree ends where its next sibling begins.
// Objects for nodes are made when they are first used, so that a profile of any size shows at once.

// A function's number is written in letters: the letter for digit 0, and how many digits there are.
const ZERO = "?".charCodeAt(0), BASE = 64;

class ProfileData {
  constructor(data) {
    this.data = data;
    this.base = data.diff ? 1 : -1; // of a difference: the weight column of the report before
    this.unpack(data.paths);
    this.choose(-1, 0);
  }

  // Fill `parent` and `end` (the node after the subtree) of each node, 0 being the root; and `ends`, the last
  // node of each path.
  unpack({ shared, more, width, letters }) {
    const count = letters.length / width + 1;
    const parent = this.parent = new Int32Array(count), end = this.end = new Int32Array(count).fill(count);
    const ends = this.ends = new Int32Array(more.length);
    const ancestors = new Int32Array(count); // by depth: the nodes from the root to the current node
    let node = 0, depth = 0;
    for (let path = 0; path < more.length; path++) {
      if (more[path]) while (depth > shared[path]) end[ancestors[depth--]] = node + 1;
      for (let left = more[path]; left; left--) {
        parent[++node] = ancestors[depth++];
        ancestors[depth] = node;
      }
      ends[path] = ancestors[depth];
    }
  }

  // The function of a node; -1 for the root.
  frameOf(node) {
    if (node === 0) return -1;
    const { letters, width } = this.data.paths;
    let value = 0;
    for (let at = (node - 1) * width, stop = at + width; at < stop; at++) {
      value = value * BASE + letters.charCodeAt(at) - ZERO;
    }
    return value;
  }

  // Sum up one weight of one thread (-1: of all threads).
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
    const { parent, ends, thread: chosen } = this;
    const { thread, weights: { [weight]: weights } } = this.data.stacks;
    const scale = this.data.scales ? this.data.scales[weight] : 1; // of a difference: from samples to shares
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
    thread.forEach((number, path) => { sums[number] += weights[this.weight][path]; });
    return sums;
  }

  name(frame) { return frame < 0 ? "all" : this.data.frames.text[frame]; }
  module(frame) { return frame < 0 ? "" : this.data.modules[this.data.frames.module[frame]] || ""; }
  noise(frame) { return frame < 0 || this.data.frames.noise[frame]; }
  verdict(frame) { return frame < 0 || !this.data.diff ? "" : this.data.frames.change[frame]; }
  found(frame) { return frame < 0 ? "" : this.data.frames.found[frame]; }
  byName(a, b) { return this.name(a.frame) < this.name(b.frame) ? -1 : 1; }

  callees() { return new CalleeNode(this, 0, null); }
  callers() { return CallerNode.root(this); }

  // Return a function that says whether a function matches what was typed: a part of its name or module,
  // "its name", or /a regular expression/ of either.  Throws SyntaxError.
  matcher(typed) {
    const [, exact] = /^"(.*)"$/.exec(typed) || [], [, source, flags] = /^\/(.+)\/(i?)$/.exec(typed) || [];
    if (exact !== undefined) return (frame) => this.name(frame) === exact;
    const lowerCase = typed.toLowerCase(), regex = source === undefined ? null : new RegExp(source, flags);
    const has = regex ? (text) => regex.test(text) : (text) => text.toLowerCase().includes(lowerCase);
    return (frame) => has(this.name(frame)) || has(this.module(frame));
  }

  // Return which functions match, and the weight of all stacks that have one of them.
  search(matches) {
    const hits = this.data.frames.text.map((_, frame) => matches(frame));
    const inside = new Uint8Array(this.parent.length);
    let weight = 0;
    for (let n = 1; n < inside.length; n++) {
      inside[n] = inside[this.parent[n]] || hits[this.frameOf(n)] ? 1 : 0;
      if (inside[n]) weight += this.self[n];
    }
    return { hits, weight };
  }

  // Return the self and the total weight of each function; recursion counts once.
  functions() {
    const count = this.data.frames.text.length;
    const rows = Array.from({ length: count },
      (_, frame) => ({ frame, self: 0, total: 0, before: 0, after: 0 }));
    const countedUpTo = new Int32Array(count); // by function: the end of the last subtree that was counted
    for (let n = 1; n < this.parent.length; n++) {
      const frame = this.frameOf(n), row = rows[frame];
      row.self += this.self[n];
      if (this.base >= 0) { row.before += this.ownBase[n]; row.after += this.ownNew[n]; }
      if (n < countedUpTo[frame]) continue;
      row.total += this.total[n];
      countedUpTo[frame] = this.end[n];
    }
    return rows.filter((row) => row.total > 0 || row.before > 0);
  }

  // Add the weights of all nodes to `sums` by `nameOf(function)`; return [name, weight], the heaviest first.
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
class CalleeNode {
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
        if (total[kid] > 0) this.known.push(new CalleeNode(this.profile, kid, this));
      }
    }
    return this.known;
  }
}

// A node of the tree of callers: the children of a function are its callers.  `ends` has [node, self weight,
// change] for each stack that passes through here; `node` is the node of the tree of callees that it is at.
class CallerNode {
  constructor(profile, frame, up) {
    this.profile = profile;
    this.frame = frame;
    this.up = up;
    this.total = this.self = this.change = 0;
    this.ends = [];
  }

  static root(profile) {
    const root = new CallerNode(profile, -1, null);
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
        if (!byFrame.has(frame)) byFrame.set(frame, new CallerNode(this.profile, frame, this));
        byFrame.get(frame).add([parent[node], weight, change]);
      }
      this.known = [...byFrame.values()].filter((kid) => kid.total > 0);
      this.known.sort((a, b) => b.total - a.total || this.profile.byName(a, b));
    }
    return this.known;
  }
}

// Numbers as text: time, samples, or the shares of a difference.
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
function amount(value, data, weight) {
  if (data.unit) return `${value.toFixed(2)} ${data.unit}`;
  if (data.weights[weight].endsWith("_ns")) {
    const [size, unit] = UNITS.find(([ns]) => Math.abs(value) >= ns) || UNITS[3];
    return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value.toLocaleString("en")} sample${value === 1 ? "" : "s"}`;
}

function percent(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  return share > 0 && share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 10 ? 2 : 1)} %`;
}
