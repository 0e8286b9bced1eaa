// Writes the texts of the page: the header, the selected function, the edits, the box under the pointer.
//
// Every text is put there with textContent or append, so that the browser never reads a name as HTML.

const byId = (id) => document.getElementById(id);
const WEIGHT_NAMES = { samples: "samples", wall_ns: "elapsed time", cpu_ns: "CPU time" };
const EDIT_NAMES = { focus: "only", drop: "without", merge: "merged", hide: "hidden" };

function element(kind, text, properties = {}) {
  const made = document.createElement(kind);
  made.textContent = text;
  return Object.assign(made, properties);
}

// -- times, by the clocks of the machine that wrote the page

let zone = {}; // options of toLocaleString; {}: the reader's zone

function setZone(timeZone) {
  try {
    new Date().toLocaleString("sv", { timeZone });
    zone = { timeZone };
  } catch { /* the browser does not know this zone */ }
}

function timeText(seconds) { return new Date(seconds * 1000).toLocaleString("sv", zone); }

// Return the number of seconds by which local clocks are ahead of UTC.
function aheadOfUtc(seconds) { return Date.parse(`${timeText(seconds).replace(" ", "T")}Z`) / 1000 - Math.floor(seconds); }

// -- the header

function showHeader(data) {
  const { who, host, started_ns: started, by, what } = data.recorded, date = new Date(started / 1e6);
  setZone(data.zone);
  const when = started ? date.toLocaleString("sv", { ...zone, timeZoneName: "short" }) : "";
  const place = [who, host && `on ${host}`].filter(Boolean).join(" ");
  document.title = `${data.title} - sfsample`;
  byId("title").textContent = data.title;
  byId("origin").textContent = [place, when, by && `by ${by}`].filter(Boolean).join(", ");
  byId("origin").title = when && `began at ${date.toISOString()}`;
  [byId("labels").textContent, byId("labels").title] = [data.recorded.labels, data.recorded.all_labels];
  byId("extent").textContent = [data.extent, what].filter(Boolean).join(", ");
  byId("losses").textContent = data.losses.join("; ");
  const [shares, ...locks] = data.diff ? [] : data.waits, waits = byId("waits");
  [waits.firstChild.textContent, waits.lastChild.textContent, waits.hidden] = [shares, locks.join("\n"), !shares];
  for (const id of ["origin", "labels", "extent", "losses"]) byId(id).hidden = !byId(id).textContent;
}

// -- weights and shares

// Return true if the user has chosen a part of the stacks.
function isNarrowed(state) { return state.thread >= 0 || state.from >= 0 || state.focus.length + state.drop.length > 0; }

function wholeText(profile, state) {
  const [whole, all] = [profile.total[0], profile.all[profile.weight]];
  const text = amount(whole, profile.data, profile.weight);
  return isNarrowed(state) ? `the chosen ${text}, ${percent(whole, all)} of all` : `all ${text}`;
}

// `shown`: the box that is as wide as the page, or null; `self`: true to add the node's own time.
function weightText(node, state, shown, self) {
  const { profile } = node, whole = profile.total[0];
  const show = (value) => amount(value, profile.data, profile.weight);
  const shares = [`${percent(node.total, whole)} of ${isNarrowed(state) ? "the chosen stacks" : "all"}`];
  if (isNarrowed(state)) shares.push(`${percent(node.total, profile.all[profile.weight])} of all`);
  const parts = [[show(node.total), ...shares].join(", ")];
  if (shown) parts.push(`${percent(node.total, shown.total)} of what is shown`);
  if (self && node.self > 0) parts.push(`self ${percent(node.self, whole)}`);
  if (profile.base >= 0) parts.push(`change ${node.change > 0 ? "+" : ""}${show(node.change)}`);
  return parts.join("; ");
}

function originText(node) {
  const { profile, frame } = node, found = profile.found(frame);
  const parts = [profile.module(frame), found && `found by ${found}`, profile.verdict(frame)];
  return parts.filter(Boolean).join(", ");
}

// -- the edits

// Show how large the chosen part is, and a button for each edit; the button takes it back: `undo(changes)`.
function showEdits(profile, state, undo) {
  const buttons = EDITS.flatMap((list) => state[list].map((frame) =>
    [`${EDIT_NAMES[list]}: ${profile.name(frame)}`, withEdit(state, list, frame)]));
  if (state.from >= 0) buttons.push([spanText(state.from, state.to), { from: -1, to: -1 }]);
  if (state.recursion) buttons.push(["recursion merged", { recursion: false }]);
  if (state.view === "sandwich") {
    buttons.push([`callers and callees of ${profile.name(state.of)}`, { view: "flame", of: -1 }]);
  }
  byId("edits").hidden = !buttons.length && !isNarrowed(state);
  byId("edits").replaceChildren(`${wholeText(profile, state)} `, ...buttons.map(([text, changes]) =>
    element("button", `${text} ✕`, { title: `${text}: take this back`, onclick: () => undo(changes) })));
}

// -- the box under the pointer

function showTip(event, lines) {
  const tip = byId("tip");
  tip.hidden = !lines || event.pointerType === "touch";
  if (!lines) return;
  tip.replaceChildren(...lines.filter(Boolean).map((text, at) => element(at ? "div" : "b", text)));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + height > innerHeight ? event.clientY - height - 10 : below}px`;
}
