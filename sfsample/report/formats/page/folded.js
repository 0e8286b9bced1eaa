// Saves the stacks that are shown as `-f folded` writes them: `process;frame;...;frame samples`.
//
// The root and the mark of a truncated stack are written even if they are hidden: a reader takes the first
// frame of a line for the process.

function foldedText(profile) {
  const { parent, frames, ends, left, thread: chosen, data } = profile;
  const { thread } = data.stacks, [samples] = profile.columns;
  const lines = new Map(), texts = new Map(); // texts: last node of a stack -> its text
  const textOf = (end) => {
    const names = [];
    for (let n = end; n > 0; n = parent[n]) {
      if (profile.isShown(n) || isRoot(profile, n)) names.push(data.frames.text[frames[n]]);
    }
    return names.reverse().join(";");
  };
  for (let path = 0; path < ends.length; path++) {
    const end = ends[path];
    if (left[end] || !samples[path] || (chosen >= 0 && thread[path] !== chosen)) continue;
    if (!texts.has(end)) texts.set(end, textOf(end));
    lines.set(texts.get(end), (lines.get(texts.get(end)) || 0) + samples[path]);
  }
  return [...lines].map(([text, count]) => `${text} ${count}\n`).sort().join("");
}

function saveText(text, name) {
  const href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const link = element("a", "", { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // ms; the browser reads it while it saves
}

function saveFolded(profile) {
  const name = profile.data.title.replace(/[^\w.-]+/g, "_").replace(/^[._]+/, "").slice(0, 60);
  saveText(foldedText(profile), `${name || "profile"}.folded`);
}
