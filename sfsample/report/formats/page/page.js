// Handles the user's actions, and draws the page.
//
// Each action changes the state (state.js) and thereby the URL; `show` draws the page from the state alone.

const data = JSON.parse(byId("profile").textContent);
const profile = new ProfileData(data);
const colours = new Colours(profile);
const flame = new Flame(byId("canvas"), byId("graph"), byId("space"));
const table = new FunctionTable(byId("table"), byId("more"), chooseRow, (order) => steps.go({ order }));
const steps = new Steps(profile, show);
const { words } = steps;
const timeLine = data.slices && new TimeLine(byId("time"), data, selectTime);
// Results of `show`: the trees with their zoom, the selected box, the hits of the search.  The last four keys
// are the parts of the state, as text, from which `show` derived them: it derives only changed parts again.
const now = { trees: [], selected: null, found: null, mistake: "",
  choice: choiceOf(steps.start), treesOf: "", foundIn: "", colouredFor: "" };

// -- from the state to the page

function show() {
  const { state } = steps;
  byId("tip").hidden = true;
  const choice = choiceOf(state);
  if (changed("choice", choice)) profile.choose(state);
  const isNew = changed("treesOf", choice + JSON.stringify([state.view, state.of]));
  if (isNew) now.trees = makeTrees(state);
  for (const tree of now.trees) tree.zoom = boxAt(state.zoom, tree);
  const boxes = now.trees.map((tree) => boxAt(state.at, tree));
  now.selected = boxes.findLast((node) => node.up) || boxes.at(-1); // the lower one, if both are roots
  if (changed("foundIn", choice + JSON.stringify([state.search, state.row]))) search(state);
  if (changed("colouredFor", choice + state.colour + document.documentElement.dataset.theme)) {
    chooseColours(state.colour);
  }
  showControls(state);
  if (timeLine) timeLine.show(state, state.weight);
  showGraph(state);
  if (isNew) flame.reveal(now.selected, true);
}

// Return the part of the state that the sums depend on, as text.
function choiceOf({ thread, weight, from, to, focus, drop, merge, hide, recursion }) {
  return JSON.stringify([thread, weight, from, to, focus, drop, merge, hide, recursion]);
}

function changed(key, value) {
  const differs = now[key] !== value;
  now[key] = value;
  return differs;
}

function makeTrees({ view, of }) {
  if (view === "callers") return [{ root: CallerNode.root(profile) }];
  if (view === "flame") return [{ root: CalleeNode.root(profile) }];
  return [{ root: CallerNode.of(profile, of), upward: true }, { root: CalleeNode.of(profile, of) }];
}

// Return the box of a path in a tree; the root, if the path belongs to the other tree.
function boxAt(path, { root, upward }) {
  return path.startsWith(UPWARD) === Boolean(upward) ? words.nodeAt(root, path) : root;
}

function pathOf(node) {
  const path = words.pathOf(node), tree = treeOf(node);
  return path && tree.upward ? UPWARD + path : path;
}

function treeOf(node) { return now.trees.find((tree) => tree.root === rootOf(node)); }

function search({ search: typed, row }) {
  const word = typed.trim();
  now.found = null;
  now.mistake = "";
  try {
    const isRow = row >= 0 && typed === quoted(row); // only this function, not its namesakes in other modules
    if (word) now.found = profile.search(isRow ? (frame) => frame === row : profile.matcher(word));
  } catch (error) {
    now.mistake = `not a regular expression: ${error.message}`;
  }
}

function chooseColours(how) {
  colours.choose(how);
  showLegend(byId("legend"), colours.legend(), (word) => steps.go({ search: word, row: -1 }));
}

function showGraph(state) {
  const hits = now.found && now.found.hits;
  byId("graph").hidden = state.table && innerWidth <= 700;
  byId("table").hidden = !state.table;
  flame.show({ trees: now.trees, flipped: state.flipped, hits, selected: now.selected,
    colour: (node) => colours.of(node) });
  if (state.table) table.show(profile, hits, state.order, chosenFrame(), wholeText(profile, state));
}

function showControls(state) {
  const whole = now.found && percent(now.found.weight, profile.total[0]);
  byId("matched").textContent = now.mistake || (whole ? `${whole} matched` : "");
  byId("search").setAttribute("aria-invalid", String(Boolean(now.mistake)));
  for (const key of ["search", "thread", "weight", "colour"]) {
    if (byId(key).value !== String(state[key])) byId(key).value = state[key];
  }
  for (const [id, on] of [["invert", state.view === "callers"], ["flip", state.flipped],
    ["functions", state.table], ["recursion", state.recursion], ["sandwich", state.view === "sandwich"],
    ...EDITS.map((list) => [list, state[list].includes(chosenFrame())])]) {
    byId(id).setAttribute("aria-pressed", String(on));
  }
  for (const id of ["sandwich", ...EDITS]) byId(id).disabled = chosenFrame() < 0;
  showEdits(profile, state, (changes) => steps.go(changes));
  byId("timetext").textContent = timeLine ? timeLine.text(state) : "";
  const row = state.row >= 0 && CalleeNode.of(profile, state.row);
  byId("status").textContent = (row ? linesOf(row, null, false) : linesOfBox(now.selected)).join("  ·  ");
}

function linesOf(node, shown, self) {
  const lines = [profile.name(node.frame), weightText(node, steps.state, shown, self), originText(node)];
  return lines.filter(Boolean);
}

function linesOfBox(node) {
  const { root, zoom } = treeOf(node), { view } = steps.state;
  return linesOf(node, zoom !== root || view === "sandwich" ? zoom : null, view === "flame");
}

// -- actions

function chosenFrame() { return steps.state.row >= 0 ? steps.state.row : now.selected.frame; }

function quoted(frame) { return `"${profile.name(frame)}"`; }

function chooseRow(frame) { steps.go({ row: frame, search: quoted(frame) }); }

// Return the changes that undo the choice of a row, because its function disappears or fills the page.
function withoutRow() { return steps.state.row >= 0 ? { row: -1, search: "" } : {}; }

function zoomTo(node) {
  const path = pathOf(node);
  steps.go({ zoom: path, at: path, row: -1 });
  flame.reveal(now.selected);
}

function setView(view) {
  steps.go({ view: steps.state.view === view ? "flame" : view, of: -1, zoom: "", at: "" });
}

// Show the callers and the callees of the chosen function; if they are shown already, go back.
function sandwich() {
  const of = chosenFrame(), { state } = steps;
  if (of < 0 || (state.view === "sandwich" && state.of === of)) return setView("flame");
  const table = state.table && innerWidth > 700; // on a narrower screen, the table would cover the graph
  steps.go({ view: "sandwich", of, zoom: "", at: "", table, ...withoutRow() });
}

// Focus on, drop, merge or hide the chosen function, or take this back; leave a view that would be empty.
function edit(list) {
  const { state } = steps, frame = chosenFrame();
  if (frame < 0) return;
  const leaves = list === "focus" || (state.of === frame && list !== "merge");
  const whole = leaves ? { view: "flame", of: -1, zoom: "", at: "" } : {};
  steps.go({ ...withEdit(state, list, frame), ...withoutRow(), ...whole });
}

// `done`: the user has let go.  Until then the URL does not change, because browsers refuse too many changes.
function selectTime(from, to, done) {
  if (done) return steps.go({ from, to });
  Object.assign(steps.state, { from, to });
  show();
}

function toggle(flag) { steps.go({ [flag]: !steps.state[flag] }); }

function reset() { steps.go({ ...steps.start }); }

// Leave the first of these that is active: the keys, the search, the zoom, the view, the selected time.
function leave() {
  if (!byId("keys").hidden) return showKeys();
  const { state, start } = steps, parts = [["search", "row"], ["zoom", "at"], ["view", "of"], ["from", "to"]];
  const part = parts.find((keys) => keys.some((key) => state[key] !== start[key])) || [];
  steps.go(Object.fromEntries(part.map((key) => [key, start[key]])));
}

function neighbour(node, step) {
  const siblings = node.up ? node.up.children().filter((child) => flame.boxOf(child)) : [node];
  return siblings[siblings.indexOf(node) + step] || node;
}

function heaviestChild(node) {
  const shown = node.children().filter((kid) => flame.boxOf(kid));
  return shown.reduce((a, b) => (b.total > a.total ? b : a), node.children()[0]) || node;
}

// Return the node above or below; from a root of the sandwich, it may be in the other tree.
function inDirection(node, upward) {
  const tree = treeOf(node);
  if (node.up) return Boolean(tree.upward) === upward ? heaviestChild(node) : node.up;
  const onward = now.trees.find((other) => Boolean(other.upward) === upward);
  return onward ? heaviestChild(onward.root) : node;
}

function moveSelection(key) {
  const node = now.selected, up = steps.state.flipped ? "ArrowDown" : "ArrowUp";
  const moves = { ArrowLeft: () => neighbour(node, -1), ArrowRight: () => neighbour(node, 1),
    ArrowUp: () => inDirection(node, key === up), ArrowDown: () => inDirection(node, key === up) };
  if (!(key in moves)) return false;
  const next = moves[key]();
  steps.go({ at: pathOf(flame.boxOf(next) ? next : node), row: -1 }, "move");
  flame.reveal(now.selected);
  return true;
}

function flipTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  show();
}

function showKeys() {
  byId("keys").hidden = !byId("keys").hidden;
  byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
  show();
}

const KEYS = {
  i: () => setView("callers"), f: () => toggle("flipped"), t: () => toggle("table"), d: flipTheme,
  "?": showKeys, "/": () => byId("search").focus(), Escape: leave, Enter: () => zoomTo(now.selected),
  s: sandwich, o: () => edit("focus"), h: () => edit("hide"), m: () => edit("merge"), x: () => edit("drop"),
  r: () => toggle("recursion"), e: () => saveFolded(profile),
};

function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") { steps.go({ search: "", row: -1 }); byId("canvas").focus(); }
    return;
  }
  if (event.key === "Enter" && event.target.matches("button, tr")) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.target === byId("time") && step) timeLine.move(steps.state, step, event.shiftKey);
  else if (event.key in KEYS) KEYS[event.key]();
  else if (!moveSelection(event.key)) return;
  event.preventDefault();
}

// -- start

function fillSelect(id, options) {
  byId(id).replaceChildren(...options.map(([text, value]) => new Option(text, value)));
}

function fillSelects() {
  const names = { owner: "mine, packages, stdlib", wait: "cause of the wait", found: "how it was found" };
  const threads = profile.threadTotals().map((sum, at) => [sum, data.threads[at], at]);
  const whole = threads.reduce((sum, [part]) => sum + part, 0);
  threads.sort((a, b) => b[0] - a[0]);
  fillSelect("thread", [["all threads", -1],
    ...threads.map(([sum, name, at]) => [`${name}  ${percent(sum, whole)}`, at])]);
  fillSelect("weight", data.weights.map((name, at) => [WEIGHT_NAMES[name] || name, at]));
  fillSelect("colour", coloursOf(profile).map((how) => [names[how] || how, how]));
  byId("times").hidden = !timeLine;
  byId("weights").hidden = data.weights.length < 2;
}

function listen() {
  for (const key of ["thread", "weight"]) {
    byId(key).addEventListener("change", (event) => steps.go({ [key]: Number(event.target.value) }));
  }
  byId("colour").addEventListener("change", (event) => steps.go({ colour: event.target.value }));
  byId("search").addEventListener("input", (event) => {
    steps.go({ search: event.target.value, row: -1 }, "search");
  });
  byId("search").addEventListener("change", () => { steps.kind = ""; });
  const clicks = { invert: () => setView("callers"), flip: () => toggle("flipped"), sandwich, reset,
    functions: () => toggle("table"), recursion: () => toggle("recursion"), save: () => saveFolded(profile),
    theme: flipTheme, help: showKeys };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  for (const list of EDITS) byId(list).addEventListener("click", () => edit(list));
  const canvas = byId("canvas"), boxAtEvent = (event) => flame.at(event.clientX, event.clientY);
  canvas.addEventListener("click", (event) => { const box = boxAtEvent(event); if (box) zoomTo(box.node); });
  canvas.addEventListener("pointermove", (event) => {
    const box = boxAtEvent(event);
    showTip(event, box && linesOfBox(box.node));
  });
  canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  document.addEventListener("keydown", handleKey);
  addEventListener("resize", show);
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  showHeader(data);
  fillSelects();
  listen();
  show();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
