/*
 * The report: a section for each step of the evaluation, from the figures that stand in this page (the element "data"),
 * made of the pieces of draw.js.
 */
const FEW = 50; // questions below which an interval is not to be built upon
const PRINT_WIDTH = 640; // of a plot; paper has no window to measure
const PRINT_HALF = 296;  // of one of two side by side

const paper = data.paper || {};
const DEFAULT_RECIPE = data.default_recipe;

/* ------------------------------------------------------------------------------------------------------------ parts */

const card = (main, ...children) => h(main ? "div.card.main" : "div.card", null, ...children);

/* Figures that others measured, so marked: two sides, and beneath the second whose they are. about: "~", or nothing. */
function published(title, about, left, ...right) {
  return h("aside.paper", { "aria-label": `The paper’s figures: ${title}` },
    h("h3", null, title, h("span.badge", null, "the paper’s figures, another machine")),
    h("div.sides", null, h("div", null, left), h("div", null, right,
      h("p.note", null, `Measured by the method’s authors on ${paper.machine || "their own machine"}`
        + `${about && paper.note ? `; ${paper.note}` : ""}. Compare how figures move, not how large they are.`))));
}

/* A table without a frame of its own. */
const paperTable = (title, columns, rows) => table(title, columns, rows).firstChild;

function ways(list) {
  return h("ul.ways", null, list.map(([mark, name, what]) =>
    h("li", { class: mark }, h("b", null, name), `: ${what}`)));
}

const few = (n) => isNumber(n) && n < FEW && h("p.note", null,
  `These are ${plural(n, "question")}, few enough that chance has much to say: read the intervals, not the means.`);

const isDefault = (row) => row.recipe === DEFAULT_RECIPE && !row.fresh;
const recipeName = (row) => `${row.recipe}${row.fresh > 0 ? `, fresh ${row.fresh}` : ""}`;
/* What marks of a plot of these rows mean. */
const meanings = (rows) => (rows.some((row) => row.fresh > 0) ? "; hollow: with the best facts fresh" : "")
  + (rows.some((row) => row.mode === "none") ? "; arrow: beyond the scale" : "");
const byDefault = (row) => isDefault(row) ? sub("the default") : null;

/* ------------------------------------------------------------------------------------------------------------- TTFT */

const WAYS = [
  { key: "prefill", name: "prefilled", mark: "s-text", shape: "square",
    words: "the facts are text, and the model reads the whole prompt" },
  { key: "prefix", name: "prefix cache hit", mark: "s-prefix", shape: "diamond",
    words: "the prompt’s beginning is in the cache, the facts are read as text: what an ordinary prefix cache can save "
      + "when each question brings other facts" },
  { key: "inject", name: "injected", mark: "s-inject", shape: "circle",
    words: "the facts’ rows are written into the cache, and the question alone is read" },
  { key: "resident", name: "resident", mark: "s-floor", shape: "triangle", dashed: true,
    words: "all of the memory is in the cache already: the floor, which injection cannot go below" },
];

/* result.engine: another program, which InferScale stands in front of. */
const engineOf = (result) => result.engine ? `${result.engine.name} ${plain(result.engine.version)}`
  : `llama.cpp ${plain(result.llama_cpp)}`;

function ttft(result, base, name) {
  const rows = result.ttft, past = result.history, at = (i, key) => join(base, "ttft", i, key);
  const on = result.engine ? ` on ${result.engine.name}` : "";
  const apart = rows.some((row) => isNumber(row.fetch_ms)); // else one call fetches and writes
  const here = WAYS.filter((way) => rows.some((row) => isNumber(row[`${way.key}_ttft_ms`])));
  const series = here.map((way) => ({
    ...way,
    points: rows.map((row) => ({
      x: row.k, y: row[`${way.key}_ttft_ms`], high: row[`${way.key}_ttft_p95_ms`],
      title: `${way.name}, k = ${row.k}: ${ms(row[`${way.key}_ttft_ms`])}`,
    })),
  }));
  const times_ = (i, key, what) => [figure(at(i, `${key}_${what}_ms`), ms),
    sub("p95 ", figure(at(i, `${key}_${what}_p95_ms`), ms))];
  const overall = (what) => rows.map((row, i) => [figure(at(i, "k")), ...here.map((way) => times_(i, way.key, what))]);
  return [
    h("p", null, "How long a user waits for the first token of the answer, over the number of facts in the prompt ",
      `(k), on ${engineOf(result)}. The same prompt is run in several ways by turns. Lower is better, and each line of `,
      "the scale’s grid is about twice the one below."),
    result.engine && h("p", null, "Times are a client’s, over HTTP through InferScale’s server in front of ",
      `${result.engine.name}, whose prefix cache keeps whole blocks: of a header shorter than one it has nothing.`),
    ways(here.map((way) => [way.mark, way.name, way.words])),
    card(false, plot(`Time to first token over k${on}: p50, with whiskers to p95; log scale`, series, (width) =>
      curves(width, series, {
        x: "facts in the prompt (k)", y: "time to first token", log: true, tick: tickMs, dodge: 3,
        rule: past && { y: past.ttft_ms, name: `the whole conversation as text: ${ms(past.ttft_ms)}` },
      }))),
    table(`Time to first token${on}: p50, and p95 below it`, ["k", "tokens of memory",
      ...here.map((way) => way.name), "injected is sooner", "over the floor"], rows.map((row, i) => [
      figure(at(i, "k")), figure(at(i, "memory_tokens"), count), ...here.map((way) => times_(i, way.key, "ttft")),
      figure(at(i, "speedup"), times), figure(at(i, "overhead"), signedPercent)])),
    past && h("p", null, "With the whole conversation in place of the facts, the first token came after ",
      figure(join(base, "history", "ttft_ms"), ms), ": ", figure(join(base, "history", "prompt_tokens"), count),
      " tokens of prompt",
      past.prompt_tokens < past.conversation_tokens && [", the end of ",
        figure(join(base, "history", "conversation_tokens"), count), ", for more do not fit into the context"], "."),
    isNumber(result.first_inject_ttft_ms) && h("p", null, "The first injected request after a start took ",
      figure(join(base, "first_inject_ttft_ms"), ms), "."),
    paper.ttft && name === "ttft" && paperTtft(),
    h("h3", null, "From the question to the first token"),
    h("p", null, "The same with the search for the facts in it: the question’s embedding, and the ranking of the ",
      "user’s facts."),
    table(`Query to first token${on}, search included: p50, and p95 below it`,
      ["k", ...here.map((way) => way.name), "the search"],
      overall("query").map((row, i) => [...row, figure(at(i, "retrieval_ms"), ms)])),
    h("h3", null, "What injection takes of it"),
    h("p", null, "Fetching the facts’ rows, turning them to their places and writing them, beside a plain copy of as ",
      "many bytes by memcpy."),
    table(`Cost of injection itself${on}, p50`, ["k", "bytes written",
      ...(apart ? ["fetching", "turning and writing"] : ["fetching, turning and writing"]), "GB/s", "memcpy, GB/s",
      "of memcpy’s time"], rows.map((row, i) => [
      figure(at(i, "k")), figure(at(i, "inject_bytes"), bytes), ...(apart ? [figure(at(i, "fetch_ms"), ms)] : []),
      figure(at(i, "inject_ms"), ms), figure(at(i, "inject_gb_s"), rate), figure(at(i, "memcpy_gb_s"), rate),
      figure(at(i, "inject_over_memcpy"), times)])),
  ];
}

function paperTtft() {
  const p = paper.ttft, query = paper.query_to_first_token_ms, about = p.approximate ? "~" : "";
  const lines = [["text_ms", `${p.text} (text)`, "s-text", "square"],
    ["inferscale_ms", "injected", "s-inject", "circle"]];
  const series = lines.map(([key, name, mark, shape]) => ({
    name, mark, shape,
    points: p.k.map((k, i) => ({ x: k, y: p[key][i], title: `${name}, k = ${k}: ${p[key][i]} ms` })),
  }));
  return published(`Time to first token, ${p.model}`, about,
    plot("Time to first token as published; log scale", series, (width) =>
      curves(width, series, { x: "facts in the prompt (k)", y: "time to first token", log: true, tick: tickMs })),
    paperTable("Time to first token in ms, as published", ["k", `${p.text} (text)`, "injected", "sooner"],
      p.k.map((k, i) => [
        figure(join("/paper/ttft/k", i)), [about, figure(join("/paper/ttft/text_ms", i))],
        [about, figure(join("/paper/ttft/inferscale_ms", i))], about + times(p.text_ms[i] / p.inferscale_ms[i])])),
    query && h("p.note", null, `Query to first token at k = 50 over three models: ${query.inferscale.join(" to ")} ms `
      + `injected, ${query.text.join(" to ")} ms as text. Ratios do not carry over either: the slower a machine `
      + "prefills, the more there is to gain."));
}

/* ------------------------------------------------------------------------------------------------------- throughput */

const SYSTEMS = [
  { key: "inject", name: "injected", mark: "s-inject", shape: "circle" },
  { key: "prefill", name: "prefilled", mark: "s-text", shape: "square" },
  { key: "peer", name: "llama-server", mark: "s-other", shape: "diamond" },
];

function throughput(result, base, name) {
  const on = result.engine ? ` on ${result.engine.name}` : "";
  const rows = result.throughput.map((row, i) => ({ ...row, at: join(base, "throughput", i) }));
  const here = SYSTEMS.filter((system) => rows.some((row) => row.system === system.key));
  const named = (row) => (SYSTEMS.find((system) => system.key === row.system) || { name: row.system }).name;
  const own = (row) => row.users_measured === row.users;
  const ratio = (row) => {
    const i = (result.ratios || []).findIndex((one) => one.users === row.users);
    if (row.system === "inject" || i < 0) return DASH;
    return figure(join(base, "ratios", i, `inject_over_${row.system}`), times);
  };
  const means = rows.filter((row, i) => rows.findIndex((other) =>
    other.system === row.system && other.users_measured === row.users_measured) === i);
  const series = (of, point) => here.map((system) => ({
    ...system,
    points: of.filter((row) => row.system === system.key).map((row) => {
      const [x, y, words] = point(row);
      return { x, y, hollow: x !== row.users_measured, title: `${system.name}, ${plural(x, "user")}: ${words}` };
    }).sort((a, b) => a.x - b.x),
  }));
  const taken = rows.some((row) => !own(row));
  const rates = series(rows, (row) => [row.users, row.requests_per_s, `${rate(row.requests_per_s)} requests/s`]);
  const waits = series(means, (row) => [row.users_measured, row.ttft_p50_ms, ms(row.ttft_p50_ms)]);
  const col = (row, key, format) => figure(join(row.at, key), format);
  return [
    h("p", null, "How many requests a second are answered when many users ask at once over HTTP, "
      + `on ${engineOf(result)}. Each user has `,
      figure(join(base, "facts_per_user")), " facts of their own and asks ", figure(join(base, "questions_per_user")),
      " questions; ", figure(join(base, "k")), " facts stand in each prompt, ", figure(join(base, "output_tokens")),
      " tokens in each answer, and ", figure(join(base, "slots")), " requests run at a time. Higher is better."),
    ways([["s-inject", "injected", "the facts’ rows are written into the cache"],
      ["s-text", "prefilled", "the same server with the same facts as text"
        + (result.engine ? `, ${result.engine.name}’s own prefix cache on` : "")],
      result.peer && ["s-other", "llama-server", "llama.cpp’s own server, its prompt cache on, with the same text"]]
      .filter(Boolean)),
    h("div.even", null,
      card(false, plot(`Requests a second over users${on}`, rates, (width) => curves(width, rates,
        { x: "users who ask at once", y: "requests a second", low: 0, tick: String }))),
      card(false, plot(`Time to first token under load${on}: p50; log scale`, waits, (width) => curves(width, waits,
        { x: "users who ask at once", y: "time to first token", log: true, tick: tickMs })))),
    taken && h("p.note", null, "Hollow marks, and numbers in brackets in the table: measured with fewer users. A ",
      "system that is never idle serves as many requests a second however many wait, so its rate stands for all of ",
      "them; its times do not, and are those of the number in brackets, as in the second plot."),
    table(`Under load${on}, by users and system`, ["users", { name: "system", left: true }, "requests/s",
      "injected against it", "tokens/s",
      ...["p50", "p95", "p99"].map((name) => ({ name, group: "time to first token" })),
      "whole answer, p50", "between tokens, p50", "errors"],
    rows.map((row) => [
      [col(row, "users"), !own(row) && [" (", col(row, "users_measured"), ")"]], named(row),
      col(row, "requests_per_s", rate), ratio(row), col(row, "tokens_per_s", rate), col(row, "ttft_p50_ms", ms),
      col(row, "ttft_p95_ms", ms), col(row, "ttft_p99_ms", ms), col(row, "end_to_end_p50_ms", ms),
      col(row, "inter_token_p50_ms", ms),
      [col(row, "errors", count), row.first_error && sub(figure(join(row.at, "first_error")))]])),
    table(`Where a request’s time goes${on}: means`, ["users", { name: "system", left: true }, "waiting", "search", "inject",
        "prefill", "decode", "one step", "answers in a step", "tokens read", "of prompt"], means.map((row) => [
        col(row, "users_measured"), named(row), col(row, "waiting_mean_ms", ms), col(row, "search_mean_ms", ms),
        col(row, "inject_mean_ms", ms), col(row, "prefill_mean_ms", ms), col(row, "decode_mean_ms", ms),
        col(row, "decode_step_mean_ms", ms), col(row, "decode_batch_mean", rate),
        col(row, "prefilled_tokens_mean", count), col(row, "prompt_tokens_mean", count)])),
    h("p.note", null, isNumber(result.http_overhead_ms)
      ? ["HTTP and JSON add ", figure(join(base, "http_overhead_ms"), ms), " to the time to first token. "] : null,
    result.engine ? null : ["Chunks in memory: at most ", figure(join(base, "host_budget"), bytes), ". "], "Context of a request: ",
    figure(join(base, "context"), count), " tokens.",
    result.peer ? [" Beside it: ", h("code", null, result.peer), "."] : null),
    paper.throughput && name === "throughput" && paperThroughput(),
  ];
}

function paperThroughput() {
  const p = paper.throughput, about = p.approximate ? "~" : "";
  const at = (i, name) => join("/paper/throughput/rows", i, name);
  return published("Requests a second", about,
    paperTable(`Requests a second, as published: ${p.users} users, k = ${p.k}, ${p.tokens} tokens of answer`,
      ["model", "injected", "text", "injected against it"],
      p.rows.map((row, i) => [figure(at(i, "model")), [about, figure(at(i, "inferscale_per_s"))],
        [about, figure(at(i, "text_per_s"))], about + times(row.inferscale_per_s / row.text_per_s)])));
}

/* ----------------------------------------------------------------------------------------------------------- recall */

const FOUND = [
  { key: "vectors", name: "vectors", mark: "s-other", shape: "square", words: "nearness of meaning (embeddings)" },
  { key: "words", name: "words", mark: "s-prefix", shape: "triangle", words: "words in common (BM25)" },
  { key: "both", name: "both", mark: "s-inject", shape: "circle", words: "the two ranks as one, which is the default" },
];

function recall(result, base) {
  const rows = result.recall.map((row, i) => ({ ...row, at: join(base, "recall", i) }));
  const here = FOUND.filter((way) => rows.some((row) => row.by === way.key)), ks = unique(rows.map((row) => row.k));
  const row = (k, way) => rows.find((one) => one.k === k && one.by === way.key);
  const series = (key) => here.map((way) => ({
    ...way, points: rows.filter((one) => one.by === way.key).map((one) => ({
      x: one.k, y: one[key], title: `${way.name}, k = ${one.k}: ${percent(one[key])}`,
    })),
  }));
  const share = (x) => `${Math.round(x * 100)} %`, turns = series("turns_found"), all = series("all_found");
  const axes = { x: "best facts that are looked at (k)", tick: share };
  const cells = (k, key) => here.map((way) => row(k, way) ? figure(join(row(k, way).at, key), percent) : DASH);
  return [
    h("p", null, "Whether the search brings what an answer needs. The data says in which turns of the conversation ",
      "each answer stands; a turn is found when one of the best k facts was drawn from it. It bounds what any answer ",
      "can know, be the facts injected or text. Over ", figure(join(rows[0].at, "questions"), count),
      " questions; higher is better."),
    ways(here.map((way) => [way.mark, `by ${way.name}`, way.words])),
    h("div.even", null,
      card(false, plot("Share of the turns that are found", turns, (width) =>
        curves(width, turns, { ...axes, y: "turns found" }))),
      card(false, plot("Share of the questions of which all turns are found", all, (width) =>
        curves(width, all, { ...axes, y: "questions with all turns found" })))),
    h("p.note", null, "The scales do not begin at 0."),
    table("Turns found, and questions with all of their turns found, by k", ["k",
      ...here.map((way) => ({ name: way.name, group: "turns found" })),
      ...here.map((way) => ({ name: way.name, group: "all turns found" }))],
    ks.map((k) => [figure(join(rows.find((one) => one.k === k).at, "k")), ...cells(k, "turns_found"),
      ...cells(k, "all_found")])),
  ];
}

/* --------------------------------------------------------------------------------------------------------- fidelity */

const PLACES = ["1 to 5", "6 to 20", "later", "not there"];

function fidelity(result, base) {
  const rows = result.fidelity.map((row, i) => ({ ...row, at: join(base, "fidelity", i) }));
  const three = fixed(3), plotted = rows.map((row) => ({
    name: recipeName(row), strong: isDefault(row), mark: "s-inject", hollow: row.fresh > 0, mean: row.kl_by_question,
    low: row.questions > 1 ? row.kl_low : null, high: row.questions > 1 ? row.kl_high : null,
    text: row.questions > 1 ? `${three(row.kl_by_question)} (${three(row.kl_low)} to ${three(row.kl_high)})`
      : three(row.kl_by_question),
  }));
  const part = (row, place) => (row.by_place_of_evidence || []).findIndex((one) => one.place === place);
  const places = PLACES.filter((place) => rows.some((row) => part(row, place) >= 0));
  const placeCells = (row, place) => {
    const i = part(row, place), at = join(row.at, "by_place_of_evidence", i);
    if (i < 0) return [DASH, DASH];
    const n = row.by_place_of_evidence[i].questions;
    return [[figure(join(at, "kl_by_question"), three), interval(at, "kl_low", "kl_high", three, n)],
      [figure(join(at, "top1"), percent),
        sub(figure(join(at, "questions"), count), n === 1 ? " question" : " questions")]];
  };
  const named = (row) => [figure(join(row.at, "recipe")), row.fresh > 0 && [", fresh ", figure(join(row.at, "fresh"))],
    byDefault(row)];
  const mark = (row) => isDefault(row) ? "default" : null;
  return [
    h("p", null, "How close injected memory comes to a full prefill of the same tokens, by recipe. For each token of ",
      "the known answers the model’s distribution behind injected memory is compared with that behind the prefill: ",
      "their KL divergence is 0 where they are the same. Nothing is sampled. k = ", figure(join(rows[0].at, "k")), ", ",
      figure(join(rows[0].at, "questions"), count), " questions, lower is better."),
    card(false, plot(`KL divergence from a full prefill: mean by question, with its 95 % interval${meanings(rows)}`,
      null, (width) => forest(width, plotted, { tick: plain, x: "KL divergence, nats (0: the same)" }))),
    few(rows[0].questions),
    table("Closeness to a full prefill, by recipe", ["recipe", "KL by question", "KL by token", "equal top-1",
      ...["prefilled", "injected", "difference"].map((name) => ({ name, group: "known answer’s NLL a token" }))],
    rows.map((row) => ({
      mark: mark(row), cells: [named(row),
        [figure(join(row.at, "kl_by_question"), three), interval(row.at, "kl_low", "kl_high", three, row.questions)],
        figure(join(row.at, "kl"), three), figure(join(row.at, "top1"), percent),
        figure(join(row.at, "nll_full"), three), figure(join(row.at, "nll_inject"), three),
        number((x) => signed(x, 3))(row.nll_inject - row.nll_full)],
    }))),
    h("p.note", null, "Top-1: the share of tokens for which both find the same token the most likely. NLL: the ",
      "negative log-likelihood of the known answer, in nats a token; lower is better, and a difference below 0 means ",
      "that the known answer is likelier behind injected memory."),
    places.length > 0 && [h("h3", null, "By the place of the evidence"),
      h("p", null, "The facts stand in reverse rank, the best (1) right before the question. Here the questions are ",
        "parted by the place of the best fact that was drawn from the turns in which the answer stands."),
      table("KL by question and equal top-1, by the rank of the evidence", ["recipe",
        ...places.flatMap((place) => ["KL", "top-1"].map((name) => ({ name, group: `evidence ${place}` })))],
      rows.map((row) => ({
        mark: mark(row), cells: [named(row), ...places.flatMap((place) => placeCells(row, place))],
      })))],
  ];
}

/* ---------------------------------------------------------------------------------------------------------- answers */

const CATEGORIES = ["single-hop", "multi-hop", "temporal", "open-domain", "adversarial"];

/* What the interval of a difference says; of few questions it is narrower than it should be, and says nothing. */
function verdict(d, questions) {
  if (!d || !isNumber(d.low) || questions < FEW) return "few";
  return d.high < 0 ? "worse" : d.low > 0 ? "better" : "same";
}
const VERDICTS = { worse: "worse than the text", better: "better than the text", same: "no difference told",
  few: "too few to tell" };

const setupName = (row) => row.mode === "none" ? "no memory" : row.mode === "text" ? "text" : recipeName(row);

function differenceCell(at, d, questions) {
  return [h("span", { class: verdict(d, questions) }, figure(join(at, "mean"), points)),
    interval(at, "low", "high", points, questions)];
}

function answerForest(rows, key, title, main) {
  const plotted = rows.filter((row) => row.mode !== "text" && row[key] && isNumber(row[key].mean)).map((row) => {
    const d = row[key];
    return {
      name: setupName(row), strong: isDefault(row), hollow: row.fresh > 0, aside: row.mode === "none",
      mark: row.mode === "none" ? "s-floor" : verdict(d, row.questions) === "worse" ? "s-text" : "s-inject",
      mean: d.mean * 100, low: d.low * 100, high: d.high * 100,
      text: `${points(d.mean)} (${points(d.low)} to ${points(d.high)})`,
    };
  });
  if (plotted.length === 0) return null;
  return card(main, plot(title, null, (width) => forest(width, plotted, {
    tick: (x) => x === 0 ? "0" : (x < 0 ? "−" : "+") + plain(Math.abs(x)), x: "points (of 100)",
    below: ["← worse than the text", "← worse"], above: ["better than the text →", "better →"],
  })));
}

function answersTables(rows) {
  const judged = rows.some((row) => isNumber(row.judge)), mark = (row) => isDefault(row) ? "default" : null;
  const named = (row) => [setupName(row), byDefault(row), reference(row) && sub("the same facts, prefilled")];
  const reference = (row) => row.mode === "text";
  const less = (row, key) => reference(row) ? h("span.faint", null, "reference")
    : differenceCell(join(row.at, key), row[key], row.questions);
  const categories = CATEGORIES.filter((name) => rows.some((row) => row.by_category && row.by_category[name]));
  const titled = (name) => {
    const part = rows[0].by_category && rows[0].by_category[name];
    return part ? `${name} (${count(part.questions)})` : name;
  };
  const inCategory = (row, name) => {
    const part = row.by_category && row.by_category[name], at = join(row.at, "by_category", name);
    if (!part) return [DASH, DASH];
    return [figure(join(at, "f1", "mean"), percent), reference(row) ? h("span.faint", null, "reference")
      : differenceCell(join(at, "f1_against_text"), part.f1_against_text, part.questions)];
  };
  return [
    table("Answers by setup; differences in points, with their 95 % interval", ["answered by", "questions", "F1",
      "difference to the text", "exact", ...(judged ? ["judged right", "difference to the text"] : []),
      ...["all there", "not all there"].map((name) => ({ name, group: "F1 by evidence in the prompt" }))],
    rows.map((row) => ({
      mark: mark(row), cells: [named(row), figure(join(row.at, "questions"), count),
        [figure(join(row.at, "f1", "mean"), percent),
          interval(join(row.at, "f1"), "low", "high", percent, row.questions)],
        less(row, "f1_against_text"), figure(join(row.at, "exact"), percent),
        ...(judged ? [figure(join(row.at, "judge"), percent), less(row, "judge_against_text")] : []),
        ...[["f1_with_evidence", "with_evidence"], ["f1_without_evidence", "without_evidence"]].map(([key, n]) =>
          [figure(join(row.at, key), percent), sub("of ", figure(join(row.at, n), count))])],
    }))),
    categories.length > 1 && [h("h3", null, "By kind of question"),
      h("p", null, "Single-hop answers stand in one turn, multi-hop ones in several; temporal ones are about when; ",
        "open-domain ones need knowledge of the world as well. The more differences are looked at, the more of them ",
        "leave out 0 by chance alone: about one in twenty."),
      table("F1 by LoCoMo’s kind of question, and its difference to the text in points", ["answered by",
        ...categories.flatMap((name) => ["F1", "difference"].map((what) => ({ name: what, group: titled(name) })))],
      rows.map((row) => ({
        mark: mark(row), cells: [named(row), ...categories.flatMap((name) => inCategory(row, name))],
      })))],
  ];
}

function answers(result, base, name) {
  const rows = result.answers.map((row, i) => ({ ...row, at: join(base, "answers", i) }));
  const adversarial = name === "adversarial";
  return [
    adversarial
      ? h("p", null, "Questions that cannot be answered from the conversation. Right is to say so: an answer counts 1 ",
        "when it says that there is no information, and 0 otherwise (LoCoMo’s measure). Injected memory is compared ",
        "with the same facts in the same order as text, question by question.")
      : h("p", null, "How right the answers are, by LoCoMo’s own measures: F1 counts the words that an answer shares ",
        "with the expected one, exact says how often they are the same. Injected memory is compared, question by ",
        "question, with the same facts in the same order as text. Answers are greedy."),
    h("p", null, "The difference to the text is what counts: whether this model answers well at all is not the matter ",
      "here. Where an interval leaves out 0, these questions tell a difference; where it has 0 in it, they tell none."),
    answerForest(rows, "f1_against_text", "F1 of injected memory less F1 of the same facts as text, in points, with "
      + `its 95 % interval; ${plural(rows[0].questions, "question")}${meanings(rows)}`, true),
    few(rows[0].questions),
    answerForest(rows, "judge_against_text", "Answers that the judging model finds right, less those of the text, in "
      + `points, with its 95 % interval${meanings(rows)}`, false),
    ...answersTables(rows),
    adversarial || !paper.accuracy ? null : paperAnswers(),
  ];
}

function paperAnswers() {
  const p = paper.accuracy, at = (i, key) => join("/paper/accuracy/rows", i, key), windows = ["w0", "w5", "w20", "w50"];
  const best = (row) => most(windows.map((key) => row[key]));
  return published("Accuracy on LoCoMo", "",
    paperTable(`Answers that ${p.judge} finds right, %, as published: ${count(p.questions)} questions, k = ${p.k}`,
      ["model", ...windows.map((key) => ({
        name: `w${GAP}=${GAP}${key.slice(1)}`, group: "injected, window of w turns",
      })), "text", "best less text"],
      p.rows.map((row, i) => [figure(at(i, "model")), ...windows.map((key) => figure(at(i, key), fixed(2))),
        figure(at(i, "text"), fixed(2)), number((x) => signed(x, 2))(best(row) - row.text)])),
    h("p.note", null, "An accuracy by a judging model is no F1; only the differences to the text can be held side by ",
      "side. The paper’s w = 0 is isolated here, and w is window:w."));
}

/* ----------------------------------------------------------------------------------------------------------- encode */

function encode(result, base) {
  const rows = result.encode.map((row, i) => ({ ...row, at: join(base, "encode", i) })), first = rows[0];
  const col = (row, key, format) => figure(join(row.at, key), format);
  const drawn = rows.map((row) => ({
    name: row.recipe, strong: isDefault(row), mark: "s-inject", value: row.ms / row.tokens,
    text: `${ms(row.ms / row.tokens)} (${times(row.cost_against_first)})`,
  }));
  return [
    h("p", null, "What encoding costs, once for each fact, and what the result takes in memory and on disk. What ",
      "stands before a fact is computed too, and then thrown away, so a recipe with more of it costs more time, but ",
      "not more bytes. Lower is better."),
    card(false, plot(`Time to encode one token of a fact, and how many times that of ${first.recipe}`, null,
      (width) => bars(width, drawn, { x: "time a token of a fact" }))),
    table("Cost of encoding, by recipe", ["recipe", "facts", "tokens", "time", "tokens/s", `against ${first.recipe}`,
      "KV state", "a token", "a fact"], rows.map((row) => ({
      mark: isDefault(row) ? "default" : null, cells: [[col(row, "recipe"), byDefault(row)], col(row, "facts", count),
        col(row, "tokens", count), col(row, "ms", ms), col(row, "tokens_per_s", count),
        col(row, "cost_against_first", times), col(row, "bytes", bytes), bytes(row.bytes / row.tokens),
        bytes(row.bytes / row.facts)],
    }))),
    paper.bytes_of_a_conversation_mb && paperEncode(first, result.model),
  ];
}

function paperEncode(row, model) {
  const sizes = paper.bytes_of_a_conversation_mb;
  return published("KV state of one conversation’s facts", "",
    paperTable("KV state of one conversation’s facts in MB, as published", ["model", "MB"],
      Object.keys(sizes).map((name) => [name, figure(join("/paper/bytes_of_a_conversation_mb", name), count)])),
    h("p.note", null, `Here: ${count(row.bytes / 1e6)} MB for ${count(row.facts)} facts with ${model || "this model"}. `
      + "The state of a token grows with the model’s layers, its KV heads and their size, so larger models take more "
      + "for the same facts."));
}

/* ----------------------------------------------------------------------------------------------------------- others */

const firstList = (result) => isObject(result) ? Object.keys(result).find((key) =>
  Array.isArray(result[key]) && isObject(result[key][0])) : undefined;

/* Names of a row's values, those of objects in it with a dot; lists are left out, as in the CSV. */
function flat(object, names) {
  return Object.keys(object).flatMap((key) => {
    const path = [...names, key];
    return isObject(object[key]) ? flat(object[key], path) : Array.isArray(object[key]) ? [] : [path];
  });
}

/* A step that this page knows nothing of: its first list of objects, as it is. */
function generic(result, base, name) {
  const key = firstList(result);
  if (!key) return [h("p", null, "This step has no table of results.")];
  const columns = [];
  for (const row of result[key])
    for (const path of flat(row, []))
      if (!columns.some((other) => other.join("/") === path.join("/"))) columns.push(path);
  return [table(name, columns.map((path) => path.join(".").replaceAll("_", " ")),
    result[key].map((row, i) => columns.map((path) => figure(join(base, key, i, ...path)))))];
}

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* A figure that a section comes down to, or null. */
const TILES = {
  ttft(result, base) {
    const i = result.ttft.length - 1, row = result.ttft[i], at = (name) => join(base, "ttft", i, name);
    return { name: result.engine ? `Time to first token, ${result.engine.name}` : "Time to first token",
      figure: [figure(at("speedup"), times), h("small", null, " sooner")],
      note: [figure(at("inject_ttft_ms"), ms), " injected, ", figure(at("prefill_ttft_ms"), ms),
        ` prefilled; ${plural(row.k, "fact")} in the prompt`] };
  },
  throughput(result, base) {
    const i = result.ratios.length - 1, users = result.ratios[i].users;
    const [inject, prefill] = ["inject", "prefill"].map((system) =>
      result.throughput.findIndex((row) => row.users === users && row.system === system));
    if (inject < 0 || prefill < 0) return null;
    const at = (row) => join(base, "throughput", row, "requests_per_s");
    return { name: result.engine ? `Requests a second, ${result.engine.name}` : "Requests a second",
      figure: [figure(join(base, "ratios", i, "inject_over_prefill"), times), h("small", null, " as many")],
      note: [figure(at(inject), rate), " injected, ", figure(at(prefill), rate),
        ` prefilled; ${plural(users, "user")} at once`] };
  },
  recall(result, base) {
    const rows = result.recall.filter((row) => row.by === "both"), row = rows[rows.length - 1];
    if (!row) return null;
    return { name: "Evidence that is found",
      figure: figure(join(base, "recall", result.recall.indexOf(row), "turns_found"), percent),
      note: `of the turns in which answers stand, among the best ${row.k} facts` };
  },
  fidelity(result, base) {
    const i = Math.max(result.fidelity.findIndex(isDefault), 0), row = result.fidelity[i];
    const at = (name) => join(base, "fidelity", i, name), three = fixed(3);
    return { name: "KL from a full prefill", figure: figure(at("kl_by_question"), three),
      note: [`${recipeName(row)}; `,
        row.questions > 1 && ["95 %: ", figure(at("kl_low"), three), " to ", figure(at("kl_high"), three), "; "],
        "0 is the same. Equal top-1: ", figure(at("top1"), percent)] };
  },
  answers(result, base) {
    const i = result.answers.findIndex(isDefault) >= 0 ? result.answers.findIndex(isDefault)
      : result.answers.findIndex((row) => row.mode === "injected");
    if (i < 0) return null;
    const row = result.answers[i], at = join(base, "answers", i, "f1_against_text");
    return { name: "F1, injected less text",
      figure: [figure(join(at, "mean"), points), h("small", null, " points")],
      note: [`${recipeName(row)}; 95 %: `, figure(join(at, "low"), points), " to ", figure(join(at, "high"), points),
        ` over ${plural(row.questions, "question")}: ${VERDICTS[verdict(row.f1_against_text, row.questions)]}`] };
  },
  encode(result, base) {
    const i = Math.max(result.encode.findIndex(isDefault), 0), row = result.encode[i];
    return { name: "KV state", figure: [figure(join(base, "encode", i, "bytes"), bytes)],
      note: [`for ${count(row.facts)} facts; encoding takes ${ms(row.ms / row.facts)} a fact, once (${row.recipe})`] };
  },
};
const tileOf = (step) => TILES[step.name.replace(/, vLLM$/, "")]; // other variants of a step have none

/* ------------------------------------------------------------------------------------------------------------- page */

const SECTIONS = {
  ttft: ["Time to first token", ttft],
  throughput: ["Throughput", throughput],
  recall: ["Retrieval", recall],
  fidelity: ["Fidelity", fidelity],
  answers: ["Answers", answers],
  adversarial: ["Questions without an answer", answers],
  encode: ["Encoding", encode],
};

/* Title and drawing of a step's section; "fidelity, best first" is drawn as "fidelity" is. */
function sectionOf(name) {
  const [kind, ...rest] = name.split(", ");
  const found = SECTIONS[kind];
  return found ? [[found[0], ...rest].join(", "), found[1]] : [name, generic];
}

/* What draws a step may meet data of another edition; the step is then shown as it is, and the console says why. */
function attempt(what, draw, otherwise) {
  try {
    return draw();
  } catch (error) {
    console.error(`${what}: ${error.stack || error}`);
    return otherwise();
  }
}

/* How a step's ground differs from that of the first, which the page's head shows. */
function differs(result, first) {
  const all = [["version", "version"], ["model", "model"], ["llama_cpp", "engine"], ["threads", "threads"],
    ["fingerprint", "fingerprint"], ["machine", "machine"]];
  return all.filter(([key]) => result && first && result[key] !== undefined
    && JSON.stringify(result[key]) !== JSON.stringify(first[key])).map(([, name]) => name);
}

const idOf = (step) => `step-${step.name.replace(/\W+/g, "-")}`;

function section(step, i, first) {
  const base = join("/steps", i, "result"), [title, draw] = sectionOf(step.name);
  const other = differs(step.result, first), id = idOf(step);
  const before = [plots.length, nPlots, nTables];
  const body = attempt(step.name, () => draw(step.result, base, step.name), () => {
    plots.length = before[0];
    [, nPlots, nTables] = before;
    return generic(step.result, base, step.name);
  });
  return h("section", { id, "data-step": step.name, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title), body,
    other.length > 0 && h("p.note", null, `This step was run with another ${other.join(", ")} than the first: `
      + `${plain(step.result.model)}, ${engineOf(step.result)}, InferScale ${plain(step.result.version)}, `
      + `${plain(step.result.fingerprint)}.`),
    h("div.made", null,
      h("p", null, "By this command, whose last run took ", figure(join("/steps", i, "seconds"), duration), ":"),
      h("pre", null, h("code", { "data-path": join("/steps", i, "command") }, words(step.command)))));
}

/* A line breaks between words, and not behind the hyphens of an option. */
const words = (command) => plain(command).split(" ").flatMap((word, i) => [i > 0 && " ", h("span", null, word)]);

function aboutRun(first) {
  const machine = first.machine || {}, commands = data.steps.map((step) => step.command || "");
  const named = /--data (\S+)/.exec(commands[0]);
  const total = data.steps.reduce((sum, step) => sum + (isNumber(step.seconds) ? step.seconds : 0), 0);
  const item = (name, ...what) => h("div", null, h("dt", null, name), h("dd", null, ...what));
  return [
    item("Made", h("time", { datetime: data.made || null }, date(data.made))),
    item("InferScale", "version ", plain(first.version || data.version)),
    item("Machine", plain(machine.cpu), `, ${plural(machine.cores, "core")}, `, bytes(machine.memory_bytes)),
    item("Model", plain(first.model)),
    item("Engine", engineOf(first), `, ${plural(first.threads, "thread")}`),
    item("Data", named ? h("code", null, named[1]) : "the sample conversation that comes with InferScale"),
    item("Time of the steps’ last runs", duration(total)),
    item("Fingerprint of model and engine", h("code", null, plain(first.fingerprint))),
    h("div.whole", null, h("dt", null, "Processor’s features"),
      h("dd", null, (machine.features || []).join(", ") || DASH)),
  ];
}

function start() {
  const steps = Array.isArray(data.steps) ? data.steps : [];
  const first = (steps.find((step) => step.result && step.result.machine) || {}).result || {};
  attempt("head", () => $("about").append(...aboutRun(first)), () => null);

  const names = [["terms", "Terms"]];
  for (const [i, step] of steps.entries()) {
    $("main").append(section(step, i, first));
    names.push([idOf(step), sectionOf(step.name)[0]]);
    const draw = tileOf(step);
    const tile = draw && attempt(`tile ${step.name}`, () => draw(step.result, join("/steps", i, "result")), () => null);
    if (tile) $("tiles").append(h("a.tile", { href: `#${idOf(step)}` }, h("div.tile-name", null, tile.name),
      h("div.tile-figure", null, tile.figure), h("div.tile-note", null, tile.note)));
  }
  if (steps.length === 0) $("main").append(h("p", null, "No step has been run yet."));
  if ($("tiles").firstChild) {
    $("glance").hidden = false;
    names.unshift(["glance", "At a glance"]);
  }
  $("contents").append(h("ul", null, names.map(([id, name]) => h("li", null, h("a", { href: `#${id}` }, name)))));
  const all = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
  $("download").append(h("a", { href: all, download: "report.json" }, "All figures of this page as JSON"), ".");

  const watch = new ResizeObserver((entries) => {
    for (const entry of entries)
      redraw(plots.find((one) => one.box === entry.target), Math.floor(entry.contentRect.width));
  });
  for (const one of plots) {
    redraw(one, Math.floor(one.box.clientWidth));
    watch.observe(one.box);
  }
  addEventListener("beforeprint", () =>
    plots.forEach((one) => redraw(one, one.box.closest(".even, .sides") ? PRINT_HALF : PRINT_WIDTH)));
  addEventListener("afterprint", () => plots.forEach((one) => redraw(one, Math.floor(one.box.clientWidth))));
}

start();
