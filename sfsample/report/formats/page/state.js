// The state of the page, as an object and as the part of the URL after `#`.
//
// In the URL, a function is a word of five letters, made from its name and module.  A box is the words of its
// path: the functions above it, then its own.  So a link is short, and works on another page of the same
// program if that page has the functions.  Wrong or unknown parts of the URL are ignored.

const WORD = 5; // letters for a function
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const VIEWS = ["flame", "callers", "sandwich"];
const ORDERS = ["self", "total", "change", "name"];
const UPWARD = "."; // begins the path of a box among the callers of the sandwich

// view: one of VIEWS.  of: the function of the sandwich.  zoom: the path of the box that is as wide as the page.
// at: the path of the selected box.  from, to: the selected time, in seconds since the epoch.  row: the function that is chosen in the table, or -1.
function startState(profile) {
  const { data } = profile;
  return { view: "flame", of: -1, zoom: "", at: "", row: -1, search: "", thread: -1, weight: data.widest || 0,
    from: -1, to: -1,
    colour: coloursOf(profile)[0], table: false, order: data.diff ? "change" : "self",
    flipped: false, ...NO_EDITS };
}

// Turns functions into words, and words into functions.
class Words {
  constructor(profile) {
    this.profile = profile;
    this.known = new Map();
  }

  of(frame) {
    if (frame < 0) return "";
    if (!this.known.has(frame)) {
      this.known.set(frame, wordOf(`${this.profile.name(frame)}\n${this.profile.module(frame)}`));
    }
    return this.known.get(frame);
  }

  // Return the functions of words; words without a function are skipped.
  frames(words) {
    if (!words) return [];
    this.numbers ||= new Map(this.profile.data.frames.text.map((_, frame) => [this.of(frame), frame]));
    const found = splitWords(words).map((word) => this.numbers.get(word));
    return [...new Set(found)].filter((frame) => frame !== undefined);
  }

  pathOf(node) {
    const words = [];
    for (; node.up; node = node.up) words.unshift(this.of(node.frame));
    return words.join("");
  }

  // Return the node of a path; words without a node are skipped.
  nodeAt(root, path) {
    return splitWords(path).reduce(
      (node, word) => node.children().find((kid) => this.of(kid.frame) === word) || node, root);
  }
}

function splitWords(words) { return words.match(/[\w-]{5}/g) || []; }

// Return 30 bits of the FNV-1a hash, as letters.
function wordOf(text) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  hash ^= hash >>> 15; // the last letters of a name change all bits
  let word = "";
  for (let digit = 0; digit < WORD; digit++) word += LETTERS[(hash >>> (6 * digit)) & 63];
  return word;
}

function stateToHash(state, start, words) {
  const fields = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value === start[key]) continue;
    if (Array.isArray(value)) {
      if (value.length) fields.set(key, value.map((frame) => words.of(frame)).join(""));
    } else if (key === "of" || key === "row") fields.set(key, words.of(value));
    else fields.set(key, value === true ? "1" : value);
  }
  return String(fields);
}

function hashToState(hash, start, words, data) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const text = (key) => fields.get(key) || "";
  const oneOf = (key, known) => (known.includes(text(key)) ? text(key) : start[key]);
  const isNumber = (key, count) => /^\d{1,12}$/.test(text(key)) && Number(text(key)) < count;
  const below = (key, count) => (isNumber(key, count) ? Number(text(key)) : start[key]);
  const [of = -1] = words.frames(text("of")), [row = -1] = words.frames(text("row"));
  const state = { ...start, of, row, view: oneOf("view", VIEWS), zoom: text("zoom"), at: text("at"),
    search: text("search"), thread: below("thread", data.threads.length),
    weight: below("weight", data.weights.length), from: below("from", Infinity), to: below("to", Infinity),
    colour: oneOf("colour", coloursOf(words.profile)), order: oneOf("order", ORDERS) };
  for (const list of EDITS) state[list] = words.frames(text(list));
  for (const flag of ["table", "flipped", "recursion"]) state[flag] = text(flag) === "1";
  if (state.view === "sandwich" && of < 0) state.view = "flame";
  if (!data.slices || !slicesIn(data.slices, state).length) state.from = -1;
  if (state.from < 0) state.to = -1;
  return state;
}

// Keeps the state and the URL the same, so that Back undoes a step.
class Steps {
  // `show()` is called whenever the state has changed.
  constructor(profile, show) {
    this.start = startState(profile);
    this.words = new Words(profile);
    this.data = profile.data;
    this.show = show;
    this.read();
    addEventListener("hashchange", () => { this.read(); this.kind = ""; this.show(); });
  }

  read() { this.state = hashToState(location.hash, this.start, this.words, this.data); }

  // Change the state.  Successive steps of the same `kind`, such as typing, are one step for Back.
  go(changes, kind = "") {
    const replaces = kind && kind === this.kind;
    this.kind = kind;
    Object.assign(this.state, changes);
    const hash = stateToHash(this.state, this.start, this.words);
    const [page, old] = location.href.split("#");
    if (hash !== (old || "")) this.write(hash ? `${page}#${hash}` : page, replaces);
    this.show();
  }

  // Browsers refuse this in some frames, and if it happens too often; then the URL does not change.
  write(url, replaces) {
    try {
      history[replaces ? "replaceState" : "pushState"](null, "", url);
    } catch (error) {
      console.debug(error);
    }
  }
}
