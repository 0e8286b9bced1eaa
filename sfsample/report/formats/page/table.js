// Shows the table of functions.
//
// Every cell is made with textContent or append, so that the browser shows a name and never reads it as HTML.

const MAX_ROWS = 500;

class FunctionTable {
  // `pick(frame)` is called with the function that the user chooses, `sort(order)` with the column.
  constructor(element, more, pick, sort) {
    this.caption = element.querySelector("caption");
    this.head = element.querySelector("thead tr");
    this.body = element.querySelector("tbody");
    this.more = more;
    this.pick = pick;
    this.sort = sort;
  }

  // `whole`: the words for 100 %.
  show(profile, hits, order, chosen, whole) {
    this.profile = profile;
    this.caption.textContent = `shares of ${whole}`;
    this.order = order === "change" && profile.base < 0 ? "self" : order;
    this.chosen = chosen;
    const columns = [["self", "Self"], ["total", "Total"]];
    if (profile.base >= 0) columns.push(["change", "Change"]);
    columns.push(["name", "Function"]);
    this.head.replaceChildren(...columns.map(([key, text]) => this.heading(key, text)));
    this.rows = profile.functions().filter((row) => !hits || hits[row.frame]);
    for (const row of this.rows) row.change = row.after - row.before;
    this.fill();
  }

  heading(key, text) {
    const cell = document.createElement("th");
    const button = document.createElement("button");
    button.textContent = key === this.order ? `${text} ▾` : text;
    button.addEventListener("click", () => this.sort(key));
    cell.setAttribute("aria-sort", key === this.order ? "descending" : "none");
    cell.append(button);
    return cell;
  }

  fill() {
    const { profile, order } = this;
    const size = order === "change" ? (row) => Math.abs(row.change) : (row) => row[order];
    this.rows.sort(order === "name" ? (a, b) => profile.byName(a, b) : (a, b) => size(b) - size(a));
    this.body.replaceChildren(...this.rows.slice(0, MAX_ROWS).map((row) => this.line(row)));
    const left = this.rows.length - MAX_ROWS;
    this.more.textContent = left > 0 ? `and ${left.toLocaleString("en")} more: search narrows them down` : "";
  }

  line(row) {
    const { profile } = this;
    const whole = profile.total[0], show = (value) => amount(value, profile.data, profile.weight);
    const line = document.createElement("tr");
    line.tabIndex = 0;
    line.ariaCurrent = String(row.frame === this.chosen);
    const cells = [[percent(row.self, whole), show(row.self)], [percent(row.total, whole), show(row.total)]];
    if (profile.base >= 0) {
      const noise = profile.noise(row.frame) ? "noise, " : "", sign = row.change > 0 ? "+" : "";
      cells.push([`${noise}${sign}${show(row.change)}`, profile.verdict(row.frame)]);
    }
    for (const [text, title] of cells) line.insertCell().append(text), line.lastChild.title = title;
    const name = line.insertCell();
    const where = document.createElement("small");
    where.textContent = ` ${profile.pythonFile(row.frame) ? "" : fileName(profile.module(row.frame))}`;
    where.title = profile.module(row.frame);
    name.append(profile.name(row.frame), where);
    line.addEventListener("click", () => this.pick(row.frame));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") this.pick(row.frame); });
    return line;
  }
}
