// Holds the profile: its tree, sums and shares.  This code does not use the page.
//
// The data is the object that report/formats/html.py writes: columns by path and by function.  Paths are
// sorted, so a node's first child is the next node, and its subtree ends where its next sibling begins.

class ProfileData {
  constructor(data) {
    this.data = data;
    this.base = data.diff ? 1 : -1; // column of the weight "before" in a difference; -1: no difference
    this.unpack(data.paths);
    this.choose({ thread: -1, weight: data.widest || 0, from: -1, to: -1, ...NO_EDITS });
    this.all = this.data.weights.map((_, weight) => this.sum(weight));
  }

  // Fill for each node `parent`, `end` (the node after its subtree) and `frames` (its function); node 0 is the
  // root.  Fill `ends`, the last node of each path.
  unpack({ shared, more, letters }) {
    const count = more.reduce((sum, n) => sum + n, 1), read = numberReader(letters);
    const parent = this.parent = new Int32Array(count), end = this.end = new Int32Array(count).fill(count);
    const ends = this.ends = new Int32Array(more.length), frames = this.frames = new Int32Array(count);
    const ancestors = new Int32Array(count); // by depth: the nodes from the root to the current node
    let node = 0, depth = 0;
    frames[0] = -1;
    for (let path = 0; path < more.length; path++) {
      if (more[path]) while (depth > shared[path]) end[ancestors[depth--]] = node + 1;
      for (let left = more[path]; left; left--) {
        parent[++node] = ancestors[depth++];
        frames[node] = read();
        ancestors[depth] = node;
      }
      ends[path] = ancestors[depth];
    }
  }

  // Sum up one weight of one thread (-1: of all threads) in the selected time (timeline.js), after the user's
  // edits (edits.js).
  choose(choice) {
    this.thread = choice.thread;
    this.columns = columnsOf(this.data, choice);
    this.weight = choice.weight;
    Object.assign(this, applyEdits(this, choice));
    [this.self, this.total] = this.sums(this.weight);
    if (this.base >= 0) {
      [this.ownBase, this.totalBase] = this.sums(this.base);
      [this.ownNew, this.totalNew] = this.sums(0);
    }
  }

  scale(weight) { return this.data.scales ? this.data.scales[weight] : 1; } // from samples to shares

  sum(weight) { return this.data.stacks.weights[weight].reduce((sum, n) => sum + n, 0) * this.scale(weight); }

  // Return the self and the total weight of each node; both are 0 if the node is not shown.
  sums(weight) {
    const { parent, ends, thread: chosen, shown, left } = this;
    const { thread } = this.data.stacks, weights = this.columns[weight];
    const scale = this.scale(weight);
    const self = new Float64Array(parent.length);
    for (let path = 0; path < ends.length; path++) {
      const node = ends[path];
      if ((chosen < 0 || thread[path] === chosen) && !left[node]) self[shown[node]] += weights[path] * scale;
    }
    const total = self.slice();
    for (let n = total.length - 1; n > 0; n--) if (total[n]) total[shown[parent[n]]] += total[n];
    return [self, total];
  }

  threadTotals() {
    const { thread, weights } = this.data.stacks;
    const sums = this.data.threads.map(() => 0);
    thread.forEach((number, path) => { sums[number] += weights[0][path]; });
    return sums;
  }

  name(frame) { return frame < 0 ? "all" : this.data.frames.text[frame]; }
  module(frame) { return frame < 0 ? "" : this.data.modules[this.data.frames.module[frame]] || ""; }

  // Return the short name of a module; for a Python function, its file relative to the entry of sys.path.
  file(frame) { return this.pythonFile(frame) || fileName(this.module(frame)); }

  pythonFile(frame) {
    const [, path] = / \(([^()]+):\w+\)(?:_\[p\])?$/.exec(this.name(frame)) || [];
    return path && this.module(frame).endsWith(path) ? path : "";
  }

  // Return the name of a Go function, "" of another one.  C functions of a program in Go have no dot.
  goFunction(frame) {
    const { module, found, text } = this.data.frames;
    this.goModules ||= new Set(module.filter((_, at) => found[at] === "gopclntab"));
    return frame >= 0 && this.goModules.has(module[frame]) && text[frame].includes(".") ? text[frame] : "";
  }

  noise(frame) { return frame < 0 || this.data.frames.noise[frame]; }
  verdict(frame) { return frame < 0 || !this.data.diff ? "" : this.data.frames.change[frame]; }
  found(frame) { return frame < 0 ? "" : this.data.frames.found[frame]; }
  byName(a, b) { return this.name(a.frame) < this.name(b.frame) ? -1 : 1; }
  isShown(node) { return this.shown[node] === node; }
  caller(node) { return this.shown[this.parent[node]]; }
  change(node) { return this.base < 0 ? 0 : this.totalNew[node] - this.totalBase[node]; }

  // Return the outermost shown nodes of a function; recursion counts once.
  outermost(frame) {
    const { frames, end, total } = this, nodes = [];
    for (let n = 1; n < frames.length;) {
      if (frames[n] === frame && this.isShown(n)) {
        if (total[n] > 0) nodes.push(n);
        n = end[n];
      } else n++;
    }
    return nodes;
  }

  // Return a test of functions for the typed text: a part of a name or module, "a whole name", or
  // /a regular expression/ for names and modules.  Throws SyntaxError.
  matcher(typed) {
    const [, exact] = /^"(.*)"$/.exec(typed) || [], [, source, flags] = /^\/(.+)\/(i?)$/.exec(typed) || [];
    if (exact !== undefined) return (frame) => this.name(frame) === exact;
    const lowerCase = typed.toLowerCase(), regex = source === undefined ? null : new RegExp(source, flags);
    const has = regex ? (text) => regex.test(text) : (text) => text.toLowerCase().includes(lowerCase);
    return (frame) => has(this.name(frame)) || has(this.module(frame));
  }

  // Return `hits` (true for each function that matches), and the weight of all stacks that have a hit.
  search(matches) {
    const hits = this.data.frames.text.map((_, frame) => matches(frame));
    const inside = new Uint8Array(this.parent.length);
    let weight = 0;
    for (let n = 1; n < inside.length; n++) {
      inside[n] = inside[this.parent[n]] || (hits[this.frames[n]] && this.isShown(n)) ? 1 : 0;
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
      if (!this.isShown(n)) continue;
      const frame = this.frames[n], row = rows[frame];
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
      const name = nameOf(this.frames[n]);
      sums.set(name, (sums.get(name) || 0) + weights[n]);
    }
    return [...sums].sort((a, b) => b[1] - a[1]);
  }
}
