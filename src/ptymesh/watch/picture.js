"use strict";
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
  const drawn = view();
  next.onload = () => {
    if (mine !== asked) return;
    picture.src = next.src;
    picture.alt = `${state.what} of ${state.details.name}`;
    state.drawn = drawn;
    placePicture();
    drawMarks();
    showDelay(values.v);
  };
  next.onerror = () => { if (mine === asked) $("scale").textContent = "The picture could not be read; it is tried again."; };
  next.src = address("api/picture", values);
  const [top, left, bottom, right] = view(), pixel = state.details.arrays.pixel_m;
  const wide = right - left, tall = bottom - top;
  const length = pixel && state.what !== "probe" ? ` = ${lengthName(wide * pixel[1])} x ${lengthName(tall * pixel[0])}` : "";
  $("scale").textContent = `${wide} x ${tall} px${length}${FILES[state.details.arrays.file] ?? ""}`;
}
function showDelay(version) { // of a stream: from the arrival of frames to the first time that a picture is on the screen
  const { live, state: word } = state.details;
  if (!live || live.latency_s === null || word !== "running") return;
  if (version !== state.delay?.version) {
    const written = Math.max(0, Date.now() / 1000 - Number(version) / 1e9); // seconds since
    state.delay = { version, seconds: live.latency_s + written };
  }
  $("scale").textContent += `, on the screen ${shown(state.delay.seconds)} s after its last frames arrived`;
}
function lengthUnit(metres) { // unit in which a length is a handy number, and its metres
  return [["mm", 1e-3], ["µm", 1e-6], ["nm", 1e-9]].find(([, scale]) => metres >= scale) ?? ["Å", 1e-10];
}
function lengthName(metres) {
  const [unit, scale] = lengthUnit(metres);
  return `${(metres / scale).toPrecision(3)} ${unit}`;
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
  if (place && state.what !== "probe") drawTools(marks, place);
  if (!state.marks || !place || state.what === "probe" || !state.positions?.positions) return;
  const nominal = state.positions.nominal;
  state.positions.positions.forEach(([y, x], i) => {
    const at = [place.x + (x - place.left) * place.scale, place.y + (y - place.top) * place.scale];
    const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    circle.setAttribute("cx", at[0]); circle.setAttribute("cy", at[1]); circle.setAttribute("r", 2.5);
    marks.append(circle);
    if (nominal && !(nominal[i][0] === y && nominal[i][1] === x)) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      line.setAttribute("x1", at[0]); line.setAttribute("y1", at[1]);
      line.setAttribute("x2", place.x + (nominal[i][1] - place.left) * place.scale);
      line.setAttribute("y2", place.y + (nominal[i][0] - place.top) * place.scale);
      line.setAttribute("marker-start", "url(#head)"); // from where it began to where it lies
      marks.append(line);
    }
  });
  if (nominal) marks.append(arrowHead());
}
function placePicture() { // moves the picture that is there at once, until the one of the new region has come
  const now = view(), drawn = state.drawn, place = frame();
  if (!now || !drawn || !place) return;
  Object.assign($("picture").style, {
    left: `${place.x + (drawn[1] - now[1]) * place.scale}px`,
    top: `${place.y + (drawn[0] - now[0]) * place.scale}px`,
    width: `${(drawn[3] - drawn[1]) * place.scale}px`,
    height: `${(drawn[2] - drawn[0]) * place.scale}px`,
  });
  drawBar(place);
}
function drawBar(place) { // a round length of about a fifth of the picture
  const pixel = state.details?.arrays?.pixel_m, bar = $("bar");
  bar.hidden = state.what === "probe" || !pixel;
  if (bar.hidden) return;
  const most = $("stage").clientWidth / 5 / place.scale * pixel[1], power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((digit) => digit * power <= most) * power;
  bar.style.width = `${length / pixel[1] * place.scale}px`;
  bar.textContent = lengthName(length);
}
function arrowHead() {
  const head = svgElement("marker", { id: "head", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto-start-reverse" });
  head.append(svgElement("path", { d: "M0 0 L6 3 L0 6 z", fill: "var(--mark)" }));
  return head;
}
let later;
function setRegion(region) {
  const all = size();
  if (!all || state.what === "probe") return;
  const [height, width] = all;
  const tall = Math.min(height, Math.max(8, Math.round(region[2] - region[0]))), wide = Math.min(width, Math.max(8, Math.round(region[3] - region[1])));
  const top = Math.min(height - tall, Math.max(0, Math.round(region[0]))), left = Math.min(width - wide, Math.max(0, Math.round(region[1])));
  state.region = tall === height && wide === width ? null : [top, left, top + tall, left + wide];
  placePicture();
  drawMarks();
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
function pointAt(event) { // row and column of the object under the pointer
  const place = frame(), box = stage.getBoundingClientRect();
  return place && [place.top + (event.clientY - box.top - place.y) / place.scale, place.left + (event.clientX - box.left - place.x) / place.scale];
}
let dragged = null;
stage.addEventListener("pointerdown", (event) => { dragged = [event.clientY, event.clientX, view()]; stage.setPointerCapture(event.pointerId); });
stage.addEventListener("pointermove", (event) => {
  const place = frame();
  if (!dragged?.[2] || !place) return;
  const down = (dragged[0] - event.clientY) / place.scale, across = (dragged[1] - event.clientX) / place.scale, from = dragged[2];
  setRegion([from[0] + down, from[1] + across, from[2] + down, from[3] + across]);
});
stage.addEventListener("pointerup", (event) => {
  const still = dragged && Math.hypot(event.clientY - dragged[0], event.clientX - dragged[1]) < 4;
  dragged = null;
  if (still && state.what !== "probe") clickPicture(pointAt(event));
});
stage.addEventListener("keydown", (event) => {
  const now = view();
  if (!now) return;
  const step = (now[2] - now[0]) / 8;
  const keys = { "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => { state.region = null; draw(); }, ArrowUp: () => move(-step, 0), ArrowDown: () => move(step, 0), ArrowLeft: () => move(0, -step), ArrowRight: () => move(0, step) };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
for (const button of document.querySelectorAll("#what [data-what]")) button.onclick = () => {
  state.what = button.dataset.what;
  for (const other of document.querySelectorAll("#what [data-what]")) other.setAttribute("aria-pressed", String(other === button));
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
addEventListener("resize", () => { placePicture(); drawMarks(); });
