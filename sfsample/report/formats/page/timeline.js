// Draws the time line: a bar for each slice of time, the gaps between slices, and the selected time.
//
// report/formats/html_time_line.py writes the slices: numbers of rows and weights as letters.  The page reads
// only the selected slices, and only when the selection changes.

const LINE_HEIGHT = 64, AXIS_HEIGHT = 15, STRIP = 3; // pixels; the strip shows the CPU time without samples
const MIN_TICK = 90; // pixels between two labels of the axis
const TICKS = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800, 2592000]; // s

// Return the numbers of the slices whose middle lies in the selected time; all, if no time is selected.
function slicesIn({ begin, end }, { from, to }) {
  const numbers = [...begin.keys()];
  return from < 0 ? numbers : numbers.filter((at) => {
    const middle = (begin[at] + end[at]) / 2;
    return from <= middle && middle < to;
  });
}

// Return the weights of each row: sums over the selected slices.
function columnsOf({ slices, stacks, weights }, state) {
  if (!slices || state.from < 0) return stacks.weights;
  const sums = weights.map(() => new Float64Array(stacks.thread.length));
  const scales = weights.map((name) => (name.endsWith("_ns") ? slices.unit_ns : 1));
  for (const at of slicesIn(slices, state)) addSlice(slices.letters[at], slices.counts[at], sums, scales);
  return sums;
}

function addSlice(letters, count, sums, scales) {
  const rows = new Int32Array(count), read = numberReader(letters);
  let row = 0;
  for (let n = 0; n < count; n++) rows[n] = row += read();
  sums.forEach((sum, weight) => {
    for (let n = 0; n < count; n++) sum[rows[n]] += read() * scales[weight];
  });
}

function spanText(from, to) {
  const [begin, end] = [timeText(from), timeText(to)];
  return `${begin} to ${begin.slice(0, 10) === end.slice(0, 10) ? end.slice(11) : end}`;
}

class TimeLine {
  // `select(from, to, done)` is called while the user drags, and once at the end.
  constructor(canvas, data, select) {
    const { begin, end, gaps } = this.slices = data.slices;
    this.canvas = canvas;
    this.data = data;
    this.select = select;
    const least = (numbers) => numbers.reduce((a, b) => Math.min(a, b), Infinity);
    const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);
    this.begin = least(begin);
    this.end = most(end);
    this.gaps = gaps.map(([from, to, why]) => [Math.max(from, this.begin), Math.min(to, this.end), why])
      .filter(([from, to]) => from < to);
    this.rates = this.slices.sums.map((sums) => sums.map((sum, at) => sum / Math.max(end[at] - begin[at], 1e-3)));
    this.highest = this.rates.map((rates) => most(rates) || 1);
    this.drag = -1; // the slice at which the user began to drag
    this.listen();
  }

  x(seconds) { return ((seconds - this.begin) / (this.end - this.begin || 1)) * this.canvas.clientWidth; }

  secondsAt(clientX) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return this.begin + ((clientX - left) / width) * (this.end - this.begin);
  }

  // Return the slice at a time, or the nearest one.
  nearest(seconds) {
    const { begin, end } = this.slices;
    const distance = (at) => Math.max(begin[at] - seconds, seconds - end[at], 0);
    return [...begin.keys()].reduce((a, b) => (distance(b) < distance(a) ? b : a));
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = this.nearest(this.secondsAt(event.clientX));
      this.choose(this.drag, this.drag, false);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.drag >= 0) this.choose(this.drag, this.nearest(this.secondsAt(event.clientX)), false);
      showTip(event, this.linesAt(this.secondsAt(event.clientX)));
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => {
        if (this.drag >= 0) this.choose(this.drag, this.nearest(this.secondsAt(event.clientX)), true);
        this.drag = -1;
      });
    }
    canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  }

  // Select the slices from one to another.
  choose(first, last, done) {
    const { begin, end } = this.slices;
    const [low, high] = first < last ? [first, last] : [last, first];
    this.select(Math.round(begin[low]), Math.round(end[high]), done);
  }

  // Move the selection by one slice; `extends_`: move only its end.
  move(state, step, extends_) {
    const chosen = slicesIn(this.slices, state), count = this.slices.begin.length;
    const inside = (at) => Math.max(0, Math.min(count - 1, at));
    if (state.from < 0) return this.choose(step > 0 ? 0 : count - 1, step > 0 ? 0 : count - 1, true);
    const first = chosen[0], last = chosen.at(-1);
    if (extends_) return this.choose(first, Math.max(first, inside(last + step)), true);
    if (inside(first + step) - first === step && inside(last + step) - last === step) {
      this.choose(first + step, last + step, true);
    }
  }

  linesAt(seconds) {
    const gap = this.gaps.find(([from, to]) => from <= seconds && seconds < to);
    const { begin, end, coverage, sums } = this.slices, at = this.nearest(seconds);
    if (begin[at] <= seconds && seconds <= end[at]) {
      return [spanText(begin[at], end[at]),
        ...sums.map((of, weight) => `${WEIGHT_NAMES[this.data.weights[weight]]}: ${amount(of[at], this.data, weight)}`),
        coverage[at] !== null && `coverage ${percent(coverage[at], 1)}`];
    }
    if (gap) return [spanText(gap[0], gap[1]), `no slices: ${gap[2]}`];
    return [timeText(seconds), "no slices"];
  }

  // Return [CPU time in ms, time of day] of each second, if one slice is selected and has these numbers.
  secondsOf(state) {
    const [one, ...more] = slicesIn(this.slices, state);
    const known = (state.from >= 0 && !more.length && this.slices.cpu_ms[one]) || [];
    return known.map((ms, at) => [ms, timeText(Math.round(this.slices.begin[one]) + at).slice(11)]);
  }

  showSeconds(state) {
    const known = this.secondsOf(state), row = byId("seconds"), most = Math.max(...known.map(([ms]) => ms), 1);
    row.hidden = !known.length;
    row.replaceChildren(...known.map(([ms, when]) => {
      const cell = document.createElement("span"), heat = cell.appendChild(document.createElement("span"));
      heat.style.opacity = ms / most;
      cell.title = `${when}: ${ms.toLocaleString("en")} ms of CPU time in this second`;
      return cell;
    }));
  }

  show(state, weight) {
    this.showSeconds(state);
    const { canvas, slices } = this, width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(LINE_HEIGHT * ratio);
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue(`--${name}`);
    pen.scale(ratio, ratio);
    const bottom = LINE_HEIGHT - AXIS_HEIGHT, chosen = new Set(slicesIn(slices, state));
    this.drawAxis(pen, width, bottom, ink);
    for (const [from, to] of this.gaps) this.drawGap(pen, this.x(from), this.x(to), bottom, ink);
    slices.begin.forEach((begin, at) => {
      const left = this.x(begin), right = this.x(slices.end[at]);
      const wide = Math.max(1, right - left - (right - left > 4 ? 1 : 0));
      const height = (this.rates[weight][at] / this.highest[weight]) * (bottom - STRIP - 1);
      pen.globalAlpha = chosen.has(at) ? 1 : 0.3;
      pen.fillStyle = ink("accent");
      pen.fillRect(left, bottom - STRIP - height, wide, height);
      pen.globalAlpha = slices.coverage[at] === null ? 0 : 1 - slices.coverage[at];
      pen.fillStyle = ink("found");
      pen.fillRect(left, bottom - STRIP, wide, STRIP);
    });
    pen.globalAlpha = 1;
    if (state.from >= 0) {
      pen.strokeStyle = ink("text");
      pen.strokeRect(this.x(state.from) + 0.5, 0.5, Math.max(1, this.x(state.to) - this.x(state.from) - 1), bottom - 1);
    }
  }

  drawGap(pen, left, right, bottom, ink) {
    pen.fillStyle = ink("warn-back");
    pen.fillRect(left, 0, Math.max(1, right - left), bottom);
    pen.strokeStyle = ink("warn");
    pen.globalAlpha = 0.4;
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, Math.max(1, right - left), bottom);
    pen.clip();
    pen.beginPath();
    for (let x = left - bottom; x < right; x += 7) { pen.moveTo(x, bottom); pen.lineTo(x + bottom, 0); }
    pen.stroke();
    pen.restore();
    pen.globalAlpha = 1;
  }

  drawAxis(pen, width, bottom, ink) {
    const span = this.end - this.begin, zone = aheadOfUtc(this.begin);
    const step = TICKS.find((seconds) => (seconds / span) * width >= MIN_TICK) || span;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "bottom";
    for (let at = Math.ceil((this.begin + zone) / step) * step - zone; at < this.end; at += step) {
      const text = timeText(at), x = this.x(at), label = step < 60 ? text.slice(11) : text.slice(11, 16);
      pen.fillStyle = ink("line");
      pen.fillRect(x, 0, 1, bottom + 4);
      pen.fillStyle = ink("faint");
      pen.fillText(step < 86400 && label !== "00:00" ? label : text.slice(5, 10), x + 3, LINE_HEIGHT);
    }
    pen.fillStyle = ink("line");
    pen.fillRect(0, bottom, width, 1);
  }

  // Describe the time line in words.
  text(state) {
    const { begin, together } = this.slices, chosen = slicesIn(this.slices, state).length;
    const bars = together > 1 ? `, each of ${together} slices, as more bars would not fit into the page` : "";
    const gaps = this.gaps.length ? `; ${this.gaps.length} gap${this.gaps.length > 1 ? "s" : ""}` : "";
    const all = `${begin.length.toLocaleString("en")} bar${begin.length > 1 ? "s" : ""}${bars}${gaps}`;
    const known = this.secondsOf(state), [ms, when] = known.reduce((a, b) => (b[0] > a[0] ? b : a), [0, ""]);
    const seconds = known.length ? `; a box is the CPU time of a second, at most ${ms.toLocaleString("en")} ms (${when})` : "";
    return state.from < 0 ? `${spanText(this.begin, this.end)}: ${all}; drag to select a time`
      : `${spanText(state.from, state.to)}: ${chosen.toLocaleString("en")} of ${all}${seconds}`;
  }
}
