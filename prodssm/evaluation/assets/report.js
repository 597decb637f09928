// Draws the pictures of a report: lines, bands, bars and areas as SVG, with zoom, values under the pointer, and pickers.
(() => {
"use strict";
const root = document.documentElement;
root.classList.add("scripted");
const pictures = JSON.parse(document.getElementById("pictures").textContent);
const live = document.getElementById("live");
const Z = 1.959963984540054; // of a central 95 % interval
const chosen = {}; // index by the name of a choice
const zooms = {}; // interval of x by the name of a link or figure
const figures = [];
const BACKGROUND = ["spans", "mark", "rule", "hband", "boxes"]; // layers without values to read

// ---------------------------------------------------------------- numbers and elements

function make(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function html(name, attributes, parent, text) {
  const node = document.createElement(name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function format(value, digits = 5) {
  if (value === null || value === undefined || !isFinite(value)) return "missing";
  return String(Number(value.toPrecision(digits))).replace(/-/g, "−");
}

function ticks(low, high, most) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((n) => n * power).find((each) => span / each <= most) || 10 * power;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * span; n++) {
    const value = n * step;
    const text = Math.abs(value) >= 1e6 || digits > 6 ? format(value, 4) : value.toFixed(digits).replace("-", "−");
    found.push([value, text]);
  }
  return found;
}

const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]; // seconds
const MONTHS = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600];

// A date, without what is zero: "2024-01-31 18:00".
function stamp(milliseconds) {
  const text = new Date(milliseconds).toISOString().slice(0, 19).replace("T", " ");
  return text.replace(/ 00:00:00$/, "").replace(/:00$/, "");
}

// Ticks at round dates, for seconds since a date in milliseconds.
function dates(low, high, most, start) {
  const found = [], span = high - low;
  const step = CLOCK.find((each) => span / each <= most);
  if (step) {
    const origin = start / 1000;
    for (let at = Math.ceil((origin + low) / step) * step; at <= origin + high; at += step) {
      const text = stamp(1000 * at);
      found.push([at - origin, step >= 86400 ? text : at % 86400 ? text.slice(11) : text.slice(5)]);
    }
    return found;
  }
  const months = MONTHS.find((each) => span / (2629746 * each) <= most) || 1200;
  const first = new Date(start + 1000 * low);
  for (let n = Math.ceil((12 * first.getUTCFullYear() + first.getUTCMonth() + 1e-9) / months) * months; ; n += months) {
    const at = (Date.UTC(Math.floor(n / 12), n % 12, 1) - start) / 1000;
    if (at > high) return found;
    if (at >= low) found.push([at, stamp(start + 1000 * at).slice(0, months < 12 ? 7 : 4)]);
  }
}

// Cuts a long name to a width.
function fit(node, room) {
  const text = node.textContent;
  for (let n = text.length - 1; n > 3 && node.getComputedTextLength() > room; n--) node.textContent = `${text.slice(0, n)}…`;
}

// Positions of a line of the pool; regular ones are stored as differences.
function positions(line) {
  if (line.X) return line.X;
  if (line.x) return (line.X = line.x);
  const values = line.y || line.lo || [];
  let count = 0;
  line.X = values.map((_, n) => line.x0 + line.dx * (n ? (count += line.i ? line.i[n - 1] : 1) : 0));
  return line.X;
}

function nearest(X, x) {
  let low = 0, high = X.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (X[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(X[low] - x) <= Math.abs(X[high] - x) ? low : high;
}

function bounds(line, n) {
  if (line.lo) return [line.lo[n], line.hi[n]];
  if (line.s) return [line.y[n] - Z * line.s[n], line.y[n] + Z * line.s[n]];
  return [line.y[n], line.y[n]];
}

// ---------------------------------------------------------------- one picture

class Figure {
  constructor(place) {
    this.place = place;
    this.name = place.dataset.figure;
    this.spec = pictures.figures[this.name];
    this.key = this.spec.link || this.name;
    this.off = new Set();
    this.legend = html("div", { class: "legend" });
    place.before(this.legend);
    this.holder = html("div", {}, place);
    this.tip = html("div", { class: "tip", hidden: "" }, place);
    const hint = this.fixed ? "Arrow keys read values." : "Arrow keys read values, plus and minus zoom, Escape resets.";
    for (const [key, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", `${place.dataset.label}. ${hint}`]]) {
      place.setAttribute(key, value);
    }
    place.addEventListener("keydown", (event) => this.press(event));
    place.addEventListener("blur", () => this.leave());
  }

  get view() {
    const key = this.spec.dims.map((dim) => chosen[dim] || 0).join("/");
    return this.spec.views[key] || Object.values(this.spec.views)[0];
  }

  // A picture over categories or of bars is not zoomed.
  get fixed() { return this.view.some((panel) => panel.cats || panel.width); }

  layers(panel) { return panel.layers.filter((each) => !this.off.has(each.n)); }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const panel of this.view) {
      if (panel.cats) return [-0.5, panel.cats.length - 0.5];
      for (const each of panel.layers) {
        if (BACKGROUND.includes(each.k)) continue;
        const X = positions(pictures.lines[each.d]);
        if (!X.length) continue;
        low = Math.min(low, X[0]);
        high = Math.max(high, X[X.length - 1] + (panel.width || 0));
      }
    }
    if (low === high) { low -= 0.5; high += 0.5; }
    return [low, high];
  }

  draw() {
    const width = Math.max(260, Math.round(this.place.clientWidth));
    this.width = width;
    const full = this.extent();
    this.domain = this.fixed ? full : zooms[this.key] || full;
    if (this.domain[0] >= full[1] || this.domain[1] <= full[0]) this.domain = full;
    this.full = full;
    this.right = 10;
    const last = this.view.length - 1;
    const boxes = this.view.map((panel, n) => this.measure(panel, n === last));
    // Room for the longest number at the axis of y.
    this.left = Math.max(36, 12 + 7 * Math.max(...boxes.flatMap((box) => box.marks.map(([, text]) => text.length))));
    this.holder.replaceChildren();
    this.panels = boxes.map((box, n) => this.drawPanel(box, n, n === last));
    this.drawLegend();
    this.leave();
  }

  sx(x) { return this.left + ((x - this.domain[0]) / (this.domain[1] - this.domain[0])) * (this.width - this.left - this.right); }

  ux(px) { return this.domain[0] + ((px - this.left) / (this.width - this.left - this.right)) * (this.domain[1] - this.domain[0]); }

  range(panel) {
    let low = Infinity, high = -Infinity;
    const [from, to] = this.domain;
    for (const each of this.layers(panel)) {
      const line = pictures.lines[each.d];
      if (each.k === "spans" || each.k === "mark" || each.k === "boxes") continue;
      if (each.k === "rule") { low = Math.min(low, line.y[0]); high = Math.max(high, line.y[0]); continue; }
      if (each.k === "hband") { high = Math.max(high, line.hi[0]); continue; }
      const X = positions(line);
      // One point beyond each side, so that lines leave the picture where they do.
      const begin = Math.max(0, X.findIndex((x) => x >= from) - 1);
      for (let n = begin; n < X.length && (n === 0 || X[n - 1] <= to); n++) {
        const [a, b] = bounds(line, n);
        if (a === null || !isFinite(a)) continue;
        low = Math.min(low, a);
        high = Math.max(high, b);
      }
    }
    if (!isFinite(low)) { low = 0; high = 1; }
    if (low === high) { low -= Math.abs(low) * 0.05 || 0.5; high += Math.abs(high) * 0.05 || 0.5; }
    const margin = 0.06 * (high - low);
    return [panel.low ?? low - margin, panel.high ?? high + margin];
  }

  measure(panel, last) {
    const top = 26, bottom = last ? 40 : 10, height = (panel.h || 190) + (last ? 30 : 0);
    const [low, high] = this.range(panel);
    const sy = (y) => height - bottom - ((y - low) / (high - low)) * (height - bottom - top);
    return { panel, top, floor: height - bottom, height, sy, marks: ticks(low, high, Math.max(3, (height - top - bottom) / 32)) };
  }

  drawPanel(box, n, last) {
    const { panel, top, floor, height } = box, width = this.width;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.t} over ${panel.x}` }, this.holder);
    if (this.fixed) svg.classList.add("fixed");
    for (const [value, text] of box.marks) {
      const y = Math.round(box.sy(value)) + 0.5;
      make("line", { class: "grid", x1: this.left, x2: width - this.right, y1: y, y2: y }, svg);
      make("text", { x: this.left - 7, y: y + 4, "text-anchor": "end" }, svg, text);
    }
    const most = Math.max(2, (width - this.left) / 90);
    const over = panel.date === undefined ? ticks(...this.domain, most) : dates(...this.domain, most, panel.date);
    const marks = panel.cats ? panel.cats.map((text, k) => [k, text]) : over;
    for (const [value, text] of last ? marks : []) {
      const x = this.sx(value);
      make("line", { class: "axis", x1: x, x2: x, y1: floor, y2: floor + 4 }, svg);
      const anchor = x > width - 30 && !panel.cats ? "end" : "middle";
      make("text", { x: anchor === "end" ? width - this.right + 4 : x, y: floor + 17, "text-anchor": anchor }, svg, text);
    }
    make("line", { class: "axis", x1: this.left, x2: width - this.right, y1: floor + 0.5, y2: floor + 0.5 }, svg);
    fit(make("text", { class: "title", x: 0, y: 13 }, svg, panel.t), width - this.right);
    if (last) fit(make("text", { x: width - this.right, y: height - 6, "text-anchor": "end" }, svg, panel.x), width - this.right);
    const clip = `clip-${this.name}-${n}`;
    make("rect", { x: this.left - 4, y: top - 6, width: width - this.left - this.right + 8, height: floor - top + 7 },
      make("clipPath", { id: clip }, svg));
    box.svg = svg;
    box.body = make("g", { "clip-path": `url(#${clip})` }, svg);
    for (const each of this.layers(panel)) this.drawLayer(each, box);
    box.cursor = make("line", { class: "cursor", y1: top - 6, y2: floor, visibility: "hidden" }, svg);
    box.brush = make("rect", { class: "brush", y: top - 6, height: floor - top + 6, visibility: "hidden" }, svg);
    this.listen(svg, box);
    return box;
  }

  drawLayer(each, box) {
    const line = pictures.lines[each.d], X = line.x || line.x0 !== undefined ? positions(line) : [];
    const group = make("g", { class: `c-${each.c}`, "data-layer": each.n }, box.body);
    const sx = (x) => this.sx(x).toFixed(1), sy = (y) => box.sy(y).toFixed(1);
    const [from, to] = this.domain;
    let begin = 0, end = X.length;
    if (each.k !== "spans") {
      while (begin < end - 1 && X[begin + 1] < from) begin++;
      while (end > begin + 1 && X[end - 2] > to) end--;
    }
    const path = (values, step) => {
      let text = "", open = false;
      for (let k = begin; k < end; k++) {
        if (values[k] === null || !isFinite(values[k])) { open = false; continue; }
        text += open ? (step ? `H${sx(X[k])}V${sy(values[k])}` : `L${sx(X[k])} ${sy(values[k])}`) : `M${sx(X[k])} ${sy(values[k])}`;
        open = true;
      }
      return text || "M0 0";
    };
    const between = (lower, upper, style) => {
      const there = [], back = [];
      for (let k = begin; k < end; k++) {
        there.push(`${sx(X[k])} ${sy(upper(k))}`);
        back.push(`${sx(X[k])} ${sy(lower(k))}`);
      }
      if (there.length) make("path", { class: `fill ${style}`, d: `M${there.join("L")}L${back.reverse().join("L")}Z` }, group);
    };
    if (each.k === "spans") {
      for (let k = 0; k < X.length; k += 2) {
        make("rect", { class: "fill", x: sx(X[k]), width: Math.max(1, this.sx(X[k + 1]) - this.sx(X[k])).toFixed(1), y: box.top - 6, height: box.floor - box.top + 6 }, group);
      }
    } else if (each.k === "mark") {
      make("line", { class: "rule", x1: sx(X[0]), x2: sx(X[0]), y1: box.top - 6, y2: box.floor }, group);
    } else if (each.k === "rule") {
      make("line", { class: "rule", x1: this.left, x2: this.width - this.right, y1: sy(line.y[0]), y2: sy(line.y[0]) }, group);
    } else if (each.k === "hband") {
      const y = box.sy(line.hi[0]);
      make("rect", { class: "fill", x: this.left, width: this.width - this.left - this.right, y, height: Math.max(1, box.sy(line.lo[0]) - y) }, group);
    } else if (each.k === "bars") {
      const size = this.sx(box.panel.width) - this.sx(0);
      X.forEach((x, k) => make("rect", { class: "fill solid", x: this.sx(x) + 1, width: size - 2, y: sy(line.y[k]), height: Math.max(0, box.floor - box.sy(line.y[k])) }, group));
    } else if (each.k === "boxes") {
      const size = this.sx(line.w) - this.sx(0);
      for (let k = begin; k < end; k++) {
        make("rect", { class: "fill inner", x: (this.sx(X[k]) - size / 2).toFixed(1), width: size.toFixed(1), y: sy(line.hi[k]), height: (box.sy(line.lo[k]) - box.sy(line.hi[k])).toFixed(1) }, group);
      }
    } else if (each.k === "area") {
      between((k) => line.lo[k], (k) => line.hi[k], "solid");
    } else if (each.k === "dots" && (end - begin) / (this.width - this.left) <= 0.75) {
      const radius = end - begin > 250 ? 2.4 : 3.6;
      let text = "";
      for (let k = begin; k < end; k++) if (line.y[k] !== null) text += `M${sx(X[k])} ${sy(line.y[k])}h.01`;
      make("path", { class: "dots", "stroke-width": radius, d: text || "M0 0" }, group);
    } else {
      if (line.s || line.lo) between((k) => bounds(line, k)[0], (k) => bounds(line, k)[1], "");
      if (line.lo2) between((k) => line.lo2[k], (k) => line.hi2[k], "inner");
      const style = each.k === "dots" || each.k === "trace" ? "line thin" : each.k === "line" ? "rule" : "line";
      make("path", { class: style, fill: "none", d: path(line.y, each.k === "step") }, group);
      if (each.k === "marks") {
        make("path", { class: "dots", "stroke-width": 7, d: X.map((x, k) => line.y[k] === null ? "" : `M${sx(x)} ${sy(line.y[k])}h.01`).join("") || "M0 0" }, group);
      }
    }
  }

  drawLegend() {
    const kinds = new Map();
    for (const panel of this.view) for (const each of panel.layers) if (each.n && !kinds.has(each.n)) kinds.set(each.n, each);
    this.legend.replaceChildren();
    const which = this.spec.dims.filter((dim) => labels(dim).length > 1).map((dim) => labels(dim)[chosen[dim] || 0]);
    if (which.length) html("span", { class: "which" }, this.legend, which.join(", "));
    if (kinds.size > 1) for (const [name, each] of kinds) {
      const button = html("button", { type: "button", "aria-pressed": String(!this.off.has(name)) }, this.legend);
      html("span", { class: `swatch ${each.k} c-${each.c}` }, button);
      html("span", {}, button, name);
      button.addEventListener("click", () => {
        if (!this.off.delete(name)) this.off.add(name);
        const place = [...this.legend.children].indexOf(button);
        this.draw();
        this.legend.children[place].focus();
      });
    }
    const zoomed = this.domain !== this.full;
    if (zoomed) html("button", { type: "button", class: "reset" }, this.legend, "Reset zoom").addEventListener("click", () => this.zoom(null));
    this.place.toggleAttribute("data-zoomed", zoomed);
  }

  // -------------------------------------------------------------- pointer and keys

  listen(svg, box) {
    const at = (event) => {
      const rect = svg.getBoundingClientRect();
      return ((event.clientX - rect.left) / rect.width) * this.width;
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button || this.fixed) return;
      this.start = at(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const px = at(event);
      if (this.start !== undefined && Math.abs(px - this.start) > 6) {
        this.leave();
        const [a, b] = [this.start, px].sort((p, q) => p - q).map((p) => Math.min(this.width - this.right, Math.max(this.left, p)));
        for (const each of this.panels) {
          each.brush.setAttribute("x", a);
          each.brush.setAttribute("width", b - a);
          each.brush.setAttribute("visibility", "visible");
        }
      } else {
        this.show(this.ux(px), box, event);
      }
    });
    svg.addEventListener("pointerup", (event) => {
      const px = at(event), from = this.start;
      this.start = undefined;
      if (from !== undefined && Math.abs(px - from) > 6) {
        this.zoom([from, px].sort((p, q) => p - q).map((p) => this.ux(p)));
        return;
      }
      this.show(this.ux(px), box, event);
      const now = event.timeStamp;
      if (this.tapped && now - this.tapped < 350) { this.tapped = 0; this.zoom(null); } else this.tapped = now;
    });
    svg.addEventListener("pointercancel", () => { this.start = undefined; this.draw(); });
    // What a finger has touched stays until it touches something else.
    svg.addEventListener("pointerleave", (event) => { if (this.start === undefined && event.pointerType === "mouse") this.leave(); });
  }

  zoom(domain) {
    if (this.fixed) return;
    if (domain) {
      const [low, high] = this.full;
      domain = [Math.max(low, domain[0]), Math.min(high, domain[1])];
      if (domain[1] - domain[0] < 1e-6 * (high - low)) return;
      if (domain[0] <= low && domain[1] >= high) domain = null;
    }
    if (domain) zooms[this.key] = domain; else delete zooms[this.key];
    for (const each of figures) if (each.key === this.key) each.draw();
  }

  press(event) {
    const box = this.panels[0];
    const X = this.grid(box);
    const [low, high] = this.domain;
    const here = this.at === undefined ? nearest(X, (low + high) / 2) : nearest(X, this.at);
    const middle = this.at === undefined ? (low + high) / 2 : this.at;
    const step = event.shiftKey ? 10 : 1;
    if (event.target !== this.place) return;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const next = this.at === undefined ? here : here + (event.key === "ArrowRight" ? step : -step);
      this.show(X[Math.min(X.length - 1, Math.max(0, next))], box);
      live.textContent = this.tip.innerText.replace(/\n+/g, ", ");
    } else if (event.key === "+" || event.key === "=") this.zoom([middle - (middle - low) / 2, middle + (high - middle) / 2]);
    else if (event.key === "-") this.zoom([middle - 2 * (middle - low), middle + 2 * (high - middle)]);
    else if (event.key === "Escape") this.zoom(null);
    else return;
    event.preventDefault();
  }

  // Positions that can be read: those of the line with most points.
  grid(box) {
    const all = this.layers(box.panel).filter((each) => !BACKGROUND.includes(each.k)).map((each) => positions(pictures.lines[each.d]));
    return all.sort((a, b) => b.length - a.length)[0] || [0];
  }

  show(x, box, event) {
    const rows = [];
    const half = (box.panel.width || 0) / 2;
    let at;
    const readable = this.layers(box.panel).filter((each) => !BACKGROUND.includes(each.k));
    for (const each of readable) {
      const X = positions(pictures.lines[each.d]), n = nearest(X, x - half);
      if (X.length && (at === undefined || Math.abs(X[n] - x) < Math.abs(at - x))) at = X[n];
    }
    if (at === undefined) return;
    for (const each of readable) {
      const line = pictures.lines[each.d], X = positions(line), n = nearest(X, at);
      if (Math.abs(this.sx(X[n]) - this.sx(at)) > 6) continue;
      let text;
      if (each.k === "area") text = format(line.hi[n] - line.lo[n], 4);
      else {
        const banded = (line.s || line.lo) && line.y[n] !== null;
        text = format(line.y[n], banded ? 4 : 5);
        if (banded) text += ` [${bounds(line, n).map((each) => format(each, 4)).join(", ")}]`;
      }
      rows.push([each, text]);
    }
    this.at = at;
    const px = Math.min(this.width - this.right, Math.max(this.left, this.sx(at + half)));
    for (const each of this.panels) {
      each.cursor.setAttribute("x1", px);
      each.cursor.setAttribute("x2", px);
      each.cursor.setAttribute("visibility", "visible");
    }
    this.tip.replaceChildren();
    const panel = box.panel;
    const place = panel.cats ? panel.cats[at] : panel.width ? `${format(at)}–${format(at + panel.width)}`
      : panel.date === undefined ? format(at, 7) : stamp(panel.date + 1000 * at);
    html("b", {}, this.tip, `${panel.x} ${place}`);
    for (const [each, text] of rows) {
      const row = html("div", {}, this.tip);
      html("span", { class: `swatch ${each.k} c-${each.c}` }, row);
      html("span", {}, row, `${each.n || panel.t} ${text}`);
    }
    this.tip.hidden = false;
    const scale = this.place.clientWidth / this.width, room = this.place.clientWidth - this.tip.offsetWidth;
    const right = px * scale + 14;
    this.tip.style.left = `${Math.max(0, right <= room ? right : px * scale - this.tip.offsetWidth - 14)}px`;
    this.tip.style.top = `${box.svg.getBoundingClientRect().top - this.place.getBoundingClientRect().top + 28}px`;
  }

  leave() {
    this.at = undefined;
    this.tip.hidden = true;
    for (const each of this.panels || []) {
      each.cursor.setAttribute("visibility", "hidden");
      each.brush.setAttribute("visibility", "hidden");
    }
  }
}

// ---------------------------------------------------------------- pickers and theme

function labels(dim) {
  const found = pictures.choices[dim] || [];
  return Array.isArray(found) ? found : found[chosen.series || 0] || [];
}

function choose(dim, index) {
  chosen[dim] = index;
  if (dim === "series") {
    delete zooms.time;
    const picker = document.querySelector('select[data-choice="origin"]');
    if (picker) {
      picker.replaceChildren(...labels("origin").map((text, n) => html("option", { value: n }, null, text)));
      chosen.origin = 0;
    }
  }
  for (const each of figures) if (each.spec.dims.includes(dim)) each.draw();
}

for (const picker of document.querySelectorAll("select[data-choice]")) {
  picker.selectedIndex = 0; // whatever a browser remembers of the page
  picker.addEventListener("change", () => choose(picker.dataset.choice, picker.selectedIndex));
}

const button = document.getElementById("theme");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function isDark() { return (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark"; }
function tell() { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-pressed", String(isDark())); }
button.setAttribute("aria-label", "Dark colours");
button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); });
dark.addEventListener("change", tell);
tell();

for (const place of document.querySelectorAll("[data-figure]")) if (pictures.figures[place.dataset.figure]) figures.push(new Figure(place));
for (const each of figures) each.draw();
const watcher = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const each = figures.find((one) => one.place === entry.target);
    if (each && Math.abs(each.place.clientWidth - each.width) > 1 && each.place.clientWidth > 0) each.draw();
  }
});
for (const each of figures) watcher.observe(each.place);
document.addEventListener("pointerdown", (event) => {
  for (const each of figures) if (!each.place.contains(event.target)) each.leave();
});

// What is folded is printed as well.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = true;
});
window.addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
