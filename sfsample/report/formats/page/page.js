// The state of the page, and the user's actions.
//
// `state` holds all that can change; each action changes it and calls `render`.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("profile").textContent);
const profile = new ProfileData(data);
const colours = new Colours(profile);
const flame = new Flame(byId("canvas"), byId("graph"), byId("space"));
const table = new FunctionTable(byId("table"), byId("more"), (frame) => selectFunction(frame));
const state = { root: null, zoom: null, selected: null, inverted: false, flipped: false, table: false,
  word: "", matches: null, mistake: "" };

function resetTree() {
  state.root = state.inverted ? profile.callers() : profile.callees();
  state.zoom = state.selected = state.root;
}

// Colours depend on the thread, the weight, the theme, and on what they stand for.
function chooseColours(how) {
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
  const matched = state.matches && percent(state.matches.weight, profile.total[0]);
  byId("matched").textContent = state.mistake || (matched ? `${matched} matched` : "");
  byId("search").setAttribute("aria-invalid", String(Boolean(state.mistake)));
  for (const [id, on] of [["invert", state.inverted], ["flip", state.flipped], ["functions", state.table]]) {
    byId(id).setAttribute("aria-pressed", String(on));
  }
  showStatus(state.selected);
}

// -- texts

function weightText(node) {
  const show = (value) => amount(value, data, profile.weight);
  const parts = [`${show(node.total)}, ${percent(node.total, profile.total[0])} of all`];
  if (state.zoom !== state.root) parts.push(`${percent(node.total, state.zoom.total)} of what is shown`);
  if (node.self > 0 && !state.inverted) parts.push(`self ${percent(node.self, profile.total[0])}`);
  if (profile.base >= 0) parts.push(`change ${node.change > 0 ? "+" : ""}${show(node.change)}`);
  return parts.join("; ");
}

function originText(node) {
  const found = profile.found(node.frame);
  const parts = [profile.module(node.frame), found && `found by ${found}`, profile.verdict(node.frame)];
  return parts.filter(Boolean).join(", ");
}

function showStatus(node) {
  const parts = [profile.name(node.frame), weightText(node), originText(node)];
  byId("status").textContent = parts.filter(Boolean).join("  ·  ");
}

function showTip(event) {
  const box = flame.at(event.clientX, event.clientY), tip = byId("tip");
  tip.hidden = !box || event.pointerType === "touch";
  if (!box) return;
  const lines = [profile.name(box.node.frame), weightText(box.node), originText(box.node)];
  tip.replaceChildren(...lines.filter(Boolean).map((text, at) => {
    const line = document.createElement(at ? "div" : "b");
    line.textContent = text;
    return line;
  }));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + height > innerHeight ? event.clientY - height - 10 : below}px`;
}

// -- actions

function zoomTo(node) {
  state.zoom = state.selected = node;
  byId("tip").hidden = true;
  render();
  flame.reveal(node);
}

function searchFor(word) {
  state.word = byId("search").value = word;
  state.matches = null;
  state.mistake = "";
  try {
    if (word.trim()) state.matches = profile.search(profile.matcher(word.trim()));
  } catch (error) {
    state.mistake = `not a regular expression: ${error.message}`;
  }
  render();
}

// Select one function, not others of the same name in other modules.
function selectFunction(chosen) {
  state.word = byId("search").value = `"${profile.name(chosen)}"`;
  state.matches = profile.search((frame) => frame === chosen);
  state.mistake = "";
  render();
}

function reset() {
  state.zoom = state.selected = state.root;
  searchFor("");
}

function applySelection() {
  profile.choose(Number(byId("thread").value), Number(byId("weight").value));
  resetTree();
  chooseColours(colours.how);
  searchFor(state.word);
}

function toggle(flag) {
  state[flag] = !state[flag];
  if (flag === "inverted") resetTree();
  render();
}

function neighbour(node, step) {
  const siblings = node.up ? node.up.children().filter((child) => flame.boxOf(child)) : [node];
  return siblings[siblings.indexOf(node) + step] || node;
}

function heaviestChild(node) {
  const shown = node.children().filter((kid) => flame.boxOf(kid));
  return shown.reduce((a, b) => (b.total > a.total ? b : a), node.children()[0]) || node;
}

function moveSelection(key) {
  const node = state.selected;
  const up = state.flipped ? "ArrowDown" : "ArrowUp";
  const steps = { ArrowLeft: () => neighbour(node, -1), ArrowRight: () => neighbour(node, 1),
    [up]: () => node.up || node, [up === "ArrowUp" ? "ArrowDown" : "ArrowUp"]: () => heaviestChild(node) };
  if (!(key in steps)) return false;
  const next = steps[key]();
  state.selected = flame.boxOf(next) ? next : node;
  render();
  flame.reveal(state.selected);
  return true;
}

const KEYS = {
  i: () => toggle("inverted"), f: () => toggle("flipped"), t: () => toggle("table"), d: () => flipTheme(),
  "?": () => showKeys(), "/": () => byId("search").focus(), Escape: () => reset(),
  Enter: () => zoomTo(state.selected),
};

function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") { reset(); byId("canvas").focus(); }
    return;
  }
  if (event.key === "Enter" && event.target.matches("button, tr")) return;
  if (event.key in KEYS) KEYS[event.key]();
  else if (!moveSelection(event.key)) return;
  event.preventDefault();
}

function flipTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  chooseColours(colours.how);
  render();
}

function showKeys() {
  byId("keys").hidden = !byId("keys").hidden;
  byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
  render();
}

// -- start

const WEIGHT_NAMES = { samples: "samples", wall_ns: "elapsed time", cpu_ns: "CPU time" };

function fillSelect(id, options) {
  byId(id).replaceChildren(...options.map(([text, value]) => new Option(text, value)));
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.title = `${data.title} - sfsample`;
  byId("title").textContent = data.title;
  byId("extent").textContent = data.extent;
  byId("losses").textContent = data.losses.join("; ");
  byId("losses").hidden = !data.losses.length;
  const threads = profile.threadTotals().map((sum, at) => [sum, data.threads[at], at]);
  threads.sort((a, b) => b[0] - a[0]);
  fillSelect("thread", [["all threads", -1],
    ...threads.map(([sum, name, at]) => [`${name}  ${percent(sum, profile.total[0])}`, at])]);
  fillSelect("weight", data.weights.map((name, at) => [WEIGHT_NAMES[name] || name, at]));
  fillSelect("colour", [...(data.diff ? [["change", "change"]] : []), ["module", "module"],
    ["how it was found", "found"]]);
  byId("weights").hidden = data.weights.length < 2;
  byId("thread").addEventListener("change", applySelection);
  byId("weight").addEventListener("change", applySelection);
  byId("colour").addEventListener("change", (event) => { chooseColours(event.target.value); render(); });
  byId("search").addEventListener("input", (event) => searchFor(event.target.value));
  const clicks = { invert: () => toggle("inverted"), flip: () => toggle("flipped"),
    functions: () => toggle("table"), reset, theme: flipTheme, help: showKeys };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  const canvas = byId("canvas");
  canvas.addEventListener("click", (event) => {
    const box = flame.at(event.clientX, event.clientY);
    if (box) zoomTo(box.node);
  });
  canvas.addEventListener("pointermove", showTip);
  canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  document.addEventListener("keydown", handleKey);
  addEventListener("resize", render);
  resetTree();
  chooseColours(data.diff ? "change" : "module");
  render();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
