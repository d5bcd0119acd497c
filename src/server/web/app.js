/*
 * The dashboard: four views over the HTTP interface of this server (docs/http.md), without a build step.
 *
 * Every text that comes from the server is put in as text, never as markup. The views are panels of index.html; the
 * hash says which one is shown: #/overview, #/users/USER/AGENT/RUN, #/chat, #/engine.
 */
"use strict";

const POLL_MS = 2000;
const HISTORY_MS = 5 * 60 * 1000;
const PAGE = 25;         // facts a page
const SEARCH_K = 50;     // facts a search shows
const RECENT_ROWS = 12;
const MEMORIES_OPEN = 5; // memories shown under an answer before "show all"

const $ = (id) => document.getElementById(id);

/* Storage may be forbidden; the page then forgets, and works. */
function recall(storage, key) {
  try { return window[storage].getItem(key); } catch { return null; }
}
function keep(storage, key, value) {
  try {
    if (value === null) window[storage].removeItem(key);
    else window[storage].setItem(key, value);
  } catch { /* as above */ }
}

/* ---------------------------------------------------------------------------------------------------------- theme */

const darkQuery = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : darkQuery.matches;
}

const chosenTheme = recall("localStorage", "inferscale-theme");
if (chosenTheme === "dark" || chosenTheme === "light") document.documentElement.dataset.theme = chosenTheme;

/* ---------------------------------------------------------------------------------------------------------- pieces */

/* h("p.note", {title: "x"}, "text", node): an element. Attributes that are null or false are left out. */
function h(what, attributes, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length > 0) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/* Only what changes is set: an alert that is set again is read aloud again. */
function setText(id, text) {
  const node = $(id);
  if (node && node.textContent !== text) node.textContent = text;
}

function show(node, visible) {
  node.hidden = !visible;
}

const count = new Intl.NumberFormat("en");
const DASH = "–";
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

function formatCount(n) {
  return isNumber(n) ? count.format(n) : DASH;
}
function formatMs(ms) {
  if (!isNumber(ms)) return DASH;
  if (ms >= 60000) return `${(ms / 60000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}
function formatBytes(n) {
  if (!isNumber(n)) return DASH;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return `${unit === 0 ? count.format(n) : n >= 100 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
}
function formatRate(x) {
  return isNumber(x) ? `${x >= 100 ? x.toFixed(0) : x.toFixed(1)} /s` : DASH;
}
function formatTimes(x) {
  return isNumber(x) ? `${x >= 10 ? x.toFixed(0) : x.toFixed(1)}×` : DASH;
}
function formatPercent(part) {
  return isNumber(part) ? `${(part * 100).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %` : DASH;
}
function formatDuration(seconds) {
  if (!isNumber(seconds)) return DASH;
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}
const two = (n) => String(n).padStart(2, "0");
function formatClock(date) {
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
/* A point in time, in the reader's own zone. What is no time is shown as it came. */
function formatTime(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}
function timeNode(text, before) {
  return h("span", null, before || null, h("time", { datetime: text }, formatTime(text)));
}
function plural(n, one, many) {
  return `${formatCount(n)} ${n === 1 ? one : many || `${one}s`}`;
}

/* The smallest value that at least `part` of the sorted values do not exceed. */
function percentile(sorted, part) {
  return sorted.length === 0 ? NaN : sorted[Math.min(sorted.length - 1, Math.ceil(part * sorted.length) - 1)];
}
const ascending = (values) => values.sort((a, b) => a - b);

function toast(text) {
  const node = h("p", null, text);
  $("toasts").append(node);
  setTimeout(() => node.remove(), 6000);
}

/* What went wrong, and a button that does it again. */
function problem(box, error, again) {
  box.replaceChildren(h("p.error", { role: "alert" }, error.message),
                      again ? h("button", { type: "button", click: again }, "Try again") : null);
  show(box, true);
}

/* ------------------------------------------------------------------------------------------------------------- API */

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let apiKey = recall("sessionStorage", "inferscale-key");

async function request(method, path, { query, body, signal } = {}) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(query || {}))
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  const headers = {};
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { method, headers, signal, cache: "no-store",
                                  body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
    throw new ApiError(0, "The server does not answer. See whether “inferscale serve” still runs.");
  }
  if (response.ok) return response;

  const answer = await response.json().catch(() => null);
  let message = answer?.error?.message || `The server answered ${response.status} ${response.statusText}`.trim();
  const wait = response.headers.get("Retry-After");
  if (wait && /^\d+$/.test(wait)) message += ` (try again in ${wait} s)`;
  if (response.status === 401) askForKey();
  throw new ApiError(response.status, message);
}

async function api(method, path, options) {
  const response = await request(method, path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
    throw new ApiError(response.status, "The server's answer broke off. Try again.");
  }
}

function askForKey() {
  setText("key-why", apiKey ? "This server does not accept the key. Type another one."
                            : "This server needs an API key. It is kept until this tab is closed.");
  show($("key-drop"), Boolean(apiKey));
  if ($("key-form").hidden) {
    show($("key-form"), true);
    $("key").focus();
  }
}

function startKey() {
  show($("key-open"), Boolean(apiKey));
  $("key-open").addEventListener("click", () => {
    const hidden = !$("key-form").hidden;
    show($("key-form"), !hidden);
    setText("key-why", "A key is in use. It is kept until this tab is closed.");
    show($("key-drop"), true);
    if (!hidden) $("key").focus();
  });
  $("key-form").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && apiKey) show($("key-form"), false);
  });
  const use = (key) => {
    apiKey = key;
    keep("sessionStorage", "inferscale-key", key);
    $("key").value = "";
    show($("key-form"), false);
    show($("key-open"), Boolean(key));
    poll();
    enterView();
  };
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = $("key").value.trim();
    if (key !== "") use(key);
  });
  $("key-drop").addEventListener("click", () => use(null));
}

/* ---------------------------------------------------------------------------------------------------------- status */

let server = null; // the last answer of /v1/status
let pollTimer = 0;
let polling = false;

async function poll() {
  clearTimeout(pollTimer);
  if (polling || document.hidden) return;
  polling = true;
  let failed = null;
  try {
    server = await api("GET", "/v1/status", { signal: AbortSignal.timeout(8000) });
  } catch (error) {
    failed = error;
  }
  polling = false;
  if (failed?.status !== 401) pollTimer = setTimeout(poll, POLL_MS); // without a key there is nothing to ask for

  const offline = failed && failed.status !== 401;
  show($("offline"), offline);
  if (offline) {
    connection("bad", "Offline");
    const why = failed.name === "TimeoutError" ? "The server has not answered for 8 s." : failed.message;
    setText("offline", `${why} ${server ? "What you see is the last that was known. " : ""}Trying again every 2 s.`);
  } else if (failed) {
    connection("warn", "Key needed");
  } else {
    connection("good", server.requests?.running > 0 ? "Answering" : "Idle");
    onStatus();
  }
}

function connection(kind, text) {
  $("connection").dataset.kind = kind;
  setText("connection-text", text);
}

function onStatus() {
  setText("version", server.version ? `v${server.version}` : "");
  const now = Date.now();
  const last = samples[samples.length - 1];
  if (last && now - last.t > 5 * POLL_MS) samples.push({ t: last.t + 1, tps: null, rps: null }); // the tab was away
  samples.push({ t: now, tps: server.rates?.tokens_per_s ?? null, rps: server.rates?.requests_per_s ?? null });
  while (samples[0].t < now - HISTORY_MS) samples.shift();
  renderStatus();
  refreshStates();
  renderHint();
}

/* Charts measure themselves, so only what is seen is drawn. */
function renderStatus() {
  if (!server) return;
  if (view === "overview") renderOverview();
  if (view === "engine") renderEngine();
}

/* -------------------------------------------------------------------------------------------------------- overview */

const samples = []; // {t, tps, rps}, one each poll
let charts = null;
let drawnRequests = "";

const succeeded = (r) => r.status === 200 && r.ttft_ms > 0;
const isInjected = (r) => succeeded(r) && r.tokens_injected > 0;
const hasEstimate = (r) => r.mode !== "off" && r.prefill_estimate_ms > 0;
const speedUp = (r) => r.prefill_estimate_ms / r.ttft_ms;

function renderOverview() {
  const recent = server.recent || [];
  const stats = server.stats || {};
  const requests = server.requests || {};
  const injected = recent.filter(isInjected);
  const ttft = ascending(injected.map((r) => r.ttft_ms));
  const speed = ascending(injected.filter(hasEstimate).map(speedUp));

  const of = ttft.length === 0 ? "nothing injected yet" : `last ${formatCount(ttft.length)} injected`;
  setText("tile-p50", formatMs(percentile(ttft, 0.5)));
  setText("tile-p95", formatMs(percentile(ttft, 0.95)));
  setText("note-p50", of);
  setText("note-p95", of);
  setText("tile-speed", formatTimes(percentile(speed, 0.5)));
  setText("tile-rps", formatRate(server.rates?.requests_per_s));
  setText("note-rps", `${formatCount(requests.total)} since start`);
  setText("tile-tps", formatRate(server.rates?.tokens_per_s));
  setText("tile-running", formatCount(requests.running));
  setText("note-running", `${formatCount(requests.queued)} queued`);
  setText("tile-facts", formatCount(stats.facts_ready));
  const pending = stats.facts_pending > 0;
  setText("note-facts", pending ? `${formatCount(stats.facts_pending)} pending` : `of ${formatCount(stats.facts)}`);
  setText("tile-errors", formatCount(requests.errors));
  setText("note-errors", `${formatCount(requests.refused)} refused`);
  $("tile-errors").classList.toggle("bad", requests.errors > 0);

  renderTiers(stats);
  const drawn = `${recent.length} ${recent[recent.length - 1]?.id} ${isDark()}`;
  if (drawn !== drawnRequests) {
    renderRecent(recent);
    drawTtft(recent);
    drawnRequests = drawn;
  }
  drawThroughput();
}

function meter(label, value, part, note) {
  const bar = h("div.bar", {
    role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round((part || 0) * 100), "aria-valuetext": `${value}, ${note}`,
  }, h("span"));
  bar.firstChild.style.width = `${Math.min(1, part || 0) * 100}%`;
  show(bar.firstChild, part > 0);
  const head = h("p", null, h("span", null, label), h("strong", null, value));
  return h("div.tier", null, head, bar, h("p.note", null, note));
}

let drawnTiers = "";
function renderTiers(stats) {
  const text = JSON.stringify(stats);
  if (text === drawnTiers) return;
  drawnTiers = text;
  const looked = stats.host_hits + stats.host_misses;
  const hits = looked > 0 ? stats.host_hits / looked : NaN;
  const host = stats.host_bytes / stats.host_budget;
  const most = Math.max(stats.chunk_bytes, stats.database_bytes, stats.vector_bytes, 1);
  $("tiers").replaceChildren(
    meter("Host memory", formatBytes(stats.host_bytes), host,
          `${formatPercent(host)} of ${formatBytes(stats.host_budget)}, ${plural(stats.host_chunks, "chunk")}`),
    meter("Hit rate", formatPercent(hits), hits, looked > 0
      ? `${formatCount(stats.host_hits)} of ${plural(looked, "chunk")} found in memory` : "no chunk was needed yet"),
    meter("KV state on disk", formatBytes(stats.chunk_bytes), stats.chunk_bytes / most, plural(stats.chunks, "chunk")),
    meter("Database", formatBytes(stats.database_bytes), stats.database_bytes / most,
          `${plural(stats.facts, "fact")}, ${plural(stats.turns, "turn")}, ${plural(stats.scopes, "scope")}`),
    meter("Vectors", formatBytes(stats.vector_bytes), stats.vector_bytes / most, "of the facts, for search"),
    h("p.note", null, "Disk, database and vectors share one scale."));
}

function renderRecent(recent) {
  setText("recent-note", recent.length > RECENT_ROWS ? `the last ${RECENT_ROWS} of ${recent.length} kept` : "");
  if (recent.length === 0) {
    const text = "No request yet. Ask something in the Chat view, or send one to /v1/chat/completions.";
    return $("recent").replaceChildren(h("tr", null, h("td.empty", { colspan: 10 }, text)));
  }
  $("recent").replaceChildren(...recent.slice(-RECENT_ROWS).reverse().map((r) => h("tr", null,
    h("td", null, formatClock(new Date(r.time * 1000))),
    h("td.name", { title: r.user }, r.user),
    h("td", null, h(r.mode === "inject" ? "span.mode.inject" : "span.mode", null, r.mode)),
    h("td.num.strong", null, formatMs(r.ttft_ms)),
    h("td.num", null, r.mode === "off" ? DASH : formatMs(r.prefill_estimate_ms)),
    h("td.num", null, formatCount(r.tokens_injected)),
    h("td.num", null, formatCount(r.tokens_prefilled)),
    h("td.num", null, formatCount(r.tokens_generated)),
    h("td.num", null, formatMs(r.total_ms)),
    h("td", null, r.status === 200 ? "200" : h("span.bad", null, `${r.status}`)))));
}

/* A colour of the style sheet as the browser sees it now; a canvas knows no custom properties. */
function color(name, alpha) {
  const probe = $("connection");
  probe.style.outlineColor = `var(${name})`;
  const [r, g, b] = getComputedStyle(probe).outlineColor.match(/[\d.]+/g);
  probe.style.outlineColor = "";
  return alpha === undefined ? `rgb(${r}, ${g}, ${b})` : `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

/* 1, 2, 5, 10, ... : the steps of a logarithmic axis that people read easily. */
function steps(low, high) {
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const digit of [1, 2, 5]) values.push(digit * 10 ** power);
  const first = values.findLastIndex((v) => v <= low);
  const last = values.findIndex((v) => v >= high);
  return values.slice(Math.max(first, 0), last + 1);
}

const small = { size: 11 };
const noGrid = { display: false, drawBorder: false };

function axis(extra) {
  const ticks = { color: color("--muted"), padding: 6, font: small, maxRotation: 0, ...extra.ticks };
  return { grid: { color: color("--line"), drawBorder: false, tickLength: 0 }, ...extra, ticks };
}

function tooltip(callbacks) {
  return {
    backgroundColor: color("--raised"), borderColor: color("--line-strong"), borderWidth: 1,
    titleColor: color("--text"), bodyColor: color("--text"), footerColor: color("--muted"),
    padding: 10, cornerRadius: 6, boxPadding: 4, usePointStyle: true, callbacks,
  };
}

function makeCharts() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.animation = false; // new points every two seconds: movement would never end
  Chart.defaults.maintainAspectRatio = false;

  const make = (id) => new Chart($(id), { type: "line", data: { datasets: [] }, options: {} });
  charts = { ttft: make("chart-ttft"), tps: make("chart-tps"), rps: make("chart-rps") };
}

function drawTtft(recent) {
  if (!charts) {
    setText("empty-ttft", "The charts did not load (/chart.js). The table below has the numbers.");
    return show($("empty-ttft"), true);
  }
  const good = recent.filter(succeeded);
  show($("empty-ttft"), good.length === 0);
  if (good.length === 0)
    setText("empty-ttft", "No request yet. Ask something in the Chat view and its first token shows up here.");

  const chart = charts.ttft;
  const accent = color("--accent"), muted = color("--muted"), surface = color("--surface");
  const narrow = chart.width < 500;
  const set = (label, list, y, style) => ({
    label, data: list.map((r) => ({ x: r.id, y: y(r), r })),
    borderColor: muted, backgroundColor: surface, borderWidth: 1.5, showLine: false, clip: 8,
    pointHoverRadius: 5, pointHitRadius: 8, order: 2, ...style,
  });
  const ttft = (r) => r.ttft_ms;
  const estimate = (r) => r.prefill_estimate_ms;
  chart.data.datasets = [
    set("Injected", good.filter(isInjected), ttft,
        { showLine: true, borderColor: color("--accent", 0.35), backgroundColor: accent, pointBorderColor: accent,
          pointRadius: narrow ? 1.5 : 2.5, order: 1 }),
    set("Re-prefill, estimated", good.filter(hasEstimate), estimate,
        { pointStyle: "line", pointRadius: narrow ? 2 : 4, order: 3 }),
    set("Prefilled", good.filter((r) => r.mode !== "off" && !isInjected(r)), ttft,
        { pointStyle: "triangle", pointRadius: 4.5, borderColor: color("--text") }),
    set("No memory", good.filter((r) => r.mode === "off"), ttft, { pointRadius: 3 }),
  ].filter((s) => s.data.length > 0);

  const values = [...good.map(ttft), ...good.filter(hasEstimate).map(estimate)];
  const scale = values.length > 0 ? steps(Math.min(...values), Math.max(...values)) : steps(10, 1000);
  chart.options = {
    interaction: { mode: "nearest", axis: "x", intersect: false },
    scales: {
      x: axis({ type: "linear", min: recent[0]?.id, max: recent[recent.length - 1]?.id, grid: noGrid,
                title: { display: true, text: "request", color: muted, font: small },
                ticks: { precision: 0, includeBounds: false, autoSkipPadding: 24, callback: (v) => `#${v}` } }),
      y: axis({ type: "logarithmic", min: scale[0], max: scale[scale.length - 1],
                afterBuildTicks: (a) => { a.ticks = scale.map((value) => ({ value })); },
                ticks: { autoSkip: true, autoSkipPadding: 8, callback: shortMs } }),
    },
    plugins: {
      legend: { align: "start",
                labels: { color: color("--text"), usePointStyle: true, boxWidth: 7, boxHeight: 7, padding: 14 } },
      tooltip: tooltip({
        title: ([item]) => {
          const r = item?.raw.r;
          return r ? `Request #${r.id}, ${r.user}, ${formatClock(new Date(r.time * 1000))}` : "";
        },
        label: (item) => ` ${item.dataset.label}: ${formatMs(item.raw.y)}`,
        footer: ([item]) => {
          const r = item?.raw.r;
          return r && isInjected(r) && hasEstimate(r)
            ? `${formatTimes(speedUp(r))} sooner, ${plural(r.tokens_injected, "token")} injected` : "";
        },
      }),
    },
  };
  chart.update();
}

function shortMs(v) {
  return v >= 1000 ? `${v / 1000} s` : `${v} ms`;
}

function ago(v) {
  return v === 0 ? "now" : v % 60 === 0 ? `${-v / 60} min` : `${-v} s`;
}

function drawThroughput() {
  if (!charts) return;
  const now = Date.now();
  const minute = 60 * 1000; // the axis grows with what there is to show
  const span = Math.min(HISTORY_MS, Math.max(1, Math.ceil((now - samples[0].t) / minute)) * minute) / 1000;
  for (const [name, what] of [["tps", "tokens"], ["rps", "requests"]]) {
    const chart = charts[name];
    chart.data.datasets = [{
      data: samples.map((s) => ({ x: (s.t - now) / 1000, y: s[name] })),
      borderColor: color("--accent"), backgroundColor: color("--accent", 0.14), fill: "origin", borderWidth: 1.5,
      pointRadius: samples.length < 2 ? 2 : 0, pointHoverRadius: 4, pointHitRadius: 8,
    }];
    chart.options = {
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: axis({ type: "linear", min: -span, max: 0, grid: noGrid,
                  ticks: { stepSize: span > 120 ? 60 : span / 4, callback: ago } }),
        y: axis({ beginAtZero: true, suggestedMax: 1, ticks: { maxTicksLimit: 4, callback: (v) => formatCount(v) } }),
      },
      plugins: {
        legend: { display: false },
        tooltip: tooltip({
          title: ([item]) => item ? formatClock(new Date(now + item.raw.x * 1000)) : "",
          label: (item) => ` ${formatRate(item.raw.y).replace(" /s", "")} ${what} a second`,
        }),
      },
    };
    chart.update();
  }
  setText("now-tps", formatRate(server.rates?.tokens_per_s));
  setText("now-rps", formatRate(server.rates?.requests_per_s));
}

/* ---------------------------------------------------------------------------------------------------------- scopes */

/* A scope is whose memory: {user, agent, run}. */
const scopeOf = (entry) => ({ user: entry.user || "", agent: entry.agent || "", run: entry.run || "" });
const sameScope = (a, b) => a && b && a.user === b.user && a.agent === b.agent && a.run === b.run;

function scopeHash(scope) {
  const parts = [scope.user, scope.agent, scope.run];
  while (parts.length > 1 && parts[parts.length - 1] === "") parts.pop();
  return `#/users/${parts.map(encodeURIComponent).join("/")}`;
}
function scopeDetail(scope) {
  return [scope.agent && `agent ${scope.agent}`, scope.run && `run ${scope.run}`].filter(Boolean).join(", ");
}
function scopeName(scope) {
  const detail = scopeDetail(scope);
  return detail ? `${scope.user} (${detail})` : scope.user;
}
/* Only what is set: an empty agent is no agent. */
function scopeFields(scope) {
  return Object.fromEntries(Object.entries(scope).filter(([, value]) => value !== ""));
}

const users = { list: [], next: null, loaded: false };

async function loadUsers(more) {
  try {
    const answer = await api("GET", "/v1/users", { query: { after: more ? users.next : null, limit: 200 } });
    users.list = more ? users.list.concat(answer.users) : answer.users;
    users.next = answer.next ?? null;
    users.loaded = true;
    show($("user-empty"), false);
    renderUsers();
    renderChatUsers();
    if (facts.scope) renderNote();
  } catch (error) {
    problem($("user-empty"), error, () => loadUsers(more));
  }
}

function renderUsers() {
  const wanted = $("user-name").value.trim().toLowerCase();
  const shown = users.list.filter((u) => `${u.user} ${scopeDetail(u)}`.toLowerCase().includes(wanted));
  $("user-list").replaceChildren(...shown.map((u) => {
    const scope = scopeOf(u);
    const detail = scopeDetail(scope);
    const current = sameScope(scope, facts.scope) ? "true" : null;
    return h("li", null, h("a", { href: scopeHash(scope), "aria-current": current },
      h("span.user", { title: scope.user }, scope.user),
      detail ? h("span.detail", { title: detail }, detail) : null,
      h("span.muted", null, `${plural(u.facts, "fact")}${u.turns > 0 ? `, ${plural(u.turns, "turn")}` : ""}`)));
  }));
  show($("user-more"), users.next !== null && wanted === "");
  if (shown.length > 0) return show($("user-empty"), false);
  setText("user-empty", users.list.length === 0
    ? "Nobody is remembered yet. Type a name above and press Open to add a first fact."
    : "No user of that name. Press Open to start one.");
  show($("user-empty"), true);
}

/* ----------------------------------------------------------------------------------------------------------- facts */

const facts = {
  scope: null,
  before: [],   // the `after` of the pages behind this one
  after: 0,     // of this page
  next: null,   // of the next one
  query: "",
  rows: [],     // what is shown
  fresh: [],    // ids added while this user is open, shown first when the page does not have them
  wave: 0,      // counts loads: an answer that comes late is dropped
};

function openScope(scope) {
  if (sameScope(scope, facts.scope)) return;
  Object.assign(facts, { scope, before: [], after: 0, next: null, query: "", rows: [], fresh: [] });
  $("search").value = "";
  $("add-text").value = "";
  show($("add-error"), false);
  show($("browser-empty"), scope === null);
  show($("browser-body"), scope !== null);
  renderUsers();
  if (scope === null) return;
  setText("browser-title", scope.user);
  $("facts").replaceChildren();
  if (matchMedia("(max-width: 760px)").matches) $("browser").scrollIntoView(); // the list stands above it there
  loadFacts();
}

/* What is to be shown: a search's result; or a page, and what was added lately if the page does not have it. */
async function fetchRows() {
  const { scope, query, after, fresh } = facts;
  if (query !== "") {
    const answer = await api("POST", "/v1/memories/search", { body: { ...scopeFields(scope), query, k: SEARCH_K } });
    return { rows: answer.memories, extra: [], next: null };
  }
  const answer = await api("GET", "/v1/memories", { query: { ...scope, after: after || null, limit: PAGE } });
  const missing = fresh.filter((id) => !answer.memories.some((f) => f.id === id));
  const extra = await Promise.all(missing.map((id) => api("GET", `/v1/memories/${id}`).catch(() => null)));
  return { rows: answer.memories, extra: extra.filter(Boolean), next: answer.next ?? null };
}

async function loadFacts() {
  const wave = ++facts.wave;
  $("facts").setAttribute("aria-busy", "true");
  let found = { rows: [], extra: [], next: null }, failed = null;
  try {
    found = await fetchRows();
  } catch (error) {
    if (error.status !== 404) failed = error; // a user without facts may be one that the server does not know
  }
  if (wave !== facts.wave) return;
  $("facts").removeAttribute("aria-busy");
  facts.rows = [...found.extra, ...found.rows];
  facts.next = found.next;
  renderFacts(found.extra.length);
  if (failed) problem($("facts-problem"), failed, loadFacts);
}

function renderFacts(nFresh) {
  const { rows, query, scope } = facts;
  renderNote();
  const behind = facts.before.length === 0 ? "From the beginning" : "This page";
  $("facts").replaceChildren(...rows.flatMap((fact, i) => {
    const nodes = [factNode(fact)];
    if (nFresh > 0 && i === 0) nodes.unshift(h("li.divider", null, "Just added"));
    if (nFresh > 0 && i === nFresh) nodes.unshift(h("li.divider", null, behind));
    return nodes;
  }));

  const box = $("facts-problem");
  show(box, rows.length === 0);
  if (rows.length === 0)
    box.replaceChildren(query !== "" ? `Nothing fits “${query}”. Try other words, or clear the search.`
      : facts.before.length > 0 ? "This page is empty now. Go back to the previous one."
      : `Nothing is remembered of ${scope.user} yet. Add a first fact above.`);
  setText("search-note", query === "" ? "" : `${plural(rows.length, "match", "matches")}, best first`);

  const paged = query === "" && (facts.before.length > 0 || facts.next !== null);
  show($("pager"), paged);
  $("page-back").disabled = facts.before.length === 0;
  $("page-next").disabled = facts.next === null;
  setText("page-note", `Page ${facts.before.length + 1}`);
}

function stateBadge(state) {
  return h(`span.badge.${state === "ready" ? "ready" : "pending"}`, {
    title: state === "ready" ? "Its KV state is stored: it is injected" : "Not encoded yet: it is prefilled as text",
  }, state);
}

function metadataChips(metadata) {
  if (!metadata || typeof metadata !== "object") return [];
  return Object.entries(metadata).map(([key, value]) =>
    h("span.chip", null, `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`));
}

function factNode(fact) {
  const node = h("li.fact", { "data-id": fact.id });
  const name = fact.text.length > 40 ? `${fact.text.slice(0, 40)}…` : fact.text;
  const button = (label, click) =>
    h("button.quiet", { type: "button", "aria-label": `${label}: ${name}`, click }, label);
  const text = h("p.fact-text", null, fact.text);
  const history = button("History", () => toggleHistory(node, fact, history));
  history.setAttribute("aria-expanded", "false");
  node.append(text,
    h("div.fact-foot", null,
      h("div.fact-meta", null, stateBadge(fact.state), h("span", null, `#${fact.id}`),
        isNumber(fact.score) ? h("span", null, `score ${fact.score.toFixed(3)}`) : null,
        fact.time ? timeNode(fact.time) : null,
        fact.source ? h("span", { title: "source" }, fact.source) : null,
        metadataChips(fact.metadata)),
      h("div.fact-actions", null, button("Edit", () => editFact(node, fact)), history,
        button("Forget", () => forgetFact(node, fact)))));
  return node;
}

function editFact(node, fact) {
  const text = node.querySelector(".fact-text");
  if (!text) return; // it is being edited
  const box = h("textarea", { rows: 3, maxlength: 4096, "aria-label": `Text of fact ${fact.id}`, required: true });
  box.value = fact.text;
  const error = h("p.error", { role: "alert", hidden: true });
  const leave = () => {
    form.replaceWith(text);
    node.querySelector(".fact-actions button").focus();
  };
  const save = async () => {
    const wanted = box.value.trim();
    if (wanted === fact.text) return leave();
    if (wanted === "") {
      error.textContent = "A fact needs a text. To delete it, use Forget.";
      return show(error, true);
    }
    form.inert = true;
    try {
      const answer = await api("PATCH", `/v1/memories/${fact.id}`, { body: { text: wanted } });
      const fresh = factNode({ ...fact, ...answer });
      facts.rows = facts.rows.map((f) => f === fact || f.id === fact.id ? { ...fact, ...answer } : f);
      node.replaceWith(fresh);
      fresh.querySelector(".fact-actions button").focus();
      toast(`Fact ${fact.id} is changed and will be encoded again.`);
    } catch (why) {
      form.inert = false;
      error.textContent = why.message;
      show(error, true);
      box.focus();
    }
  };
  const form = h("form.edit", {
    submit: (event) => { event.preventDefault(); save(); },
    keydown: (event) => {
      if (event.key === "Escape") { event.preventDefault(); leave(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); save(); }
    },
  }, box, error, h("div.row", null, h("button.primary", { type: "submit" }, "Save"),
                   h("button", { type: "button", click: leave }, "Cancel"),
                   h("span.muted.keys", null, "Ctrl+Enter saves, Esc cancels")));
  text.replaceWith(form);
  box.focus();
  box.setSelectionRange(box.value.length, box.value.length);
}

async function toggleHistory(node, fact, button) {
  const open = node.querySelector(".history");
  button.setAttribute("aria-expanded", String(!open));
  if (open) return open.remove();
  const list = h("div.history", { role: "group", "aria-label": `History of fact ${fact.id}` },
                 h("p.muted", null, "Loading"));
  node.append(list);
  try {
    const { editions } = await api("GET", `/v1/memories/${fact.id}/history`);
    list.replaceChildren(h("ol", { reversed: true }, [...editions].reverse().map((edition, i) => h("li", null,
      h("p", null, edition.text),
      h("div.fact-meta", null, i === 0 ? h("span.badge.ready", null, "current") : null,
        edition.changed ? timeNode(edition.changed, i === editions.length - 1 ? "added " : "changed ") : null,
        edition.time ? timeNode(edition.time, "said ") : null, metadataChips(edition.metadata))))));
  } catch (error) {
    list.replaceChildren(h("p.error", { role: "alert" }, error.message));
  }
}

/*
 * Encoding takes a while; badges follow it without touching a row that is being edited.  Asked at each poll as long as
 * a pending fact is in sight: a fact that is encoded between two polls leaves the counts as they were.
 */
async function refreshStates() {
  if (view !== "users" || !facts.scope || !facts.rows.some((f) => f.state === "pending")) return;
  const wave = facts.wave;
  const found = await fetchRows().catch(() => null);
  if (!found || wave !== facts.wave) return;
  for (const now of [...found.extra, ...found.rows]) {
    const fact = facts.rows.find((f) => f.id === now.id);
    if (!fact || fact.state === now.state) continue;
    fact.state = now.state;
    $("facts").querySelector(`[data-id="${fact.id}"] .badge`)?.replaceWith(stateBadge(now.state));
  }
}

/* ---------------------------------------------------------------------------------------------- add, search, forget */

async function addFact() {
  const { scope } = facts;
  const said = $("add-time").value;
  const fact = { text: $("add-text").value.trim() };
  if (fact.text === "") return;
  if (said) fact.time = new Date(said).toISOString().replace(".000Z", "Z");
  show($("add-error"), false);
  $("add-form").inert = true;
  try {
    const answer = await api("POST", "/v1/memories", { body: { ...scopeFields(scope), facts: [fact] } });
    if (!sameScope(scope, facts.scope)) return;
    $("add-text").value = "";
    $("add-time").value = "";
    const ids = answer.memories.map((m) => m.id);
    facts.fresh = [...ids, ...facts.fresh].slice(0, 10);
    facts.query = $("search").value = "";
    toast(`Fact ${ids[0]} is stored. It is used at once, and injected as soon as it is encoded.`);
    await loadUsers();
    await loadFacts();
    $("facts").querySelector(`[data-id="${ids[0]}"]`)?.classList.add("new");
  } catch (error) {
    setText("add-error", error.message);
    show($("add-error"), true);
  } finally {
    $("add-form").inert = false;
    if (view === "users") $("add-text").focus();
  }
}

let forgetting = null; // the row that the dialog is about

function forgetFact(node, fact) {
  forgetting = { node, fact };
  setText("forget-text", fact.text);
  show($("forget-error"), false);
  $("forget-dialog").showModal();
}

async function forgetForGood() {
  const { node, fact } = forgetting;
  $("forget-yes").disabled = true;
  try {
    await api("DELETE", `/v1/memories/${fact.id}`);
  } catch (error) {
    if (error.status !== 404) {
      setText("forget-error", error.message);
      return show($("forget-error"), true);
    }
  } finally {
    $("forget-yes").disabled = false;
  }
  $("forget-dialog").close();
  const next = node.nextElementSibling || node.previousElementSibling;
  const wasFresh = facts.fresh.includes(fact.id);
  facts.rows = facts.rows.filter((f) => f.id !== fact.id);
  facts.fresh = facts.fresh.filter((id) => id !== fact.id);
  node.remove();
  (next?.querySelector(".fact-actions button:last-child") || $("browser-title")).focus();
  toast(`Fact ${fact.id} is forgotten.`);
  await loadUsers();
  if (wasFresh || facts.rows.length === 0) await loadFacts();
  if (document.activeElement === document.body) $("browser-title").focus(); // the row that had it was drawn anew
}

/* "3 facts, 2 turns": what the list of users says of a scope; nothing for one that is new or not loaded yet. */
function contents(scope) {
  const entry = users.list.find((u) => sameScope(scopeOf(u), scope));
  if (!entry) return "";
  return plural(entry.facts, "fact") + (entry.turns > 0 ? `, ${plural(entry.turns, "turn")}` : "");
}

function renderNote() {
  const has = contents(facts.scope);
  setText("browser-note", [scopeDetail(facts.scope), has].filter(Boolean).join(", "));
  $("forget-all").disabled = has === "" && facts.rows.length === 0;
}

async function forgetAll() {
  const { scope } = facts;
  $("all-yes").disabled = true;
  try {
    const answer = await api("DELETE", "/v1/memories", { query: scope });
    $("all-dialog").close();
    toast(`Everything of ${scope.user} is forgotten: ${plural(answer.deleted, "fact")}.`);
    facts.fresh = [];
    Object.assign(facts, { before: [], after: 0, query: "" });
    $("search").value = "";
    await loadUsers();
    await loadFacts();
    $("browser-title").focus();
  } catch (error) {
    setText("all-error", error.message);
    show($("all-error"), true);
    $("all-yes").disabled = false;
  }
}

function startUsers() {
  $("user-name").addEventListener("input", renderUsers);
  $("user-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("user-name").value.trim();
    if (name === "") return $("user-name").focus();
    location.hash = scopeHash({ user: name, agent: "", run: "" });
    $("user-name").value = "";
    route();
    renderUsers();
    $("add-text").focus();
  });
  $("user-more").addEventListener("click", () => loadUsers(true));

  $("add-form").addEventListener("submit", (event) => { event.preventDefault(); addFact(); });
  $("add-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); addFact(); }
  });

  let typing = 0;
  const search = () => {
    clearTimeout(typing);
    const query = $("search").value.trim();
    if (query === facts.query) return;
    facts.query = query;
    loadFacts();
  };
  $("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 250); });
  $("search-form").addEventListener("submit", (event) => { event.preventDefault(); search(); });

  const turn = async (after) => {
    Object.assign(facts, { after, fresh: [] });
    await loadFacts();
    $("browser-title").focus();
  };
  $("page-next").addEventListener("click", () => {
    facts.before.push(facts.after);
    turn(facts.next);
  });
  $("page-back").addEventListener("click", () => turn(facts.before.pop()));

  $("forget-yes").addEventListener("click", forgetForGood);
  $("forget-all").addEventListener("click", () => {
    const { scope } = facts;
    const what = `${contents(scope) || "All facts"} of ${scopeName(scope)}`;
    setText("all-what", `${what} are deleted for good, with all that was made of them.`);
    setText("all-label", `Type ${scope.user} to confirm`);
    $("all-name").value = "";
    $("all-yes").disabled = true;
    show($("all-error"), false);
    $("all-dialog").showModal();
  });
  $("all-name").addEventListener("input", () => { $("all-yes").disabled = $("all-name").value !== facts.scope.user; });
  $("all-no").addEventListener("click", () => $("all-dialog").close());
  $("all-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if ($("all-name").value === facts.scope.user) forgetAll();
  });
  $("browser-ask").addEventListener("click", () => chooseChatUser(facts.scope));
}

/* ------------------------------------------------------------------------------------------------------------ chat */

const chat = { scopes: [], scope: null, history: [], picked: false, running: null, empty: null };

function chooseChatUser(scope) {
  if (!sameScope(scope, chat.scope)) newChat();
  chat.scope = scope;
  chat.picked = true;
  renderChatUsers();
}

function renderChatUsers() {
  const scopes = users.list.map(scopeOf);
  // Until one is picked here, it is the user whose facts were looked at.
  const opened = (chat.picked && chat.scope) || facts.scope || scopes[0] || { user: "default", agent: "", run: "" };
  if (!scopes.some((s) => sameScope(s, opened))) scopes.unshift(opened);
  chat.scope = opened;
  chat.scopes = scopes;
  $("chat-user").replaceChildren(...scopes.map((s, i) => h("option", { value: i }, scopeName(s))));
  $("chat-user").selectedIndex = scopes.findIndex((s) => sameScope(s, opened));
  renderHint();
}

/* Says beforehand what would surprise: no facts, or a model without injection. */
function renderHint() {
  const mode = chatMode();
  const known = users.list.find((u) => sameScope(scopeOf(u), chat.scope));
  let hint = "";
  if (server && !server.engine)
    hint = "The server has no chat model, so it cannot answer. Start it with --model.";
  else if (mode === "inject" && server?.engine?.injection === false)
    hint = `Injection is off, so memory is prefilled: ${server.engine.why_not || "see the Engine view"}.`;
  else if (users.loaded && mode !== "off" && chat.scope && !(known?.facts > 0))
    hint = `Nothing is remembered of ${chat.scope.user} yet. Add facts in the Users view.`;
  setText("chat-hint", hint);
  show($("chat-hint"), hint !== "");
}

const chatMode = () => document.querySelector("input[name=mode]:checked").value;

function numberOf(id) {
  const input = $(id);
  const value = input.valueAsNumber;
  if (!Number.isFinite(value)) return Number(input.defaultValue);
  return Math.min(Number(input.max), Math.max(Number(input.min), Math.round(value)));
}

function newChat() {
  chat.running?.abort();
  chat.running = null;
  chat.history = [];
  $("log").replaceChildren(chat.empty);
}

/* Server-sent events: blocks of "data:" lines between empty lines. A block may come in pieces. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text = (text + value).replace(/\r\n/g, "\n");
    const blocks = text.split("\n\n");
    text = blocks.pop(); // begun, not ended
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

const BROKE_OFF = "The answer broke off. See whether the server still runs, then try again.";

async function ask(question, mode, history, comparison) {
  if (chat.running) return toast("An answer is being written. Stop it first, or wait.");
  chat.picked = true;
  const stop = new AbortController();
  chat.running = stop;
  const answer = h("p.answer-text", { "aria-busy": "true" });
  const under = h("div.under", { "aria-live": "off" }); // fifty memories are not to be read out
  const who = h("p.who", null, "Answering");
  const article = h("article.answer", { "aria-label": "Answer" }, who, answer, under);
  chat.empty.remove();
  if (!comparison) $("log").append(h("article.question", { "aria-label": "Question" }, h("p", null, question)));
  $("log").append(article);
  $("log").scrollTop = $("log").scrollHeight;
  setRunning(true);

  let text = "", shown = 0, frame = 0, report = null, finish = null, usage = null, first = 0, failed = null;
  const draw = () => { // at most once a frame; text is only ever added
    frame = 0;
    const log = $("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    answer.append(text.slice(shown));
    shown = text.length;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const begun = performance.now();
  try {
    const { user, ...parts } = scopeFields(chat.scope);
    const response = await request("POST", "/v1/chat/completions", {
      signal: stop.signal,
      body: {
        messages: [...history, { role: "user", content: question }], user, stream: true,
        stream_options: { include_usage: true }, max_tokens: numberOf("chat-max"), temperature: 0,
        inferscale: { k: numberOf("chat-k"), mode, ...parts },
      },
    });
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(500, chunk.error.message);
      const choice = chunk.choices?.[0];
      if (choice?.delta?.content) {
        if (first === 0) first = performance.now() - begun;
        text += choice.delta.content;
        frame = frame || requestAnimationFrame(draw);
      }
      finish = choice?.finish_reason || finish;
      usage = chunk.usage || usage;
      report = chunk.inferscale || report;
    }
    if (!report && !finish) throw new ApiError(0, BROKE_OFF);
  } catch (error) {
    failed = error instanceof ApiError || error.name === "AbortError" ? error : new ApiError(0, BROKE_OFF);
  }
  cancelAnimationFrame(frame);
  draw();
  const followed = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
  answer.setAttribute("aria-busy", "false");
  if (chat.running === stop) chat.running = null;
  setRunning(chat.running !== null);
  if (!article.isConnected) return; // another chat was begun meanwhile

  const again = (label, other) =>
    h("button.quiet", { type: "button", click: () => ask(question, other, history, true) }, label);
  if (failed && failed.name === "AbortError") {
    who.textContent = "Stopped";
    under.append(h("p.muted", null, "There is no report of an answer that was stopped."),
                 h("div.row", null, again("Ask again", mode)));
  } else if (failed) {
    who.textContent = "Failed";
    under.append(h("p.error", { role: "alert" }, failed.message), h("div.row", null, again("Try again", mode)));
  } else {
    if (text === "") under.append(h("p.muted", null, "The model ended without a word."));
    who.textContent = howAnswered(report, mode);
    const modes = [["inject", "injected"], ["prefill", "prefilled"], ["off", "without memory"]];
    const others = modes.filter(([other]) => other !== mode).map(([other, how]) => again(`Ask again, ${how}`, other));
    under.append(...reportNodes(report, usage, finish, first).filter(Boolean), h("div.row", null, others));
  }
  if (!comparison && text !== "")
    chat.history.push({ role: "user", content: question }, { role: "assistant", content: text });
  // The report may be longer than the log is high: the answer itself stays in sight.
  if (followed) $("log").scrollTop += article.getBoundingClientRect().top - $("log").getBoundingClientRect().top - 12;
  poll();
}

/* What was done, which may be less than what was asked for. */
function howAnswered(report, mode) {
  if ((report?.mode || mode) === "off") return "Without memory";
  const memories = report?.memories || [];
  if (memories.length === 0) return "No memory found";
  const injected = memories.filter((m) => m.injected).length;
  if (injected === 0) return "Memory prefilled";
  return injected < memories.length ? "Memory injected in part" : "Memory injected";
}

function reportNodes(report, usage, finish, first) {
  if (!report)
    return [h("p.muted", null, `First text after ${formatMs(first)}. The server sent no report for this answer.`)];
  const timing = report.timing || {};
  const generated = usage?.completion_tokens;
  const decoding = timing.total_ms - timing.ttft_ms - (timing.embed_ms || 0) - (timing.rank_ms || 0);
  const pace = generated > 1 && decoding > 0 ? `, ${formatRate((generated - 1) / (decoding / 1000))}` : "";
  const numbers = [
    ["TTFT", formatMs(timing.ttft_ms)],
    ["injected", plural(report.tokens_injected, "token")],
    ["prefilled", plural(report.tokens_prefilled, "token")],
    report.tokens_history > 0 ? ["history", plural(report.tokens_history, "token")] : null,
    generated > 0 ? ["generated", plural(generated, "token") + pace] : null,
    ["total", formatMs(timing.total_ms)],
    finish === "length" ? ["ended", "at max tokens"] : null,
  ].filter(Boolean);
  const list = numbers.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)));
  return [h("dl.numbers", null, list), splitBar(timing), memoryList(report)];
}

const SEARCH_STEPS = ["embed", "rank"];
const TTFT_STEPS = ["queue", "fetch", "inject", "prefill"];

/* What passed until the first token. The search comes before what ttft_ms counts; the rest of ttft_ms is "other". */
function splitBar(timing) {
  const step = (name) => timing[`${name}_ms`] || 0;
  const rest = step("ttft") - TTFT_STEPS.reduce((sum, name) => sum + step(name), 0);
  const steps = [...SEARCH_STEPS, ...TTFT_STEPS].map((name) => [name, step(name)]);
  const parts = [...steps, ["other", rest > 0.05 ? rest : 0]].filter(([, ms]) => ms > 0);
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0);
  if (total === 0) return null;

  const bar = h("div.split-bar", { "aria-hidden": "true" }, parts.map(([name, ms]) => {
    const part = h(`span.t-${name}`, { title: `${name} ${formatMs(ms)}` });
    part.style.flexGrow = String(ms / total);
    return part;
  }));
  const swatch = (name) => h(`i.t-${name}`, { "aria-hidden": "true" });
  return h("figure.split-figure", null, bar,
    h("figcaption", null, h("span.muted", null, `question to first token ${formatMs(total)}:`),
      parts.map(([name, ms]) => h("span.key", null, swatch(name), `${name} ${formatMs(ms)}`))));
}

function memoryList(report) {
  const memories = report.memories || [];
  if (report.mode === "off") return h("p.muted", null, "No memory was used: the mode is off.");
  if (memories.length === 0)
    return h("p.muted", null, "No memory was used: nothing is remembered of this user, or k is 0.");
  const injected = memories.filter((m) => m.injected).length;
  const items = memories.map((m) => h("li", null,
    h("span.memory-text", null, m.text),
    h("span.fact-meta", null,
      m.injected ? h("span.badge.ready", null, "injected") : h("span.badge.pending", null, "prefilled"),
      h("span", null, `score ${isNumber(m.score) ? m.score.toFixed(3) : DASH}`),
      h("span", null, `#${m.id}`), m.time ? timeNode(m.time) : null)));
  const list = h("ol.memories", { tabindex: -1 }, items);
  const rest = items.slice(MEMORIES_OPEN);
  for (const item of rest) show(item, false);
  const more = h("button.quiet", { type: "button", click: () => {
    for (const item of rest) show(item, true);
    list.focus({ preventScroll: true });
    more.remove();
  } }, `Show all ${memories.length}`);
  const dropped = report.dropped > 0 ? `, ${formatCount(report.dropped)} dropped for want of room` : "";
  const split = `${injected} injected, ${memories.length - injected} prefilled${dropped}`;
  const summary = h("summary", null, `${plural(memories.length, "memory", "memories")}: ${split}`);
  return h("details", { open: true }, summary, list, rest.length > 0 ? more : null);
}

function setRunning(running) {
  show($("send"), !running);
  show($("stop"), running);
  // A button that is hidden loses the focus.
  if ([document.body, $("send"), $("stop")].includes(document.activeElement)) $(running ? "stop" : "question").focus();
}

function startChat() {
  chat.empty = $("chat-empty");
  const send = () => {
    const question = $("question").value.trim();
    if (question === "" || chat.running) return;
    $("question").value = "";
    fitQuestion();
    ask(question, chatMode(), [...chat.history], false);
  };
  const fitQuestion = () => {
    const box = $("question");
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, 180)}px`;
  };
  $("question").addEventListener("input", fitQuestion);
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  $("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("stop").addEventListener("click", () => chat.running?.abort());
  $("chat").addEventListener("keydown", (event) => { if (event.key === "Escape") chat.running?.abort(); });
  $("chat-new").addEventListener("click", () => { newChat(); $("question").focus(); });
  // Another user's conversation must not stand in this one's prompt.
  $("chat-user").addEventListener("change", () => chooseChatUser(chat.scopes[$("chat-user").selectedIndex]));
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", renderHint);
}

/* ---------------------------------------------------------------------------------------------------------- engine */

let drawnEngine = "";

function card(title, ...children) {
  return h("section.card", null, h("header", null, h("h3", null, title)), children);
}

/* A card of names and values; what the server does not say is left out, and so is a card without values. */
function definitions(title, pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== DASH);
  if (known.length === 0) return "";
  return card(title, h("dl.facts-of", null,
    known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
}

function layerTable(layers) {
  if (!Array.isArray(layers) || layers.length === 0) return "";
  const row = (l) => [
    l.layers > 1 ? `${l.first} to ${l.first + l.layers - 1}` : `${l.first}`, formatCount(l.kv_heads),
    formatCount(l.k_dim), formatCount(l.v_dim), l.window > 0 ? formatCount(l.window) : "none", l.rope,
  ];
  const head = ["Layers", "Heads", "K", "V", "Window", "Rotation"].map((name) => h("th", { scope: "col" }, name));
  const rows = layers.map((l) => h("tr", null, row(l).map((cell) => h("td", null, cell))));
  const table = h("table", null, h("thead", null, h("tr", null, head)), h("tbody", null, rows));
  return card("Layers", h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of layers" }, table));
}

/* Of an engine that runs elsewhere: its servers. */
function upstreamTable(upstreams) {
  if (!Array.isArray(upstreams) || upstreams.length === 0) return "";
  const head = ["Server", "Answers", "In work", "Why not"].map((name) => h("th", { scope: "col" }, name));
  const rows = upstreams.map((u) => h("tr", null,
    [u.url, yesNo(u.up), formatCount(u.in_work), u.why_not || ""].map((cell) => h("td", null, cell))));
  const table = h("table", null, h("thead", null, h("tr", null, head)), h("tbody", null, rows));
  return card("vLLM servers", h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Table of vLLM servers" }, table));
}

function engineNotice(engine) {
  const notice = (kind, text) => h(`p.notice.${kind}`, null, text);
  if (!engine) return notice("warn", "There is no chat model: facts are kept and searched, and nothing is answered.");
  if (engine.injection) return notice("good", "Injection is on: layout and rotation were measured at start and fit.");
  return notice("warn", `Injection is off, every prompt is prefilled: ${engine.why_not || "no reason was given"}.`);
}

const yesNo = (value) => value === true ? "yes" : value === false ? "no" : null;
const code = (text) => text ? h("code", null, text) : null;
const link = (path) => h("a", { href: path }, path);

/* What is shown under a name of its own; the rest of the engine's description is shown as it comes. */
const ENGINE_KEYS = [
  "engine", "llama_cpp", "devices", "model", "context", "slots", "threads", "fingerprint", "injection", "why_not",
  "kv_type", "kv_bytes_per_token", "v_transposed", "layers", "compose", "probe", "probe_ms", "upstreams",
];

function renderEngine() {
  setText("engine-uptime", formatDuration(server.uptime_s));
  const { engine, embedder, recipe, version, header_tokens: header } = server;
  const drawn = JSON.stringify([engine, embedder, recipe, version]);
  if (drawn === drawnEngine) return;
  drawnEngine = drawn;

  const e = engine || {};
  const probe = e.probe || {};
  const bytes = e.kv_bytes_per_token;
  const tokens = (n) => isNumber(n) ? plural(n, "token") : null;
  const error = (x) => x === 0 ? "0, bit for bit" : isNumber(x) ? x.toPrecision(2) : null;
  const others = Object.entries(e).filter(([key]) => !ENGINE_KEYS.includes(key))
    .map(([key, value]) => [key.replace(/_/g, " "), typeof value === "object" ? JSON.stringify(value) : String(value)]);

  $("engine-body").replaceChildren(
    engineNotice(engine),
    definitions("Model", [
      ["Model", e.model],
      ["Engine", [e.engine, e.llama_cpp].filter(Boolean).join(" ")],
      ["Devices", Array.isArray(e.devices) ? e.devices.join(", ") : null],
      ["Context", isNumber(e.context) ? `${tokens(e.context)} a slot` : null],
      ["Slots", formatCount(e.slots)],
      ["Threads", formatCount(e.threads)],
      ["Fingerprint", code(e.fingerprint)],
      ...others,
    ]),
    definitions("KV state", [
      ["Number type", e.kv_type],
      ["A token", formatBytes(bytes)],
      ["1,000 tokens", formatBytes(bytes * 1000)],
      ["A full context", formatBytes(bytes * e.context)],
      ["V transposed", yesNo(e.v_transposed)],
      ["Composed with", e.compose],
    ]),
    definitions("Memory", [
      ["Recipe", code(recipe)],
      ["Header", tokens(header)],
      ["Embedding model", embedder ? code(embedder.name) : "none: search goes by words"],
      ["Dimensions", formatCount(embedder?.dim)],
    ]),
    definitions("Probe at start", [
      ["Took", formatMs(e.probe_ms)],
      ["Positions", probe.offsets?.map(formatCount).join(", ")],
      ["Worst K error, relative", error(probe.max_k_error)],
      ["In layer", formatCount(probe.worst_layer)],
      ["Logit error", error(probe.logit_error)],
      ["Written in place", yesNo(probe.in_place)],
    ]),
    definitions("Server", [
      ["Version", version],
      ["Up for", h("span", { id: "engine-uptime" }, formatDuration(server.uptime_s))],
      ["Interface", link("/openapi.json")],
      ["Metrics", link("/metrics")],
    ]),
    upstreamTable(e.upstreams),
    layerTable(e.layers));
}

/* ---------------------------------------------------------------------------------------------------- views, start */

const VIEWS = ["overview", "users", "chat", "engine"];
let view = "";

function enterView() {
  if (view === "users" || view === "chat") loadUsers();
  if (view === "users" && facts.scope) loadFacts();
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const wanted = VIEWS.includes(parts[0]) ? parts[0] : "overview";
  if (wanted === "users" && parts[1]) openScope({ user: parts[1], agent: parts[2] || "", run: parts[3] || "" });
  if (wanted === view) return;
  view = wanted;
  for (const name of VIEWS) {
    show($(name), name === view);
    $(`tab-${name}`).setAttribute("aria-selected", String(name === view));
    $(`tab-${name}`).tabIndex = name === view ? 0 : -1;
  }
  document.title = `InferScale – ${$(`tab-${view}`).textContent}`;
  // The tab of the users keeps the one that was open.
  $("tab-users").href = facts.scope ? scopeHash(facts.scope) : "#/users";
  enterView();
  renderStatus();
}

function startTabs() {
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const here = VIEWS.indexOf(view);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = $(`tab-${VIEWS[(to + VIEWS.length) % VIEWS.length]}`);
    location.hash = tab.hash;
    route();
    tab.focus();
  });
  // The skip link must not become a route.
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
  addEventListener("hashchange", route);
}

function renderTheme() {
  const dark = isDark();
  $("theme").setAttribute("aria-pressed", String(dark));
  $("theme").title = dark ? "Light mode" : "Dark mode";
  $("theme").querySelector("use").setAttribute("href", dark ? "#icon-light" : "#icon-dark");
  renderStatus();
}

document.addEventListener("DOMContentLoaded", () => {
  if (window.Chart) makeCharts();
  startKey();
  startTabs();
  startUsers();
  startChat();
  $("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    keep("localStorage", "inferscale-theme", theme);
    renderTheme();
  });
  darkQuery.addEventListener("change", renderTheme);
  document.addEventListener("visibilitychange", poll);
  renderTheme();
  route();
  poll();
});

