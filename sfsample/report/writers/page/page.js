// The page: what is chosen, and what the user does.
//
// Law: `state` is everything that can change; whatever happens changes it and calls `render`.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("profile").textContent);
const profile = new Profile(data);
const colours = new Colours(profile);
const flame = new Flame(byId("canvas"), byId("graph"), byId("space"));
const table = new FunctionTable(byId("table"), byId("more"), (frame) => searchFor(profile.name(frame)));
const state = { root: null, zoom: null, selected: null, inverted: false, flipped: false, table: false,
  word: "", matches: null };

function plant() {
  state.root = state.inverted ? profile.callers() : profile.callees();
  state.zoom = state.selected = state.root;
}

// Colours depend on what is summed up, on the theme, and on what they are to mean.
function paint(how) {
  colours.choose(how);
  showLegend(byId("legend"), colours.legend(), searchFor);
}

function render() {
  const hits = state.matches && state.matches.hits;
  byId("graph").hidden = state.table && innerWidth <= 700;
  byId("table").hidden = !state.table;
  flame.show({ root: state.root, zoom: state.zoom, flipped: state.flipped, hits, selected: state.selected,
    colour: (node) => colours.of(node) });
  if (state.table) table.show(profile, hits);
  byId("matched").textContent = state.matches ? `${percent(state.matches.weight, profile.total[0])} matched` : "";
  for (const [id, on] of [["invert", state.inverted], ["flip", state.flipped], ["functions", state.table]]) {
    byId(id).setAttribute("aria-pressed", String(on));
  }
  tell(state.selected);
}

// -- words

function facts(node) {
  const show = (value) => amount(value, data, profile.weight);
  const parts = [`${show(node.total)}, ${percent(node.total, profile.total[0])} of all`];
  if (state.zoom !== state.root) parts.push(`${percent(node.total, state.zoom.total)} of what is shown`);
  if (node.self > 0 && !state.inverted) parts.push(`self ${percent(node.self, profile.total[0])}`);
  if (profile.base >= 0) parts.push(`change ${node.change > 0 ? "+" : ""}${show(node.change)}`);
  return parts.join("; ");
}

function where(node) {
  const found = profile.found(node.frame);
  return [profile.module(node.frame), found && `found by ${found}`, profile.verdict(node.frame)].filter(Boolean).join(", ");
}

function tell(node) {
  byId("status").textContent = [profile.name(node.frame), facts(node), where(node)].filter(Boolean).join("  ·  ");
}

function hover(event) {
  const box = flame.at(event.clientX, event.clientY), tip = byId("tip");
  tip.hidden = !box || event.pointerType === "touch";
  if (!box) return;
  const lines = [profile.name(box.node.frame), facts(box.node), where(box.node)];
  tip.replaceChildren(...lines.filter(Boolean).map((text, at) => {
    const line = document.createElement(at ? "div" : "b");
    line.textContent = text;
    return line;
  }));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

// -- what the user does

function zoomTo(node) {
  state.zoom = state.selected = node;
  byId("tip").hidden = true;
  render();
  flame.reveal(node);
}

function searchFor(word) {
  state.word = byId("search").value = word;
  state.matches = word.trim() ? profile.search(word.trim()) : null;
  render();
}

function reset() {
  state.zoom = state.selected = state.root;
  searchFor("");
}

function choose() {
  profile.choose(Number(byId("thread").value), Number(byId("weight").value));
  plant();
  paint(colours.how);
  searchFor(state.word);
}

function toggle(what) {
  state[what] = !state[what];
  if (what === "inverted") plant();
  render();
}

function neighbour(node, step) {
  const siblings = node.up ? node.up.children().filter((one) => flame.boxOf(one)) : [node];
  return siblings[siblings.indexOf(node) + step] || node;
}

function largest(node) {
  return node.children().filter((kid) => flame.boxOf(kid)).reduce((a, b) => (b.total > a.total ? b : a), node.children()[0]) || node;
}

function walk(key) {
  const node = state.selected;
  const up = state.flipped ? "ArrowDown" : "ArrowUp";
  const steps = { ArrowLeft: () => neighbour(node, -1), ArrowRight: () => neighbour(node, 1),
    [up]: () => node.up || node, [up === "ArrowUp" ? "ArrowDown" : "ArrowUp"]: () => largest(node) };
  if (!(key in steps)) return false;
  const next = steps[key]();
  state.selected = flame.boxOf(next) ? next : node;
  render();
  flame.reveal(state.selected);
  return true;
}

const KEYS = {
  i: () => toggle("inverted"), f: () => toggle("flipped"), t: () => toggle("table"), d: () => flipTheme(),
  "?": () => showKeys(), "/": () => byId("search").focus(), Escape: () => reset(), Enter: () => zoomTo(state.selected),
};

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") { reset(); byId("canvas").focus(); }
    return;
  }
  if (event.key === "Enter" && event.target.matches("button, tr")) return;
  if (event.key in KEYS) KEYS[event.key]();
  else if (!walk(event.key)) return;
  event.preventDefault();
}

function flipTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  paint(colours.how);
  render();
}

function showKeys() {
  byId("keys").hidden = !byId("keys").hidden;
  byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
  render();
}

// -- the start

const WEIGHT_NAMES = { samples: "samples", wall_ns: "elapsed time", cpu_ns: "CPU time" };

function fillSelect(id, options) {
  byId(id).replaceChildren(...options.map(([text, value]) => new Option(text, value)));
}

function begin() {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.title = `${data.title} - sfsample`;
  byId("title").textContent = data.title;
  byId("about").textContent = data.about;
  byId("losses").textContent = data.losses.join("; ");
  byId("losses").hidden = !data.losses.length;
  const threads = profile.threadTotals().map((sum, at) => [sum, data.threads[at], at]).sort((a, b) => b[0] - a[0]);
  fillSelect("thread", [["all threads", -1], ...threads.map(([sum, name, at]) => [`${name}  ${percent(sum, profile.total[0])}`, at])]);
  fillSelect("weight", data.weights.map((name, at) => [WEIGHT_NAMES[name] || name, at]));
  fillSelect("colour", [...(data.diff ? [["change", "change"]] : []), ["module", "module"], ["how it was found", "found"]]);
  byId("weights").hidden = data.weights.length < 2;
  byId("thread").addEventListener("change", choose);
  byId("weight").addEventListener("change", choose);
  byId("colour").addEventListener("change", (event) => { paint(event.target.value); render(); });
  byId("search").addEventListener("input", (event) => searchFor(event.target.value));
  const clicks = { invert: () => toggle("inverted"), flip: () => toggle("flipped"), functions: () => toggle("table"),
    reset, theme: flipTheme, help: showKeys };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  const canvas = byId("canvas");
  canvas.addEventListener("click", (event) => {
    const box = flame.at(event.clientX, event.clientY);
    if (box) zoomTo(box.node);
  });
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  document.addEventListener("keydown", typed);
  addEventListener("resize", render);
  plant();
  paint(data.diff ? "change" : "module");
  render();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin();
