"use strict";
// --- two results on one canvas ---

const compare = { other: null, what: "phase", names: "" };

function fillOthers() { // runs that this one can be compared with
  const others = state.runs.filter((run) => run.id !== state.id), key = others.map((run) => `${run.id} ${run.name}`).join("\n");
  if (key === compare.names) return;
  compare.names = key;
  const list = $("other"), none = element("option", "none");
  none.value = "";
  list.replaceChildren(none, ...others.map((run) => Object.assign(element("option", run.name), { value: run.id })));
  list.value = compare.other ?? "";
}
function closeComparison() {
  compare.other = null;
  compare.names = null;
  $("other").value = "";
  $("comparison").hidden = true;
}
$("other").onchange = () => {
  compare.other = $("other").value || null;
  if (compare.other) askComparison(); else closeComparison();
};
async function askComparison() {
  const id = state.id, other = compare.other;
  $("comparison").hidden = false;
  $("canvas").hidden = true;
  $("agreement").replaceChildren();
  $("numbers").textContent = "The objects are aligned and compared …";
  let found;
  try { found = await ask("api/compare", { id, with: other }); } catch (error) {
    if (id === state.id && other === compare.other) $("numbers").textContent = error.message;
    return;
  }
  if (id !== state.id || other !== compare.other) return;
  const name = state.runs.find((run) => run.id === other)?.name ?? "the other";
  $("numbers").textContent = comparisonWords(found, name);
  $("left-name").textContent = state.details.name;
  $("right-name").textContent = name;
  drawComparison();
  const inMetres = found.resolution_unit === "m", [unit, scale] = inMetres ? lengthUnit(1 / found.frequency.at(-1)) : ["px", 1];
  const x = found.frequency.map((value) => value * scale), across = `spatial frequency, 1/${unit}`;
  const { correlation, half_bit: half, one_bit: one } = found.curves;
  const figure = chart("Fourier ring correlation, with its thresholds", { correlation, "1/2 bit": half, "1 bit": one }, { x, across, range: [Math.min(0, ...correlation), 1] });
  if (figure) $("agreement").append(figure);
}
function comparisonWords(found, name) {
  const unit = found.resolution_unit === "m" ? lengthName : (value) => `${shown(value)} px`;
  const words = [`Against ${name}: NRMSE ${shown(found.nrmse)} of the object after shift, phase ramp, phase and scale are removed`];
  if (found.resolution === null) words.push("no agreement beyond chance");
  else words.push(`they agree down to ${unit(found.resolution)} (1/2 bit${found.resolution_at_pixel_limit ? ", as fine as these pixels can say" : ""})`);
  words.push(`shifted by ${found.shift_px.map((value) => (value * found.binning).toFixed(2)).join(", ")} px (y, x)`);
  if (found.twin) words.push("this one is the twin of the other, and was turned round");
  if (found.binning > 1) words.push(`compared in blocks of ${found.binning} x ${found.binning} pixels`);
  return `${words.join("; ")}. ${found.notes.join(" ")}`;
}
function drawComparison() {
  if (!compare.other) return;
  const values = { id: state.id, with: compare.other, what: compare.what === "difference" ? "phase" : compare.what, v: state.details.arrays.version };
  const isDifference = compare.what === "difference";
  $("canvas").hidden = false;
  $("left").src = address("api/compare/picture", { ...values, side: isDifference ? "difference" : "a" });
  $("left").alt = isDifference ? "difference of the two objects" : `${compare.what} of this run`;
  $("right").hidden = $("slider").hidden = $("line").hidden = $("names").hidden = isDifference;
  if (!isDifference) {
    $("right").src = address("api/compare/picture", { ...values, side: "b" });
    $("right").alt = `${compare.what} of the other run`;
  }
  slide();
}
function slide() { // this run to the left of the line, the other one to its right
  const share = Number($("slider").value);
  $("right").style.clipPath = `inset(0 0 0 ${share}%)`;
  $("line").style.left = `${share}%`;
}
$("slider").oninput = slide;
for (const button of document.querySelectorAll("#comparison [data-compare]")) button.onclick = () => {
  compare.what = button.dataset.compare;
  for (const other of document.querySelectorAll("#comparison [data-compare]")) other.setAttribute("aria-pressed", String(other === button));
  drawComparison();
};

refreshRuns();
setInterval(refreshRuns, 3000);
setInterval(refreshRun, 2000);
