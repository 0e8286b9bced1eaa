// Numbers and names as text.

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
// Return a weight as text: a time, a number of samples, or the share of a difference.
function amount(value, data, weight) {
  if (data.unit) return `${value.toFixed(2)} ${data.unit}`;
  if (data.weights[weight].endsWith("_ns")) {
    const [size, unit] = UNITS.find(([ns]) => Math.abs(value) >= ns) || UNITS[3];
    return `${Math.abs(value) < 1e12 ? (value / size).toPrecision(3) : Math.round(value / size).toLocaleString("en")} ${unit}`;
  }
  return `${value.toLocaleString("en")} sample${value === 1 ? "" : "s"}`;
}

function percent(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  return share > 0 && share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 10 ? 2 : 1)} %`;
}

function fileName(path) { return path.slice(path.lastIndexOf("/") + 1); }

// Return a name in at most `room` letters: without its arguments, then without its namespaces, then cut.
function shortName(name, room) {
  if (name.length <= room) return name;
  let depth = 0, scope = 0, stop = name.length; // scope, stop: begin of the last part, and of its arguments
  for (let at = 0; at < name.length; at++) {
    const letter = name[at];
    const isReceiver = name[at - 1] === "."; // of a Go method: net/http.(*Client).Get
    if (letter === "(" && depth === 0 && at > scope && !isReceiver && name.slice(scope, at) !== "operator") {
      stop = Math.min(stop, at);
    }
    if ("(<[{".includes(letter)) depth++;
    else if (")>]}".includes(letter) && name[at - 1] !== "-") depth = Math.max(0, depth - 1);
    else if (letter === ":" && name[at + 1] === ":" && depth === 0) [scope, stop] = [at + 2, name.length];
  }
  const found = [name.slice(0, stop), name.slice(scope, stop)].find((text) => text.length <= room);
  return found || `${name.slice(scope, stop).slice(0, room - 1)}…`;
}

// Return a function that reads the numbers in a text, one at each call.  A number has digits of five bits, the
// lowest first; a sixth bit marks that another digit follows (report/formats/html_time_line.py).
const ZERO = "?".charCodeAt(0), MORE = 1 << 5; // the letter for digit 0; the bit for another digit

function numberReader(letters) {
  let at = 0;
  return () => {
    let number = 0, scale = 1;
    for (;;) {
      const digit = letters.charCodeAt(at++) - ZERO;
      if (digit < MORE) return number + digit * scale;
      number += (digit - MORE) * scale;
      scale *= MORE;
    }
  };
}
