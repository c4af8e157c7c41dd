"use strict";
// --- what a click on the picture does: measure a distance, or show the pattern of a view ---

const tools = { mode: null, points: [], view: null };
const panels = { caustic: null, ranks: null };

function setMode(mode) {
  tools.mode = tools.mode === mode ? null : mode;
  for (const id of ["measure", "pattern"]) $(id).setAttribute("aria-pressed", String(tools.mode === id));
  const hints = { measure: "Click two points of the picture.", pattern: "Click the picture: the view whose middle is closest is shown." };
  $("hint").textContent = hints[tools.mode] ?? "";
}
$("measure").onclick = () => { setMode("measure"); tools.points = []; $("profile").replaceChildren(); drawMarks(); };
$("pattern").onclick = () => setMode("pattern");

function clickPicture(point) {
  const all = size();
  if (!point || !all || point.some((value, axis) => value < 0 || value > all[axis])) return;
  if (tools.mode === "measure") {
    tools.points = tools.points.length === 1 ? [tools.points[0], point] : [point];
    drawMarks();
    if (tools.points.length === 2) askProfile();
  } else if (tools.mode === "pattern") askPattern({ at: point.join(",") });
}
function drawTools(marks, place) { // points and line that are measured, and the middle of the view that is shown
  const onScreen = ([y, x]) => [place.x + (x - place.left) * place.scale, place.y + (y - place.top) * place.scale];
  const points = tools.points.map(onScreen);
  for (const [x, y] of points) marks.append(svgElement("circle", { cx: x, cy: y, r: 4, class: "measured" }));
  if (points.length === 2) marks.append(svgElement("line", { x1: points[0][0], y1: points[0][1], x2: points[1][0], y2: points[1][1], class: "measured" }));
  if (!tools.view) return;
  const [x, y] = onScreen(tools.view.centre);
  marks.append(svgElement("circle", { cx: x, cy: y, r: 6, class: "measured" }));
}
async function askProfile() {
  const id = state.id, [from, to] = tools.points;
  try {
    const found = await ask("api/profile", { id, index: state.index, from: from.join(","), to: to.join(",") });
    if (id !== state.id) return;
    const length = found.length_m === null ? "" : `${lengthName(found.length_m)} = `;
    const title = `Distance ${length}${shown(found.length_px)} px${found.binning > 1 ? `, in blocks of ${found.binning} px` : ""}`;
    const [unit, scale] = found.length_m === null ? ["px", 1] : lengthUnit(found.length_m);
    const x = found.phase.map((_, n, { length }) => (found.length_m ?? found.length_px) / scale * n / (length - 1)), across = `distance, ${unit}`;
    const figures = [chart("amplitude along the line", { amplitude: found.amplitude }, { x, across }), chart("phase along the line, rad", { phase: found.phase }, { x, across })];
    const row = element("div", undefined, "figures");
    row.append(...figures.filter(Boolean));
    $("profile").replaceChildren(element("p", title), row);
  } catch (error) { $("profile").replaceChildren(element("p", error.message)); }
}
async function askPattern(values) {
  const id = state.id;
  $("patterns").replaceChildren(element("p", "The view is read and modelled …"));
  try {
    const found = await ask("api/pattern", { id, ...values });
    if (id !== state.id) return;
    tools.view = found;
    drawMarks();
    const bar = element("div", undefined, "controls"), number = Object.assign(element("input"), { type: "number", min: 0, max: found.views - 1, value: found.view });
    number.onchange = () => askPattern({ view: Math.min(found.views - 1, Math.max(0, Math.round(Number(number.value) || 0))) });
    const label = element("label", "view ");
    label.append(number);
    bar.append(label, element("span", `of ${found.views} · residual ${shown(found.residual)} · ${shown(found.counts)} counts, model ${shown(found.modelled_counts)}${found.file === "checkpoint" ? " · as of the last checkpoint" : ""}`));
    const row = element("div", undefined, "figures three");
    for (const [side, text] of [["measured", "measured, logarithmic"], ["modelled", "modelled, same scale"], ["residual", "residual: √model − √measured, red where the model is brighter"]]) {
      row.append(image(address("api/pattern/picture", { id, view: found.view, side, v: found.version }), text));
    }
    $("patterns").replaceChildren(bar, row);
  } catch (error) { $("patterns").replaceChildren(element("p", error.message)); }
}
function image(source, text) {
  const figure = element("figure"), picture = element("img");
  picture.src = source;
  picture.alt = text;
  figure.append(picture, element("figcaption", text));
  return figure;
}

// --- panels that are opened: caustic of the probe, ranks, trials of a study ---

async function openCaustic() {
  const id = state.id, panel = $("caustic");
  panel.replaceChildren(element("p", "The beam is propagated …"));
  try {
    const found = await ask("api/caustic", { id });
    if (id !== state.id) return;
    const row = element("div", undefined, "figures");
    for (const side of ["y", "x"]) row.append(image(address("api/caustic/picture", { id, side, v: state.details.arrays.version }), `beam along its axis, ${side} upright, amplitude`));
    const [along, metres] = lengthUnit(Math.max(...found.z_m.map(Math.abs)));
    const [unit, scale] = lengthUnit(Math.max(...Object.values(found.curves).flat()));
    const curves = Object.fromEntries(Object.entries(found.curves).map(([name, widths]) => [name, widths.map((width) => width / scale)]));
    const widths = chart(`width of the beam, ${unit}`, curves, { x: found.z_m.map((z) => z / metres), across: `along the axis, ${along}` });
    if (widths) row.append(widths);
    panel.replaceChildren(...found.lines.map((line) => element("p", line)), row);
  } catch (error) { panel.replaceChildren(element("p", error.message)); }
}
async function openRanks() {
  const id = state.id, panel = $("ranks");
  try {
    const { ranks, traffic, goes_on } = await ask("api/ranks", { id });
    if (id !== state.id) return;
    const count = Math.max(ranks.peak_bytes?.length ?? 0, ranks.waited_s?.length ?? 0);
    if (!count) { panel.replaceChildren(element("p", "The result does not say what its ranks held.")); return; }
    const rows = Array.from({ length: count }, (_, rank) => [rank, bytesName(ranks.peak_bytes?.[rank]), `${shown(ranks.computed_s?.[rank])} s`, `${shown(ranks.waited_s?.[rank])} s`, bytesName(ranks.sent_bytes?.[rank]), bytesName(ranks.received_bytes?.[rank])]);
    const sent = goes_on ? "As of the last checkpoint." : traffic.bytes_per_batch === undefined ? "One process: nothing was sent." : `The busiest rank sent ${bytesName(traffic.bytes_per_batch)} in ${shown(traffic.messages_per_batch)} messages per batch.`;
    const scrolled = element("div", undefined, "scrolled");
    scrolled.append(table(["rank", "most memory", "time in computing", "time in collectives", "sent per epoch", "received per epoch"], rows));
    panel.replaceChildren(scrolled, element("p", sent));
  } catch (error) { panel.replaceChildren(element("p", error.message)); }
}
function bytesName(bytes) {
  if (!Number.isFinite(bytes)) return "–";
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) if (bytes >= scale) return `${(bytes / scale).toPrecision(3)} ${unit}`;
  return `${Math.round(bytes)} B`;
}
function table(head, rows) {
  const made = element("table"), top = element("tr");
  top.append(...head.map((text) => element("th", text)));
  made.append(top, ...rows.map((row) => {
    const line = element("tr");
    line.append(...row.map((text) => element("td", String(text))));
    return line;
  }));
  return made;
}
function drawTrials(trials) {
  $("study").hidden = !trials.length;
  $("views").hidden = trials.length > 0 && !state.details.arrays.object;
  if (!trials.length) return;
  const key = JSON.stringify(trials);
  if (key === drawTrials.before) return;
  drawTrials.before = key;
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial.settings ?? {})))];
  const rows = trials.map((trial) => [trial.number, trial.state, shown(trial.value), ...names.map((name) => trial.settings?.[name] ?? "–"), trial.seconds ? duration(trial.seconds) : "–"]);
  const figure = chart("value of the objective by trial", { value: trials.map((trial) => trial.value) }, { x: trials.map((trial) => trial.number), across: "trial" });
  const scrolled = element("div", undefined, "scrolled");
  scrolled.append(table(["trial", "state", "value", ...names, "time"], rows));
  $("trials").replaceChildren(...(figure ? [figure] : []), scrolled);
}

const OPENERS = { caustic: openCaustic, ranks: openRanks };
for (const [name, open] of Object.entries(OPENERS)) $(`${name}-panel`).addEventListener("toggle", (event) => {
  if (event.target.open && panels[name] !== panelKey()) { panels[name] = panelKey(); open(); }
});
const panelKey = () => `${state.id} ${state.details?.arrays?.version}`;
function refreshPanels() { // of a run of which there is another picture now
  for (const [name, open] of Object.entries(OPENERS)) if ($(`${name}-panel`).open && state.details) { panels[name] = panelKey(); open(); }
  if (compare.other) askComparison();
}
function forgetPanels() {
  Object.assign(tools, { points: [], view: null });
  drawTrials.before = null;
  for (const id of ["profile", "patterns", "caustic", "ranks"]) $(id).replaceChildren();
  Object.assign(panels, { caustic: null, ranks: null });
  closeComparison();
}
