/*
 * What a report is made of: elements, formats, tables, plots. It knows nothing of what was measured.
 *
 * Every text of the data is put in as text, never as markup. A figure in a table is an element whose data-path says
 * where it stands in the data, as a JSON Pointer (RFC 6901): tests/web/test_report.py holds each against its source.
 * A plot has no figure that the table below it has not, so it is an image with a name to those who hear the page.
 */
"use strict";

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);

/* ----------------------------------------------------------------------------------------------------------- pieces */

function make(node, what, attributes, children) {
  const classes = what.split(".").slice(1);
  if (classes.length > 0) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/* h("p.note", {title: "x"}, "text", node): an element. Attributes that are null or false are left out. */
const h = (what, attributes, ...children) =>
  make(document.createElement(what.split(".")[0]), what, attributes, children);
const s = (what, attributes, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", what.split(".")[0]), what, attributes, children);

const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const least = (values) => Math.min(...values.filter(isNumber));
const most = (values) => Math.max(...values.filter(isNumber));
const unique = (values) => [...new Set(values)];

/* ---------------------------------------------------------------------------------------------------------- formats */

const DASH = "–";
const GAP = "\u00a0"; // between a number and its unit
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/* A format of numbers; what is no number is a dash. */
const number = (format) => (x) => isNumber(x) ? format(x) : DASH;
const fixed = (digits) => number((x) => x.toFixed(digits));
const signed = (x, digits) => {
  const text = Math.abs(x).toFixed(digits);
  return Number(text) === 0 ? text : (x < 0 ? "−" : "+") + text;
};
const count = number((x) => grouped.format(x));
const times = number((x) => `${x.toFixed(x >= 10 ? 1 : 2)}×`);
const rate = number((x) => x.toFixed(x >= 100 ? 0 : x >= 10 ? 1 : 2));
const percent = number((x) => `${(x * 100).toFixed(1)}${GAP}%`);
const signedPercent = number((x) => `${signed(x * 100, 1)}${GAP}%`);
const points = number((x) => signed(x * 100, 1));
const ms = number((x) => {
  if (x >= 60000) return `${(x / 60000).toFixed(1)}${GAP}min`;
  if (x >= 1000) return `${(x / 1000).toFixed(x >= 10000 ? 1 : 2)}${GAP}s`;
  return `${x.toFixed(x >= 100 ? 0 : x >= 10 ? 1 : 2)}${GAP}ms`;
});
const bytes = number((x) => {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; x >= 1024 && unit < units.length - 1; unit++) x /= 1024;
  return `${unit === 0 ? count(x) : x.toFixed(x >= 100 ? 0 : 1)}${GAP}${units[unit]}`;
});
const duration = number((x) => {
  if (x < 60) return `${x.toFixed(1)}${GAP}s`;
  const seconds = Math.round(x), minutes = Math.round(x / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${GAP}min ${seconds % 60}${GAP}s`;
  return `${Math.floor(minutes / 60)}${GAP}h ${minutes % 60}${GAP}min`;
});
const plain = (x) => x === null || x === undefined || x === "" ? DASH : isNumber(x) ? String(Number(x.toPrecision(5)))
  : String(x);
const tickMs = (x) => x >= 1000 ? `${x / 1000} s` : `${x} ms`;
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

function date(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return plain(text);
  return `${at.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short", timeZone: "UTC" })} UTC`;
}

/* ---------------------------------------------------------------------------------------------------------- figures */

const join = (base, ...names) =>
  base + names.map((name) => "/" + String(name).replace(/~/g, "~0").replace(/\//g, "~1")).join("");

function value(path) {
  return path.split("/").slice(1).reduce(
    (at, name) => at === null || at === undefined ? at : at[name.replace(/~1/g, "/").replace(/~0/g, "~")], data);
}

/* The figure at this place of the data, for a table or a text. */
function figure(path, format) {
  const shown = (format || plain)(value(path));
  return h("span", { "data-path": path, class: shown.length > 32 ? "long" : null }, shown);
}

/* A smaller line under a figure. */
const sub = (...children) => h("span.sub", null, ...children);

/* "(low to high)"; one question alone has no interval. */
function interval(path, low, high, format, questions) {
  if (!isNumber(value(join(path, low))) || questions < 2) return sub(DASH);
  return sub("(", figure(join(path, low), format), " to ", figure(join(path, high), format), ")");
}

/* ----------------------------------------------------------------------------------------------------------- tables */

let nTables = 0;

/*
 * Columns are names, or {name, group, left}; those side by side with one group stand under it. A row is a list of
 * cells, the first of them the row's name, or {cells, mark} where mark is a class.
 */
function table(title, columns, rows) {
  columns = columns.map((column) => typeof column === "string" ? { name: column } : column);
  const deep = columns.some((column) => column.group), top = h("tr"), under = h("tr");
  columns.forEach((column, i) => {
    const name = (attributes) => h(column.left ? "th.left" : "th", { scope: "col", ...attributes }, column.name);
    if (!column.group) {
      top.append(name({ rowspan: deep ? 2 : null }));
      return;
    }
    if (i === 0 || columns[i - 1].group !== column.group) {
      const span = columns.slice(i).findIndex((other) => other.group !== column.group);
      top.append(h("th", { scope: "colgroup", colspan: span < 0 ? columns.length - i : span }, column.group));
    }
    under.append(name());
  });
  const body = rows.map((row) => {
    const cells = row.cells || row;
    return h("tr", { class: row.mark || null }, cells.map((cell, i) => i === 0
      ? h("th", { scope: "row" }, cell) : h(columns[i].left ? "td.left" : "td", null, cell)));
  });
  const label = `Table ${++nTables}. ${title}`;
  return h("div.card", null, h("div.scroll", { tabindex: 0, role: "region", "aria-label": label },
    h("table", null, h("caption", null, h("div", null, `Table ${nTables}. `, h("span", null, title))),
      h("thead", null, top, deep ? under : null), h("tbody", null, body))));
}

/* ------------------------------------------------------------------------------------------------------------ plots */

const plots = []; // {box, draw, width}: drawn anew for each width, so that letters keep their size
const ruler = document.createElement("canvas").getContext("2d");

function widthOf(text, size) {
  ruler.font = `600 ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

function redraw(plot, width) {
  if (width <= 0 || width === plot.width) return;
  plot.width = width;
  plot.box.replaceChildren(plot.draw(width));
}

let nPlots = 0;

/* draw(width) gives the SVG's {height, children}. */
function plot(title, series, draw) {
  const box = h("div.plot"), name = `Figure ${++nPlots}`;
  const label = `${name}: ${title}. The table below has the same figures.`;
  plots.push({
    box, width: 0,
    draw: (width) => {
      const { height, children } = draw(width);
      return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, children);
    },
  });
  const legend = series && h("ul.legend", null, series.map((one) => h("li", null,
    s("svg", { viewBox: "0 0 28 12", "aria-hidden": "true", class: one.mark },
      s(one.dashed ? "line.curve.dashed" : "line.curve", { x1: 0, x2: 28, y1: 6, y2: 6 }),
      symbol(one.shape, 14, 6, one.hollow)), one.name)));
  return h("figure", null, h("figcaption", null, `${name}. `, h("span", null, title)), legend, box);
}

const round = (x) => Math.round(x * 100) / 100;

/* Series differ in shape too, not in colour alone. */
function symbol(shape, x, y, hollow, title) {
  const r = 4, paths = {
    circle: `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
    square: "M-3.6 -3.6h7.2v7.2h-7.2z",
    diamond: "M0 -5l5 5l-5 5l-5 -5z",
    triangle: "M0 -4.8l4.8 8.6h-9.6z",
  };
  return s(hollow ? "path.mark.hollow" : "path.mark",
    { d: paths[shape || "circle"], transform: `translate(${round(x)} ${round(y)})` }, title && s("title", null, title));
}

const line = (what, x1, y1, x2, y2) =>
  s(`line.${what}`, { x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2) });
const text = (x, y, anchor, words, what) =>
  s(what ? `text.${what}` : "text", { x: round(x), y: round(y), "text-anchor": anchor }, words);

/* Round numbers from at or below low to at or above high, about n of them. */
function ticksOf(low, high, n) {
  const raw = (high - low) / n || Math.abs(high) || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * power >= raw * 0.999) * power, ticks = [];
  for (let i = Math.floor(low / step + 1e-9); ; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
    if (ticks.length > 1 && i * step >= high - step * 1e-9) return ticks;
  }
}

/* 1, 2, 5, 10 ... around low and high. */
function logTicksOf(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 2; power++)
    for (const one of [1, 2, 5]) all.push(Number((one * 10 ** power).toPrecision(6)));
  const first = all.filter((tick) => tick <= low * 1.0001).length - 1;
  const last = all.findIndex((tick) => tick >= high * 0.9999);
  return all.slice(Math.max(first, 0), Math.max(last, first + 1) + 1);
}

/*
 * Lines over x. series: [{name, mark, shape, dashed, points: [{x, y, high, hollow, title}]}]; high is where a whisker
 * ends. o: {x, y: names of the axes, log, tick: format of y, low, high, rule: {y, name},
 * dodge: how far apart series stand that have the same x}. Later series are drawn first, so that the first is on top.
 */
function curves(width, series, o) {
  series = series.map((one) => ({ ...one, points: one.points.filter((p) => isNumber(p.y) && (!o.log || p.y > 0)) }));
  const all = series.flatMap((one) => one.points), height = Math.round(Math.min(380, Math.max(270, width * 0.5)));
  if (all.length === 0) return { height: 30, children: [text(0, 18, "start", "Nothing was measured.")] };
  const ys = all.flatMap((p) => [p.y, p.high]).concat(o.rule ? [o.rule.y] : [], [o.low, o.high]);
  const ticks = o.log ? logTicksOf(least(ys), most(ys)) : ticksOf(least(ys), most(ys), 5);
  const left = Math.ceil(most(ticks.map((tick) => widthOf(o.tick(tick), 12)))) + 10;
  const right = width - 14, top = 30, bottom = height - 44;
  const xs = unique(all.map((p) => p.x)).sort((a, b) => a - b), inset = Math.min(24, (right - left) * 0.06);
  const x = (v) => xs.length === 1 ? (left + right) / 2
    : left + inset + (v - xs[0]) / (xs[xs.length - 1] - xs[0]) * (right - left - 2 * inset);
  const scale = o.log ? Math.log10 : (v) => v, first = scale(ticks[0]), last = scale(ticks[ticks.length - 1]);
  const y = (v) => bottom - (scale(v) - first) / (last - first) * (bottom - top);

  const out = [text(0, 12, "start", o.y)];
  for (const tick of ticks) {
    out.push(line(tick === ticks[0] ? "axis" : "grid", left, y(tick), right, y(tick)));
    out.push(text(left - 8, y(tick) + 4, "end", o.tick(tick)));
  }
  let free = -Infinity; // where the next name on the x axis may begin
  for (const v of xs) {
    const half = widthOf(String(v), 12) / 2;
    if (x(v) - half < free) continue;
    out.push(text(x(v), bottom + 18, "middle", String(v)));
    free = x(v) + half + 5;
  }
  out.push(text((left + right) / 2, height - 6, "middle", o.x));
  if (o.rule) out.push(line("rule", left, y(o.rule.y), right, y(o.rule.y)),
    text(left + 4, y(o.rule.y) + 15, "start", o.rule.name));
  for (let i = series.length - 1; i >= 0; i--) {
    const one = series[i], px = (p) => round(x(p.x) + (i - (series.length - 1) / 2) * (o.dodge || 0));
    const marks = one.points.map((p) => symbol(one.shape, px(p), y(p.y), p.hollow, p.title));
    const whiskers = one.points.filter((p) => p.high > p.y).map((p) => s("path.whisker",
      { d: `M${px(p)} ${round(y(p.y))}V${round(y(p.high))}m-3 0h6` }));
    const d = one.points.map((p, j) => `${j === 0 ? "M" : "L"}${px(p)} ${round(y(p.y))}`).join("");
    out.push(s("g", { class: one.mark }, whiskers,
      d && s(one.dashed ? "path.curve.dashed" : "path.curve", { d }), marks));
  }
  return { height, children: out };
}

/*
 * Rows of a mean with its interval (a forest plot). rows: [{name, strong, mark, mean, low, high, hollow, text, aside}].
 * o: {tick, x: name of the axis, below, above: what lies on the sides of 0, each a list of which the first that fits is
 * shown}. The scale is made for the rows that do not stand aside; those are an arrow where they lie beyond it. In
 * narrow windows names stand over the rows.
 */
function forest(width, rows, o) {
  const narrow = width < 560, each = narrow ? 48 : 34, top = o.below ? 26 : 6;
  const shown = rows.some((r) => !r.aside) ? rows.filter((r) => !r.aside) : rows;
  const ticks = ticksOf(least([0, ...shown.flatMap((r) => [r.low, r.mean])]),
    most([0, ...shown.flatMap((r) => [r.high, r.mean])]), narrow ? 4 : 7);
  const left = narrow ? 12 : Math.ceil(most(rows.map((r) => widthOf(r.name, 13)))) + 26;
  const right = width - (narrow ? 12 : Math.ceil(most(rows.map((r) => widthOf(r.text, 12)))) + 22);
  const first = ticks[0], last = ticks[ticks.length - 1], bottom = top + rows.length * each, height = bottom + 46;
  const x = (v) => left + (v - first) / (last - first) * (right - left), out = [];
  for (const tick of ticks) {
    out.push(line(tick === 0 ? "zero" : "grid", x(tick), top, x(tick), bottom));
    out.push(text(x(tick), bottom + 18, "middle", o.tick(tick)));
  }
  out.push(line("axis", left, bottom, right, bottom), text((left + right) / 2, height - 6, "middle", o.x));
  if (o.below) {
    const fits = (room) => (words) => widthOf(words, 12) + 14 < room;
    out.push(text(x(0) - 8, 16, "end", o.below.find(fits(x(0))) || ""),
      text(x(0) + 8, 16, "start", o.above.find(fits(width - x(0))) || ""));
  }
  rows.forEach((row, i) => {
    const y = top + i * each + (narrow ? 34 : each / 2), base = y + (narrow ? -17 : 4);
    out.push(text(0, base, "start", row.name, row.strong ? "label.strong" : "label"),
      text(width, base, "end", row.text));
    if (!isNumber(row.mean)) return;
    if (row.low < first || row.high > last) {
      const at = row.low < first ? left + 8 : right - 8;
      out.push(s("g", { class: row.mark }, s("path.span", { d: `M${round(at)} ${y}h${row.low < first ? 22 : -22}` }),
        s("path.mark", { d: `M${round(at + (row.low < first ? -8 : 8))} ${y}l${row.low < first ? 8 : -8} -5v10z` },
          s("title", null, `${row.name}: ${row.text}, beyond the scale`))));
      return;
    }
    out.push(s("g", { class: row.mark },
      isNumber(row.low) && row.low < row.high && s("path.span",
        { d: `M${round(x(row.low))} ${y - 4}v8m0 -4H${round(x(row.high))}m0 -4v8` }),
      symbol("square", x(row.mean), y, row.hollow, `${row.name}: ${row.text}`)));
  });
  return { height, children: out };
}

/* Bars from 0. rows: [{name, strong, mark, value, text}]. */
function bars(width, rows, o) {
  const narrow = width < 480, each = narrow ? 46 : 34, high = most(rows.map((r) => r.value));
  const left = narrow ? 0 : Math.ceil(most(rows.map((r) => widthOf(r.name, 13)))) + 16;
  const right = width - Math.ceil(most(rows.map((r) => widthOf(r.text, 12)))) - 14, out = [];
  rows.forEach((row, i) => {
    const y = i * each + (narrow ? 22 : 7), name = row.strong ? "label.strong" : "label";
    const size = row.value > 0 ? Math.max(row.value / high * (right - left), 1) : 0;
    out.push(text(0, y + (narrow ? -7 : 14), "start", row.name, name));
    out.push(s("g", { class: row.mark }, s("rect.bar", { x: left, y, width: round(size), height: 20, rx: 2 })),
      text(left + size + 8, y + 14, "start", row.text));
  });
  const height = rows.length * each + 24;
  out.push(text(left, height - 6, "start", o.x));
  return { height, children: out };
}
