// Trees of functions, made of the profile's nodes: callees below callers, and callers below callees.
//
// Objects are made when they are first used, so that a profile of any size shows at once.

// A function and its callees.  `nodes`: the nodes of the profile in this box.  There are several if a
// function above them is not shown.
class CalleeNode {
  constructor(profile, frame, up) {
    this.profile = profile;
    this.frame = frame;
    this.up = up;
    this.nodes = [];
    this.total = this.self = this.change = 0;
  }

  static root(profile) {
    const root = new CalleeNode(profile, -1, null);
    root.add(0);
    return root;
  }

  // The tree of a function and its callees; the function may have several callers.
  static of(profile, frame) {
    const root = new CalleeNode(profile, frame, null);
    profile.outermost(frame).forEach((node) => root.add(node));
    return root;
  }

  add(node) {
    this.nodes.push(node);
    this.total += this.profile.total[node];
    this.self += this.profile.self[node];
    this.change += this.profile.change(node);
  }

  children() {
    if (!this.known) {
      const { profile } = this, { end, frames, total } = profile, byFrame = new Map();
      for (const node of this.nodes) {
        for (let kid = node + 1; kid < end[node];) {
          if (profile.isShown(kid)) {
            if (total[kid] > 0) childOf(this, byFrame, frames[kid], CalleeNode).add(kid);
            kid = end[kid];
          } else kid++;
        }
      }
      this.known = [...byFrame.values()].sort((a, b) => a.frame - b.frame); // functions are sorted by name
    }
    return this.known;
  }
}

// A function and its callers, which are its children.  `ends` has [node, weight, change] for each stack that
// passes through here; `node`: the profile's node of the next caller, 0 if there is none.
class CallerNode {
  constructor(profile, frame, up) {
    this.profile = profile;
    this.frame = frame;
    this.up = up;
    this.total = this.self = this.change = 0;
    this.ends = [];
  }

  // The root of all functions that have self time.
  static root(profile) {
    const root = new CallerNode(profile, -1, null);
    for (let n = 1; n < profile.parent.length; n++) {
      const change = profile.base < 0 ? 0 : profile.ownNew[n] - profile.ownBase[n];
      if (profile.self[n] > 0 || change) root.add([n, profile.self[n], change]);
    }
    return root;
  }

  // The root of one function; its weight includes its callees.
  static of(profile, frame) {
    const root = new CallerNode(profile, frame, null);
    for (const n of profile.outermost(frame)) {
      root.add([profile.caller(n), profile.total[n], profile.change(n)]);
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
      const { profile } = this, byFrame = new Map();
      for (const [node, weight, change] of this.ends) {
        if (node === 0) continue;
        childOf(this, byFrame, profile.frames[node], CallerNode).add([profile.caller(node), weight, change]);
      }
      this.known = [...byFrame.values()].filter((kid) => kid.total > 0);
      this.known.sort((a, b) => b.total - a.total || profile.byName(a, b));
    }
    return this.known;
  }
}

function childOf(node, byFrame, frame, Kind) {
  if (!byFrame.has(frame)) byFrame.set(frame, new Kind(node.profile, frame, node));
  return byFrame.get(frame);
}

function rootOf(node) {
  while (node.up) node = node.up;
  return node;
}
