"use strict";
const token = document.body.dataset.token;
const $ = (id) => document.getElementById(id);
const state = { runs: [], id: null, what: "phase", index: 0, region: null, details: null, positions: null, marks: false };

function address(path, values = {}) {
  const query = new URLSearchParams({ token, ...values });
  return `${path}?${query}`;
}
async function ask(path, values) {
  const answer = await fetch(address(path, values));
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
const shown = (value) => (typeof value === "number" ? value.toPrecision(4) : "–");
function age(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return passed < 172800 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} days ago`;
}

async function refreshRuns() {
  let runs;
  try { runs = await ask("api/runs"); } catch (error) {
    $("note").textContent = `The server does not answer: ${error.message}. Is ptymesh watch still running?`;
    return;
  }
  const going = runs.filter((run) => run.state === "running").length;
  $("note").textContent = runs.length ? `${runs.length} run${runs.length === 1 ? "" : "s"}, ${going} running` : "There are no runs in these folders yet.";
  const list = $("runs"), focused = document.activeElement?.dataset?.id;
  state.runs = runs;
  list.replaceChildren(...runs.map((run) => {
    const button = element("button", run.name);
    button.dataset.id = run.id;
    button.setAttribute("aria-current", String(run.id === state.id));
    const line = element("small");
    const what = run.trials ? `study of ${run.trials} trials` : `${whereItIs(run) || (run.live ? `${run.live.frames} frames` : `${run.epochs} epochs`)} · residual ${shown(run.residual)}`;
    line.append(badge(run), ` · ${what} · ${age(run.modified)}`);
    button.append(line);
    button.onclick = () => select(run.id);
    return button;
  }));
  if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus();
  if (!state.id && runs.length) select(runs[0].id);
}

async function select(id) {
  Object.assign(state, { id, region: null, details: null, positions: null, index: 0 });
  forgetPanels();
  asked += 1; // a picture of the run before that comes now is not shown
  $("index").value = 0;
  $("asked").textContent = "";
  for (const button of $("runs").children) button.setAttribute("aria-current", String(button.dataset.id === id));
  await refreshRun();
}

async function refreshRun() {
  if (!state.id) return;
  const id = state.id;
  let details;
  try { details = await ask("api/run", { id }); } catch (error) { $("note").textContent = error.message; return; }
  if (id !== state.id) return;
  const before = state.details?.arrays?.version, size = state.details?.arrays?.object;
  state.details = details;
  if (String(size) !== String(details.arrays.object)) state.region = null; // of a preview that has become a result
  $("run").hidden = false;
  $("name").textContent = details.name;
  $("verdict").replaceChildren(badge(details),
    details.sentence ? `: ${details.sentence.replace(/\.$/, "")}.` : `, ${details.live ? arriving(details.live) : `${details.epochs} epochs`}, residual ${shown(details.residual)}`);
  drawProgress(details);
  drawControl(details);
  const log = $("log"), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  log.textContent = details.log || "There is no log.";
  if (atEnd) log.scrollTop = log.scrollHeight;
  $("recipe").textContent = details.recipe || "The recipe is known once there is a checkpoint or a result.";
  drawCurves(details.curves, details.live ? "segment" : "epoch");
  fillOthers();
  drawTrials(details.trials);
  if (before !== details.arrays.version) {
    state.positions = null;
    draw();
    refreshPanels();
    await askPositions();
  }
}
function arriving(live) { // of a stream: how far it is, and how soon frames are used
  const late = live.latency_s === null ? "" : `, used ${shown(live.latency_s)} s after they arrive`;
  return `${live.frames} frames${live.unseen ? `, ${live.unseen} of them not used yet` : ""}${late}`;
}
async function askPositions() {
  const id = state.id;
  if (!state.marks || state.positions) return;
  const found = await ask("api/positions", { id }).catch(() => ({}));
  if (id === state.id) state.positions = found;
  drawMarks();
}

// --- what the run says of itself ---

function badge(run) { // the verdict of a run that is done, else its state
  const word = run.state === "done" ? run.verdict ?? run.state : run.state;
  return element("span", word === "silent" && run.silent_s !== null ? `silent for ${duration(run.silent_s)}` : word, word);
}
function duration(seconds) {
  const rounded = Math.round(seconds);
  if (rounded < 120) return `${rounded} s`;
  return rounded < 7200 ? `${Math.round(rounded / 60)} min` : `${(rounded / 3600).toPrecision(3)} h`;
}
const LIVE = ["receiving", "finishing"]; // phases of a run whose frames arrive, and once none follows
function whereItIs(run) {
  const status = run.status ?? {};
  if (!["running", "silent"].includes(run.state) || !status.phase) return "";
  if (LIVE.includes(status.phase)) return `${status.phase}, ${status.frames ?? 0}${status.expected_frames ? ` of ${status.expected_frames}` : ""} frames`;
  if (status.phase !== "stage") return status.phase;
  return `${status.stages > 1 ? `stage ${status.stage} of ${status.stages}, ` : ""}${status.engine}, epoch ${status.epoch} of ${status.epochs}`;
}
function drawProgress(run) {
  const status = run.status ?? {}, where = whereItIs(run), panel = $("progress");
  panel.hidden = !where;
  if (!where) return;
  const within = status.phase === "stage" && status.batches && status.done_epochs < status.total_epochs && status.batch < status.batches ? status.batch / status.batches : 0;
  const bar = panel.querySelector("progress");
  bar.max = (LIVE.includes(status.phase) ? status.expected_frames : status.total_epochs) || 1;
  bar.value = LIVE.includes(status.phase) ? (status.expected_frames ? status.frames : 0) : (status.done_epochs ?? 0) + within;
  const words = [where];
  if (status.batches) words.push(`batch ${status.batch} of ${status.batches}`);
  if (run.state === "running" && status.seconds_left) words.push(`${duration(status.seconds_left)} left`);
  if (run.silent_s > 5) words.push(`last beat ${duration(run.silent_s)} ago`);
  words.push(`process ${status.pid} on ${status.host}${status.ranks > 1 ? `, ${status.ranks} ranks` : ""}`);
  $("where").textContent = words.join(" · ");
}

const ASKED = { stop: "It stops after this batch, with a checkpoint.", save: "It writes a checkpoint after this epoch.", resume: "It is started again, which takes some seconds." };
const ASKED_LIVE = { save: "It writes live.h5.", stop: "It takes no more frames, and goes on with those that have come; asked again, it stops at once." };
function answerTo(word, run) {
  return run?.state === "running" && LIVE.includes(run.status?.phase) ? ASKED_LIVE[word] ?? ASKED[word] : ASKED[word];
}
function drawControl(run) {
  const allowed = document.body.dataset.control === "true", goes = run.state === "running";
  const stopped = ["interrupted", "silent"].includes(run.state);
  const listens = run.status.phase && (run.status.phase !== "saving" || run.status.total_epochs); // a live run that saves its frames does not
  $("again").hidden = goes || run.state === "done" || run.resumable || !run.status.command; // a live run, which its own command goes on with
  $("again").querySelector("code").textContent = run.status.command ?? "";
  $("control").hidden = !allowed || !(goes ? listens : (stopped || run.state === "done") && run.resumable);
  for (const id of ["save", "stop"]) $(id).hidden = !goes;
  $("resume").hidden = !stopped;
  $("longer").hidden = goes;
  if (run.asked) $("asked").textContent = answerTo(run.asked, run);
  if (run.could_not_resume) $("asked").textContent = `It could not go on: ${run.could_not_resume}`;
}
async function request(word, values = {}) {
  const answer = await fetch(`api/ask?${new URLSearchParams({ id: state.id, word, ...values })}`, { method: "POST", headers: { "X-Token": token } });
  $("asked").textContent = answer.ok ? answerTo(word, state.details) : await answer.text();
}
$("resume").onclick = () => request("resume");
$("longer").onsubmit = (event) => {
  event.preventDefault();
  request("resume", { epochs: $("epochs").value });
};
let sure;
$("save").onclick = () => request("save");
$("stop").onclick = () => { // twice, as it cannot be taken back
  const button = $("stop");
  clearTimeout(sure);
  if (button.textContent === "stop") {
    button.textContent = "stop: sure?";
    sure = setTimeout(() => { button.textContent = "stop"; }, 4000);
    return;
  }
  button.textContent = "stop";
  request("stop");
};

// --- curves ---

const SVG = "http://www.w3.org/2000/svg";
function svgElement(tag, values) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
  return made;
}
// Return round numbers from low to high, some three to six: 1, 2 or 5 times a power of ten.
function ticks(low, high, logarithmic = false) {
  const isWithin = (value) => value >= low && value <= high;
  if (logarithmic && high > low) {
    const powers = Array.from({ length: Math.ceil(Math.log10(high / low)) + 2 }, (_, n) => 10 ** (Math.floor(Math.log10(low)) + n));
    const every = Math.ceil(powers.length / 6), digits = powers.length > 4 ? [1] : [1, 2, 5];
    const found = powers.filter((_, n) => n % every === 0).flatMap((power) => digits.map((digit) => digit * power)).filter(isWithin);
    if (found.length > 1) return found;
  }
  const raw = (high - low) / 6 || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((digit) => digit * power >= raw) * power;
  return Array.from({ length: 12 }, (_, n) => (Math.ceil(low / step - 1e-9) + n) * step).filter((value) => value <= high + 1e-9 * step);
}
function tickName(value) {
  const rounded = Number(value.toPrecision(6)), size = Math.abs(rounded);
  return size && (size < 1e-3 || size >= 1e5) ? rounded.toExponential().replace("e+", "e") : String(rounded);
}
// Return a figure of curves (name -> values) over x, or over 1, 2, ...; range: fixed lowest and highest value; across: name and unit of x.
function chart(title, curves, { x = null, logarithmic = false, range = null, across = "" } = {}) {
  const isDrawn = (value) => Number.isFinite(value) && (!logarithmic || value > 0);
  const scaled = (value) => (logarithmic ? Math.log(value) : value);
  const known = Object.entries(curves).filter(([, values]) => values?.some(isDrawn));
  const all = known.flatMap(([, values]) => values).filter(isDrawn);
  if (all.length < 2) return null;
  const [lowest, highest] = range ?? [Math.min(...all), Math.max(...all)];
  const low = scaled(lowest), span = scaled(highest) - low || 1;
  const first = x ? x[0] : 1, last = x ? x.at(-1) : Math.max(...known.map(([, values]) => values.length)), width = last - first || 1;
  const left = (value) => 5 + 290 * (value - first) / width, top = (value) => 160 - 150 * (scaled(value) - low) / span;
  const figure = element("figure"), svg = svgElement("svg", { viewBox: "0 0 300 170", preserveAspectRatio: "none", role: "img" });
  svg.append(Object.assign(svgElement("title", {}), { textContent: title }));
  const caption = element("figcaption", `${title}: `), axes = element("div", undefined, "frame");
  axes.append(svg);
  const mark = (name, className, style, line) => {
    svg.append(svgElement("line", { class: "tick", ...line }));
    axes.append(Object.assign(element("small", name, className), { style }));
  };
  for (const value of ticks(lowest, highest, logarithmic)) mark(tickName(value), "up", `top: ${top(value) / 1.7}%`, { x1: 0, x2: 300, y1: top(value), y2: top(value) });
  for (const value of ticks(first, last)) if (x || Number.isInteger(value)) mark(tickName(value), "across", `left: ${left(value) / 3}%`, { x1: left(value), x2: left(value), y1: 166, y2: 170 });
  known.forEach(([label, values], number) => {
    const points = values.map((value, i) => (isDrawn(value) ? `${left(x ? x[i] : i + 1).toFixed(1)},${top(value).toFixed(1)}` : null));
    svg.append(svgElement("polyline", { points: points.filter(Boolean).join(" "), class: `c${number}` }));
    caption.append(element("span", `${label.replace("_", " ")} ${shown(values.findLast((value) => value !== null && value !== undefined))} `, `c${number}`));
  });
  figure.append(axes, element("div", across, "axis"), caption);
  return figure;
}
function drawCurves(curves, across) {
  const { loss, views_per_s: speed, ...residuals } = curves;
  const figures = [
    chart(`residual${curves.held_out ? " and held-out residual" : ""}, logarithmic`, residuals, { logarithmic: true, across }),
    chart("loss, logarithmic", { loss }, { logarithmic: true, across }),
    chart("speed in views per second", { "views per s": speed }, { across }),
  ];
  $("curves").replaceChildren(...figures.filter(Boolean));
}
