// Interpreted and compiled work: recursion, sorting with a callback, JSON, regular expressions, promises, throw.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
function fails(n) { if (!n) throw new Error("the end"); return fails(n - 1) + 1; }
function work() {
  fib(18);
  const values = Array.from({ length: 500 }, (_, i) => (i * 7919) % 500).sort((a, b) => a - b);
  const text = JSON.stringify(values.map((v) => ({ v, w: v / 7, s: String(v).repeat(3) })));
  JSON.parse(text);
  text.replace(/(\d+)\.(\d*?)(5+)/g, (_, a) => a);
  try { fails(20); } catch (e) { e.message; }
}
function turn() { work(); setImmediate(turn); }
turn();
