"use strict";
const token = document.body.dataset.token;
const $ = (id) => document.getElementById(id);
const state = { id: null, what: "phase", index: 0, region: null, details: null, positions: null, marks: false };

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
  $("note").textContent = runs.length ? `${runs.length} runs, ${going} running` : "There are no runs in these folders yet.";
  const list = $("runs"), focused = document.activeElement?.dataset?.id;
  list.replaceChildren(...runs.map((run) => {
    const button = element("button", run.name);
    button.dataset.id = run.id;
    button.setAttribute("aria-current", String(run.id === state.id));
    const line = element("small");
    line.append(badge(run), ` · ${whereItIs(run) || `${run.epochs} epochs`} · residual ${shown(run.residual)} · ${age(run.modified)}`);
    button.append(line);
    button.onclick = () => select(run.id);
    return button;
  }));
  if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus();
  if (!state.id && runs.length) select(runs[0].id);
}

async function select(id) {
  Object.assign(state, { id, region: null, details: null, positions: null, index: 0 });
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
    details.sentence ? `: ${details.sentence.replace(/\.$/, "")}.` : `, ${details.epochs} epochs, residual ${shown(details.residual)}`);
  drawProgress(details);
  drawControl(details);
  const log = $("log"), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  log.textContent = details.log || "There is no log.";
  if (atEnd) log.scrollTop = log.scrollHeight;
  $("recipe").textContent = details.recipe || "The recipe is known once there is a checkpoint or a result.";
  drawCurves(details.curves);
  if (before !== details.arrays.version) {
    state.positions = null;
    draw();
    await askPositions();
  }
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
function whereItIs(run) {
  const status = run.status ?? {};
  if (!["running", "silent"].includes(run.state) || !status.phase) return "";
  if (status.phase !== "stage") return status.phase;
  return `${status.stages > 1 ? `stage ${status.stage} of ${status.stages}, ` : ""}${status.engine}, epoch ${status.epoch} of ${status.epochs}`;
}
function drawProgress(run) {
  const status = run.status ?? {}, where = whereItIs(run), panel = $("progress");
  panel.hidden = !where;
  if (!where) return;
  const within = status.phase === "stage" && status.batches && status.done_epochs < status.total_epochs && status.batch < status.batches ? status.batch / status.batches : 0;
  const bar = panel.querySelector("progress");
  bar.max = status.total_epochs || 1;
  bar.value = (status.done_epochs ?? 0) + within;
  const words = [where];
  if (status.batches) words.push(`batch ${status.batch} of ${status.batches}`);
  if (run.state === "running" && status.seconds_left) words.push(`${duration(status.seconds_left)} left`);
  if (run.silent_s > 5) words.push(`last beat ${duration(run.silent_s)} ago`);
  words.push(`process ${status.pid} on ${status.host}${status.ranks > 1 ? `, ${status.ranks} ranks` : ""}`);
  $("where").textContent = words.join(" · ");
}

const ASKED = { stop: "It stops after this batch, with a checkpoint.", save: "It writes a checkpoint after this epoch." };
function drawControl(run) {
  $("control").hidden = document.body.dataset.control !== "true" || run.state !== "running" || !run.status.phase;
  if (run.asked) $("asked").textContent = ASKED[run.asked];
}
async function request(word) {
  const answer = await fetch(`api/ask?${new URLSearchParams({ id: state.id, word })}`, { method: "POST", headers: { "X-Token": token } });
  $("asked").textContent = answer.ok ? ASKED[word] : await answer.text();
}
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

function drawCurves(curves) {
  const figures = [];
  const scales = [["residual and held-out residual, logarithmic", ["residual", "held_out", "noise_floor"]], ["loss, logarithmic", ["loss"]]];
  for (const [title, names] of scales) {
    const known = names.filter((name) => curves[name]);
    const values = known.flatMap((name) => curves[name]).filter((value) => value > 0);
    if (values.length < 2) continue;
    const low = Math.log(Math.min(...values)), high = Math.log(Math.max(...values)), span = high - low || 1;
    const figure = element("figure"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 300 170");
    svg.setAttribute("preserveAspectRatio", "none");
    const caption = element("figcaption", `${title}: `);
    known.forEach((name, place) => {
      const rows = curves[name], line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      const points = rows.map((value, i) => (value > 0 ? `${(5 + 290 * i / Math.max(1, rows.length - 1)).toFixed(1)},${(160 - 150 * (Math.log(value) - low) / span).toFixed(1)}` : null));
      line.setAttribute("points", points.filter(Boolean).join(" "));
      line.setAttribute("class", `c${place}`);
      svg.append(line);
      const last = rows.findLast((value) => value !== null && value !== undefined);
      caption.append(element("span", `${name.replace("_", " ")} ${shown(last)} `, `c${place}`));
    });
    figure.append(svg, caption);
    figures.push(figure);
  }
  $("curves").replaceChildren(...figures);
}

// --- the picture ---

function size() {
  const arrays = state.details?.arrays;
  if (!arrays?.object) return null;
  return state.what === "probe" ? arrays.probe.slice(1) : arrays.object.slice(1);
}
function view() { // region that is shown: top, left, bottom, right
  const all = size();
  return state.region && state.what !== "probe" ? state.region : all && [0, 0, all[0], all[1]];
}
const FILES = { checkpoint: ", last checkpoint", preview: ", preview while it goes on" };
let asked = 0;
function draw() {
  const all = size(), picture = $("picture");
  if (!all) {
    picture.removeAttribute("src");
    $("scale").textContent = "A picture is there once the run has written a preview, a checkpoint or its result.";
    $("marks").replaceChildren();
    return;
  }
  const counts = state.what === "probe" ? state.details.arrays.probe[0] : state.details.arrays.object[0];
  $("index").max = counts - 1;
  state.index = Math.min(state.index, counts - 1);
  const values = { id: state.id, what: state.what, index: state.index, v: state.details.arrays.version };
  if (state.region && state.what !== "probe") values.region = state.region.join(",");
  const mine = ++asked, next = new Image();
  next.onload = () => { if (mine === asked) { picture.src = next.src; picture.alt = `${state.what} of ${state.details.name}`; drawMarks(); } };
  next.onerror = () => { if (mine === asked) $("scale").textContent = "The picture could not be read; it is tried again."; };
  next.src = address("api/picture", values);
  const [top, left, bottom, right] = view(), pixel = state.details.arrays.pixel_m;
  const wide = right - left, tall = bottom - top;
  const length = pixel && state.what !== "probe" ? ` = ${lengthName(wide * pixel[1])} x ${lengthName(tall * pixel[0])}` : "";
  $("scale").textContent = `${wide} x ${tall} px${length}${FILES[state.details.arrays.file] ?? ""}`;
}
function lengthName(metres) {
  for (const [unit, scale] of [["mm", 1e-3], ["µm", 1e-6], ["nm", 1e-9]]) if (metres >= scale) return `${(metres / scale).toPrecision(3)} ${unit}`;
  return `${(metres / 1e-10).toPrecision(3)} Å`;
}
function frame() { // where the picture lies in the stage: left, top, pixels of the screen per pixel
  const shownView = view(), stage = $("stage").getBoundingClientRect();
  if (!shownView) return null;
  const [top, left, bottom, right] = shownView;
  const scale = Math.min(stage.width / (right - left), stage.height / (bottom - top));
  return { x: (stage.width - scale * (right - left)) / 2, y: (stage.height - scale * (bottom - top)) / 2, scale, top, left };
}
function drawMarks() {
  const marks = $("marks"), place = frame();
  marks.replaceChildren();
  if (!state.marks || !place || state.what === "probe" || !state.positions?.positions) return;
  const nominal = state.positions.nominal;
  state.positions.positions.forEach(([y, x], i) => {
    const at = [place.x + (x - place.left) * place.scale, place.y + (y - place.top) * place.scale];
    const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    circle.setAttribute("cx", at[0]); circle.setAttribute("cy", at[1]); circle.setAttribute("r", 2.5);
    marks.append(circle);
    if (nominal) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      line.setAttribute("x1", at[0]); line.setAttribute("y1", at[1]);
      line.setAttribute("x2", place.x + (nominal[i][1] - place.left) * place.scale);
      line.setAttribute("y2", place.y + (nominal[i][0] - place.top) * place.scale);
      marks.append(line);
    }
  });
}
let later;
function setRegion(region) {
  const all = size();
  if (!all || state.what === "probe") return;
  const [height, width] = all;
  const tall = Math.min(height, Math.max(8, Math.round(region[2] - region[0]))), wide = Math.min(width, Math.max(8, Math.round(region[3] - region[1])));
  const top = Math.min(height - tall, Math.max(0, Math.round(region[0]))), left = Math.min(width - wide, Math.max(0, Math.round(region[1])));
  state.region = tall === height && wide === width ? null : [top, left, top + tall, left + wide];
  clearTimeout(later);
  later = setTimeout(draw, 80);
}
function zoom(factor, at = null) {
  const now = view();
  if (!now) return;
  const [top, left, bottom, right] = now, [y, x] = at ?? [(top + bottom) / 2, (left + right) / 2];
  setRegion([y - (y - top) * factor, x - (x - left) * factor, y + (bottom - y) * factor, x + (right - x) * factor]);
}
function move(down, across) {
  const now = view();
  if (now) setRegion([now[0] + down, now[1] + across, now[2] + down, now[3] + across]);
}
const stage = $("stage");
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const place = frame(), box = stage.getBoundingClientRect();
  if (place) zoom(event.deltaY > 0 ? 1.25 : 0.8, [place.top + (event.clientY - box.top - place.y) / place.scale, place.left + (event.clientX - box.left - place.x) / place.scale]);
}, { passive: false });
let dragged = null;
stage.addEventListener("pointerdown", (event) => { dragged = [event.clientY, event.clientX, view()]; stage.setPointerCapture(event.pointerId); });
stage.addEventListener("pointermove", (event) => {
  const place = frame();
  if (!dragged?.[2] || !place) return;
  const down = (dragged[0] - event.clientY) / place.scale, across = (dragged[1] - event.clientX) / place.scale, from = dragged[2];
  setRegion([from[0] + down, from[1] + across, from[2] + down, from[3] + across]);
});
stage.addEventListener("pointerup", () => { dragged = null; });
stage.addEventListener("keydown", (event) => {
  const now = view();
  if (!now) return;
  const step = (now[2] - now[0]) / 8;
  const keys = { "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => { state.region = null; draw(); }, ArrowUp: () => move(-step, 0), ArrowDown: () => move(step, 0), ArrowLeft: () => move(0, -step), ArrowRight: () => move(0, step) };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
for (const button of document.querySelectorAll("[data-what]")) button.onclick = () => {
  state.what = button.dataset.what;
  for (const other of document.querySelectorAll("[data-what]")) other.setAttribute("aria-pressed", String(other === button));
  draw();
};
$("index").onchange = () => { state.index = Math.max(0, Number($("index").value) || 0); draw(); };
$("whole").onclick = () => { state.region = null; draw(); };
$("positions").onclick = async () => {
  state.marks = !state.marks;
  $("positions").setAttribute("aria-pressed", String(state.marks));
  drawMarks();
  await askPositions();
};
addEventListener("resize", drawMarks);
refreshRuns();
setInterval(refreshRuns, 3000);
setInterval(refreshRun, 2000);
