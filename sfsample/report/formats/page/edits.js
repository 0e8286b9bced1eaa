// Applies the user's edits: decides which stacks are left out, and which nodes are not shown.
//
// The tree of the profile does not change.  If a node is not shown, its time and its children (trees.js) belong
// to the nearest shown node above it.

const NO_EDITS = { focus: [], drop: [], merge: [], hide: [], recursion: false };
const EDITS = ["focus", "drop", "merge", "hide"]; // the lists of functions
const MARK = /^\[truncated: \w+\]$/; // the label after the root of a truncated stack

// Return `shown` (for each node: the node itself, or the node that gets its time) and `left` (1: stacks that
// end at the node are left out).
//
// focus: only stacks with the function, cut at its outermost call.  A second function cuts the remaining
//        stacks again.  The root (process or thread) stays, as in `convert --focus`.
// drop:  only stacks without the function.
// merge: the time of its callees becomes the function's own time.
// hide:  the function is not shown; its time becomes its caller's time.
// recursion: a function that calls itself directly is one box.
function applyEdits(profile, edits) {
  const { parent, frames, data } = profile, count = parent.length;
  const { focus, drop, merge, hide, recursion } = edits;
  const shown = new Int32Array(count), left = new Uint8Array(count);
  if (!isEdited(edits)) return { shown: shown.map((_, node) => node), left };
  const isIn = (chosen) => {
    const set = new Uint8Array(data.frames.text.length);
    for (const frame of chosen) set[frame] = 1;
    return set;
  };
  const dropped = isIn(drop), merged = isIn(merge), hidden = isIn(hide);
  const dead = new Uint8Array(count), inside = new Uint8Array(count);
  const level = new Uint16Array(count); // number of functions of `focus` above the node
  left[0] = focus.length ? 1 : 0;
  for (let n = 1; n < count; n++) {
    const above = parent[n], frame = frames[n], holder = shown[above];
    dead[n] = dead[above] || dropped[frame];
    inside[n] = inside[above] || (above && level[above] >= focus.length && merged[frames[above]]);
    level[n] = level[above];
    if (level[n] < focus.length && frame === focus[level[n]]) level[n]++;
    const outside = level[n] < focus.length;
    left[n] = dead[n] || outside ? 1 : 0;
    const skipped = (outside && !isRoot(profile, n)) || inside[n] || hidden[frame]
      || (recursion && holder && frames[holder] === frame);
    shown[n] = skipped ? holder : n;
  }
  return { shown, left };
}

// Return true if a node is the process or thread of a stack, or the mark of a truncated stack.
function isRoot({ parent, frames, data }, node) {
  if (parent[node] === 0) return true;
  const { text, module } = data.frames, frame = frames[node];
  return parent[parent[node]] === 0 && !data.modules[module[frame]] && MARK.test(text[frame]);
}

// Return the edits with a function added to, or taken from, one of the lists.
function withEdit(edits, list, frame) {
  const old = edits[list];
  return { [list]: old.includes(frame) ? old.filter((other) => other !== frame) : [...old, frame] };
}

// Return true if there is any edit.
function isEdited(edits) { return edits.recursion || EDITS.some((list) => edits[list].length > 0); }
