// Colours, and the legend that says what they mean.
//
// Law: one colour for each module, or for each way in which frames were found, or for each direction of a change.
// A module's hue comes from its name, so that it looks the same in every graph; where two would look alike, the
// lighter one takes another that is free.

const HUES = 16, STEP = 5, LISTED = 8;
const FOUND_HUES = { context: 210, sframe: 135, eh_frame: 45, debug_frame: 60, signal_frame: 280, start: 180, plt: 300,
  frame_pointer: 15, leaf: 25, epilogue: 35, null_call: 330, scan: 0 };

function fileName(path) { return path.slice(path.lastIndexOf("/") + 1); }

function hueOf(text) {
  let mix = 7;
  for (let at = 0; at < text.length; at++) mix = (mix * 31 + text.charCodeAt(at)) >>> 0;
  return (mix >>> 9) % HUES;
}

function moduleHues(names) {
  const hues = new Map(), taken = new Set();
  const near = (hue) => [hue - 1, hue, hue + 1].some((one) => taken.has((one + HUES) % HUES));
  for (const name of names) {
    let hue = hueOf(name);
    for (let tries = 0; tries < HUES && near(hue); tries++) hue = (hue + STEP) % HUES;
    taken.add(hue);
    hues.set(name, hue * (360 / HUES));
  }
  return hues;
}

class Colours {
  constructor(profile) {
    this.profile = profile;
    this.choose("module");
    const heaviestFirst = this.shares().map(([name]) => name).filter(Boolean);
    this.hues = { module: moduleHues(heaviestFirst), found: new Map(Object.entries(FOUND_HUES)) };
  }

  // how: "module", "found" or "change"; chosen anew when the theme changes.
  choose(how) {
    const style = getComputedStyle(document.documentElement);
    this.how = how;
    this.saturation = style.getPropertyValue("--saturation");
    this.lightness = style.getPropertyValue("--lightness");
    this.grey = `hsl(0, 0%, ${this.lightness})`;
    this.known = new Map();
    this.most = how === "change" ? Math.max(this.profile.totalNew[0], this.profile.totalBase[0]) || 1 : 0;
  }

  // What the colour of a function stands for.
  meaning(frame) {
    return this.how === "found" ? this.profile.found(frame) : fileName(this.profile.module(frame));
  }

  paint(meaning) {
    if (!meaning) return this.grey;
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
    return size < 0.02 || this.profile.noise(node.frame) ? this.grey : this.ofDirection(node.change, size);
  }

  ofDirection(change, size) {
    return `hsl(${change > 0 ? 8 : 215}, ${Math.round(85 * size)}%, ${this.lightness})`;
  }

  pathOf(module) { return this.profile.data.modules.find((path) => path && fileName(path) === module); }

  // What each meaning weighs: a module by its own code, a way by all the frames that were found so.
  shares() {
    const { self, total } = this.profile, meaning = (frame) => this.meaning(frame);
    if (this.how === "found") return this.profile.shares(meaning, total).filter(([way]) => way); // roots were not
    const sums = new Map(this.profile.data.modules.filter(Boolean).map((path) => [fileName(path), 0]));
    return this.profile.shares(meaning, self, sums);
  }

  // [colour, words, what to search for] of each line of the legend.
  legend() {
    if (this.how === "change") {
      return [[this.ofDirection(1, 1), "grew"], [this.ofDirection(-1, 1), "shrank"], [this.grey, "unchanged, or no more than noise"]];
    }
    const shares = this.shares(), whole = shares.reduce((sum, [, weight]) => sum + weight, 0);
    const lines = shares.slice(0, LISTED).map(([name, weight]) =>
      [this.paint(name), `${name || "no module"} ${percent(weight, whole)}`, this.how === "module" && this.pathOf(name)]);
    if (shares.length > LISTED) lines.push(["transparent", `and ${shares.length - LISTED} more`]);
    return lines;
  }
}

// Write the legend; pick(word) is called with the module that the user chooses.
function showLegend(element, lines, pick) {
  element.replaceChildren(...lines.map(([colour, text, word]) => {
    const line = document.createElement(word ? "button" : "span"), swatch = document.createElement("i");
    swatch.style.background = colour;
    line.append(swatch, text);
    if (word) line.addEventListener("click", () => pick(word));
    return line;
  }));
}
