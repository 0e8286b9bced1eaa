// Draws the flame graph on a canvas, and finds the box at a point.
//
// `show` sets what is drawn.  Only the visible part is drawn: the canvas is as large as the window on the
// graph, never as the whole graph.

const ROW = 19; // pixels
const PADDING = 3; // pixels before and after a name
const MIN_BOX_WIDTH = 0.6; // pixels: narrower boxes are not drawn

class Flame {
  constructor(canvas, scroller, space) {
    this.canvas = canvas;
    this.scroller = scroller;
    this.space = space;
    this.boxes = [];
    scroller.addEventListener("scroll", () => this.draw());
  }

  // view: {trees: [{root, zoom, upward}], flipped, hits, colour(node), selected}.  The roots of all trees are in
  // the same place; in an upward tree, children are above their parents.
  show(view) {
    this.view = view;
    this.canvas.style.height = "0"; // the old height may need a scroll bar that the new height does not need
    do {
      this.width = this.scroller.clientWidth;
      this.boxes = [];
      this.first = this.last = 0; // row of the outermost and of the innermost box; the root is in row 0
      for (const tree of view.trees) this.layOut(tree);
      this.rows = this.last - this.first + 1;
      this.space.style.height = `${this.rows * ROW}px`;
    } while (this.scroller.clientWidth < this.width); // there is a scroll bar now
    this.draw();
  }

  // Compute the boxes: those above the zoomed node over the whole width, then the tree below it.
  layOut({ zoom, upward }) {
    const above = [];
    for (let node = zoom.up; node; node = node.up) above.unshift(node);
    above.forEach((node, depth) => this.addBox(node, upward ? -depth : depth, 0, this.width, true));
    const scale = zoom.total ? this.width / zoom.total : 0, step = upward ? -1 : 1;
    const todo = [[zoom, step * above.length, 0]];
    while (todo.length) {
      const [node, row, left] = todo.pop();
      this.addBox(node, row, left, node === zoom ? this.width : node.total * scale, false);
      let x = left, rest = 0;
      for (const kid of node.children()) {
        const width = kid.total * scale;
        if (width >= MIN_BOX_WIDTH) {
          this.addStrip(row + step, x - rest, rest);
          rest = 0;
          todo.push([kid, row + step, x]);
        } else rest += width;
        x += width;
      }
      this.addStrip(row + step, x - rest, rest);
    }
  }

  addBox(node, row, left, width, above) {
    this.first = Math.min(this.first, row);
    this.last = Math.max(this.last, row);
    this.boxes.push({ node, row, left, width, above });
  }

  // Add one strip without a name for adjacent boxes that are too narrow to draw.
  addStrip(row, left, width) {
    if (width >= MIN_BOX_WIDTH) this.addBox(null, row, left, width, false);
  }

  // `visible`: the height of the window on the graph.
  top(box, visible) {
    const height = Math.max(this.rows * ROW, visible);
    const row = box.row - this.first;
    return this.view.flipped ? height - (row + 1) * ROW : row * ROW;
  }

  draw() {
    if (!this.view) return;
    const { canvas, scroller, width } = this;
    const height = scroller.clientHeight, { scrollTop } = scroller; // read once: reading them for each box is slow
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = `${width < 600 ? 11 : 12}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace`;
    pen.textBaseline = "middle";
    const letterWidth = pen.measureText("m").width;
    const style = getComputedStyle(document.documentElement);
    const ink = { text: style.getPropertyValue("--text"), found: style.getPropertyValue("--found"),
      accent: style.getPropertyValue("--accent"), rest: style.getPropertyValue("--line") };
    for (const box of this.boxes) {
      const y = this.top(box, height) - scrollTop;
      if (y > -ROW && y < height) this.drawBox(pen, box, y, letterWidth, ink);
    }
  }

  drawBox(pen, box, y, letterWidth, ink) {
    const { hits, selected, colour } = this.view;
    if (!box.node) {
      pen.fillStyle = ink.rest;
      pen.fillRect(box.left, y, box.width, ROW - 1);
      return;
    }
    const gap = box.width > 3 ? 0.5 : 0;
    const hit = hits && box.node.frame >= 0 && hits[box.node.frame];
    pen.globalAlpha = (box.above ? 0.55 : 1) * (hits && !hit ? 0.45 : 1);
    pen.fillStyle = hit ? ink.found : colour(box.node);
    pen.fillRect(box.left, y, Math.max(box.width - gap, 0.5), ROW - 1);
    pen.globalAlpha = 1;
    if (box.node === selected) {
      pen.strokeStyle = ink.accent;
      pen.lineWidth = 2;
      pen.strokeRect(box.left + 1, y + 1, Math.max(box.width - 2, 1), ROW - 3);
    }
    const room = Math.floor((box.width - 2 * PADDING) / letterWidth); // in letters
    if (room < 3) return;
    const name = box.node.profile.name(box.node.frame);
    pen.fillStyle = hit ? "#fff" : ink.text;
    pen.fillText(shortName(name, room), box.left + PADDING, y + ROW / 2, box.width - PADDING); // wide letters are squeezed
  }

  // Return the box at a point of the window, or undefined.
  at(clientX, clientY) {
    const edge = this.canvas.getBoundingClientRect();
    const x = clientX - edge.left, y = clientY - edge.top + this.scroller.scrollTop;
    const height = this.scroller.clientHeight;
    return this.boxes.findLast((box) => { // the last one: of two roots at the same place, it zooms out
      const top = this.top(box, height);
      return box.node && y >= top && y < top + ROW && x >= box.left && x < box.left + box.width;
    });
  }

  boxOf(node) { return this.boxes.find((box) => box.node === node); }

  // Scroll until a node is visible; `centred`: until it is in the middle.
  reveal(node, centred) {
    const box = this.boxOf(node);
    if (!box) return;
    const { scrollTop, clientHeight } = this.scroller, top = this.top(box, clientHeight);
    if (centred && (top < scrollTop || top + 2 * ROW > scrollTop + clientHeight)) {
      this.scroller.scrollTop = top - clientHeight / 2;
    } else if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
  }
}
