// Chooses the colours, and writes the legend that explains them.
//
// A colour stands for a module, a function, an owner of Python or Go code, a cause of a wait, a stepper that found
// frames, or a direction of a change.  A module's hue comes from its name, so it is the same in every graph.  If
// two hues would look alike, the module with less weight gets a free hue.

const HUES = 16; // number of hues
const HUE_STEP = 5; // distance from a hue that is taken to the next hue to try
const PALE = 0.3; // saturation of a change that may be noise
const MAX_LEGEND_LINES = 8;
const FOUND_HUES = { context: 210, sframe: 135, eh_frame: 45, debug_frame: 60, signal_frame: 280, start: 180,
  plt: 300, python: 225, frame_pointer: 15, leaf: 25, epilogue: 35, null_call: 330, scan: 0 };

const WAIT_HUES = { lock: 0, gil: 330, condition: 30, network: 210, pipe: 180, disk: 280, sleep: 135, child: 60,
  signal: 90, cpu: 45, event: 240, other: 300 }; // by class of the wait: a WaitClass, or "idle", which is grey
const OWNER_HUES = { mine: 25, packages: 210, "standard library": 135, "Go runtime": 60, "native code": 280 };
const PACKAGES = /\/(site|dist)-packages\//, LIBRARY = /^<frozen |\/lib(64)?\/python3(\.\d+t?|\d+\.zip)\//;

// The name of a Go function says who owns it.  GO_RUNTIME: the runtime, and code that the compiler makes.
// GO_PACKAGES: the first part of the path has a dot.  GO_LIBRARY: a package of the standard library.
const GO_RUNTIME = /^(runtime|internal\/(runtime|abi|bytealg|cpu)|type:|go:|crosscall2|cgocallback|gosave_|_rt0_)/;
const GO_PACKAGES = /^[^/]+\.[^/]*\//;
const GO_LIBRARY = /^(archive|bufio|bytes|cmp|compress|container|context|crypto|database|debug|embed|encoding|errors|expvar|flag|fmt|go|hash|html|image|index|internal|io|iter|log|maps|math|mime|net|os|path|plugin|reflect|regexp|slices|sort|strconv|strings|structs|sync|syscall|testing|text|time|unicode|unique|vendor|weak)[./]/;

// Return the things that colours can stand for; a new page shows the first.
function coloursOf(profile) {
  const { diff, modules, frames } = profile.data, hasModules = modules.some(Boolean);
  return [["change", diff], ["owner", frames.text.some((_, frame) => profile.pythonFile(frame) || profile.goFunction(frame))],
    ["module", hasModules], ["function", !hasModules], ["wait", frames.wait.length],
    ["found", frames.found.some(Boolean)],
  ].filter(([, fits]) => fits).map(([how]) => how);
}

function hueOf(text) {
  let mix = 7;
  for (let at = 0; at < text.length; at++) mix = (mix * 31 + text.charCodeAt(at)) >>> 0;
  return (mix >>> 9) % HUES;
}

function moduleHues(names) {
  const hues = new Map(), taken = new Set();
  const nearTaken = (hue) => [hue - 1, hue, hue + 1].some((near) => taken.has((near + HUES) % HUES));
  for (const name of names) {
    let hue = hueOf(name);
    for (let tries = 0; tries < HUES && nearTaken(hue); tries++) hue = (hue + HUE_STEP) % HUES;
    taken.add(hue);
    hues.set(name, hue * (360 / HUES));
  }
  return hues;
}

class Colours {
  constructor(profile) {
    this.profile = profile;
    const { text } = profile.data.frames;
    this.paths = new Map(text.map((_, frame) => [profile.file(frame), profile.module(frame)]));
    this.paths.delete("");
    this.choose("module");
    const heaviestFirst = this.shares().map(([name]) => name).filter(Boolean);
    this.hues = { module: moduleHues(heaviestFirst), function: new Map(),
      owner: new Map(Object.entries(OWNER_HUES)), wait: new Map(Object.entries(WAIT_HUES)), found: new Map(Object.entries(FOUND_HUES)) };
  }

  // `how`: one of `coloursOf`.  Called again when the theme changes.
  choose(how) {
    const style = getComputedStyle(document.documentElement);
    this.how = how;
    this.saturation = style.getPropertyValue("--saturation");
    this.lightness = style.getPropertyValue("--lightness");
    this.grey = `hsl(0, 0%, ${this.lightness})`;
    this.known = new Map();
    this.most = how === "change" ? Math.max(this.profile.totalNew[0], this.profile.totalBase[0]) || 1 : 0;
  }

  // Return the thing that a function's colour stands for: its module, its owner, ...
  meaning(frame) {
    if (this.how === "found") return this.profile.found(frame);
    if (this.how === "wait") return this.profile.found(frame) === "idle" ? "idle" : this.profile.data.frames.wait[frame];
    if (this.how === "function") return frame < 0 ? "" : this.profile.name(frame);
    return this.how === "owner" ? this.owner(frame) : this.profile.file(frame);
  }

  owner(frame) {
    const path = this.profile.module(frame), name = this.profile.goFunction(frame);
    if (name) return GO_RUNTIME.test(name) ? "Go runtime" : GO_PACKAGES.test(name) ? "packages" : GO_LIBRARY.test(name) ? "standard library" : "mine";
    if (!this.profile.pythonFile(frame)) return path && "native code";
    return PACKAGES.test(path) ? "packages" : LIBRARY.test(path) ? "standard library" : "mine";
  }

  paint(meaning) {
    if (!meaning || meaning === "idle") return this.grey;
    const hues = this.hues[this.how];
    const hue = hues.has(meaning) ? hues.get(meaning) : hueOf(meaning) * (360 / HUES);
    return `hsl(${hue}, ${this.saturation}, ${this.lightness})`;
  }

  of(node) {
    if (this.how === "change") return this.ofChange(node);
    if (!this.known.has(node.frame)) this.known.set(node.frame, this.paint(this.meaning(node.frame)));
    return this.known.get(node.frame);
  }

  ofChange(node) {
    const size = Math.min(1, Math.sqrt(Math.abs(node.change) / this.most) * 2);
    if (size < 0.02) return this.grey;
    return this.ofDirection(node.change, this.profile.noise(node.frame) ? size * PALE : size);
  }

  ofDirection(change, size) {
    return `hsl(${change > 0 ? 8 : 215}, ${Math.round(85 * size)}%, ${this.lightness})`;
  }

  // Return [meaning, weight] pairs.  A module, function or owner has its self weight; 0: it only calls others.  A
  // stepper has the total weight of the frames that it found; the root of a stack is no frame.
  shares() {
    const { self, total } = this.profile, meaning = (frame) => this.meaning(frame);
    if (this.how === "found") return this.profile.shares(meaning, total).filter(([way]) => way);
    if (this.how === "wait") return this.waitShares();
    const owners = () => this.profile.data.frames.text.map((_, frame) => this.owner(frame)).filter(Boolean);
    const names = this.how === "module" ? [...this.paths.keys()] : this.how === "owner" ? owners() : [];
    return this.profile.shares(meaning, self, new Map(names.map((name) => [name, 0])));
  }

  // Return the weight of each cause of a wait, and of "": no wait.  A wait inside a wait is the holder's.
  waitShares() {
    const { parent, frames, total } = this.profile, sums = new Map([["", total[0]]]), inside = [false];
    for (let n = 1; n < parent.length; n++) {
      const cause = this.meaning(frames[n]), isOutermost = cause && !inside[parent[n]];
      inside[n] = inside[parent[n]] || Boolean(cause);
      if (isOutermost) sums.set(cause, (sums.get(cause) || 0) + total[n]).set("", sums.get("") - total[n]);
    }
    return [...sums].filter(([, weight]) => weight).sort((a, b) => b[1] - a[1]);
  }

  // Return [colour, text, word to search for] for each line of the legend.
  legend() {
    if (this.how === "change") {
      return [[this.ofDirection(1, 1), "grew"], [this.ofDirection(-1, 1), "shrank"],
        [this.ofDirection(1, PALE), "pale: noise"], [this.grey, "unchanged"]];
    }
    const shares = this.shares(), whole = shares.reduce((sum, [, weight]) => sum + weight, 0);
    const words = { module: (name) => this.paths.get(name), function: (name) => name && `"${name}"` };
    const lines = shares.slice(0, MAX_LEGEND_LINES).map(([name, weight]) =>
      [this.paint(name), `${name || (this.how === "wait" ? "no wait" : "no module")} ${percent(weight, whole)}`, words[this.how]?.(name)]);
    const left = shares.length - MAX_LEGEND_LINES;
    if (left > 0) lines.push(["transparent", `and ${left} more`]);
    return lines;
  }
}

// Write the legend; `pick(word)` is called with the module or function that the user chooses.
function showLegend(element, lines, pick) {
  element.replaceChildren(...lines.map(([colour, text, word]) => {
    const line = document.createElement(word ? "button" : "span"), swatch = document.createElement("i");
    swatch.style.background = colour;
    line.append(swatch, text);
    if (word) line.addEventListener("click", () => pick(word));
    return line;
  }));
}
