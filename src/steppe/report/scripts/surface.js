// Loss landscapes as surfaces on a canvas. All are seen from the same side and drawn on one scale; turning one turns all.
// A surface over a grid, seen from afar, needs no depth buffer: cells are painted from the far end to the near one.
const START = { turn: -0.62, tilt: 0.88, zoom: 1 }; // high enough to look into a valley
const view = { ...START };
const HEIGHT = 1.05;
const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const surfaces = new Map(); // canvas -> what it shows
let turning = false;

function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((c, i) => c + (VIRIDIS[low + 1][i] - c) * (place - low));
}

// The scale that all shown landscapes share: from their lowest loss to their highest, logarithmic where that suits.
function sharedScale(landscapes, wish) {
  const values = known(landscapes.flatMap((one) => one.loss.flat()));
  let low = Math.min(...values), high = Math.max(...values);
  if (!(high > low)) [low, high] = widen([low, high], 0.5);
  const log = low > 0 && (wish === "log" || (wish !== "linear" && high / low > 10));
  const bend = log ? Math.log : (v) => v;
  const share = (loss) => (bend(loss) - bend(low)) / (bend(high) - bend(low));
  return { low, high, log, share, ticks: niceTicks(low, high, log) };
}

function niceTicks(low, high, log) {
  if (log) {
    const decades = Math.log10(high / low), ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const digit of decades > 3 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5]) ticks.push(Number(`${digit}e${power}`));
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }
  const raw = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(Number(tick.toPrecision(6)));
  return ticks;
}

// Where a point of the unit cube is on the canvas: x and y in [-1, 1], z in [0, 1].
function camera(width, height) {
  const size = Math.min(width / 3.4, height / 2.95) * view.zoom;
  const [ca, sa, ce, se] = [Math.cos(view.turn), Math.sin(view.turn), Math.cos(view.tilt), Math.sin(view.tilt)];
  const middle = height / 2 + (HEIGHT / 2) * size * ce;
  return {
    to: (x, y, z) => [width * 0.54 + (x * ca - y * sa) * size, middle - (z * HEIGHT * ce + (x * sa + y * ca) * se) * size],
    fromFar: { x: sa > 0 ? -1 : 1, y: ca > 0 ? -1 : 1 }, // the order in which depth falls along each axis
    light: [-0.5 * ca - 0.35 * sa, 0.5 * sa - 0.35 * ca, 0.8],
  };
}

function paintSurface(canvas) {
  const { landscape, scale, reach } = surfaces.get(canvas);
  const ratio = Math.min(window.devicePixelRatio || 1, 2), width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const eye = camera(width, height);
  paintFloor(pen, eye);
  const count = landscape.steps.length;
  const place = landscape.steps.map((step) => step / reach);
  const high = landscape.loss.map((line) => line.map((loss) => (loss === null ? null : scale.share(loss))));
  const points = high.map((line, i) => line.map((z, j) => (z === null ? null : eye.to(place[j], place[i], z))));
  const every = Math.max(1, Math.round((count - 1) / 12));
  const order = (direction) => Array.from({ length: count - 1 }, (_, i) => (direction > 0 ? i : count - 2 - i));
  pen.lineJoin = "round";
  for (const i of order(eye.fromFar.y)) {
    for (const j of order(eye.fromFar.x)) {
      const corners = [points[i][j], points[i][j + 1], points[i + 1][j + 1], points[i + 1][j]];
      if (corners.some((corner) => corner === null)) continue;
      paintCell(pen, corners, shade(high, place, i, j, eye.light));
      pen.strokeStyle = "rgba(255, 255, 255, 0.28)";
      pen.lineWidth = 0.8;
      if (i % every === 0) stroke(pen, corners[0], corners[1]);
      if (j % every === 0) stroke(pen, corners[0], corners[3]);
    }
  }
  paintAxis(pen, eye, scale);
  if (landscape.centre !== null) paintCentre(pen, eye, Math.min(Math.max(scale.share(landscape.centre), 0), 1), (z) => isHidden(z, high, place));
}

function shade(high, place, i, j, light) {
  const [a, b, c, d] = [high[i][j], high[i][j + 1], high[i + 1][j + 1], high[i + 1][j]];
  const slopeX = ((b + c - a - d) / 2 / (place[j + 1] - place[j])) * HEIGHT, slopeY = ((c + d - a - b) / 2 / (place[i + 1] - place[i])) * HEIGHT;
  const length = Math.hypot(slopeX, slopeY, 1);
  const lit = Math.max(0, (-slopeX * light[0] - slopeY * light[1] + light[2]) / length);
  const strength = 0.66 + 0.44 * lit;
  return viridis((a + b + c + d) / 4).map((part) => Math.min(255, Math.round(part * strength)));
}

function paintCell(pen, corners, [r, g, b]) {
  pen.beginPath();
  corners.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
  pen.fillStyle = pen.strokeStyle = `rgb(${r},${g},${b})`;
  pen.lineWidth = 0.7; // closes the seams between cells
  pen.fill();
  pen.stroke();
}

function stroke(pen, from, to) {
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}

function paintFloor(pen, eye) {
  pen.lineWidth = 1;
  pen.strokeStyle = colour("line");
  for (const at of [-1, -0.5, 0, 0.5, 1]) {
    stroke(pen, eye.to(at, -1, 0), eye.to(at, 1, 0));
    stroke(pen, eye.to(-1, at, 0), eye.to(1, at, 0));
  }
}

function paintAxis(pen, eye, scale) {
  const corners = [[-1, -1], [-1, 1], [1, -1], [1, 1]];
  const [x, y] = corners.reduce((best, at) => (eye.to(...at, 0)[0] < eye.to(...best, 0)[0] ? at : best));
  pen.strokeStyle = pen.fillStyle = colour("soft");
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (view.tilt > 1.35) return; // from above there is no height to read
  stroke(pen, eye.to(x, y, 0), eye.to(x, y, 1));
  let last = Infinity;
  for (const tick of scale.ticks) {
    const [px, py] = eye.to(x, y, scale.share(tick));
    stroke(pen, [px - 4, py], [px, py]);
    if (last - py < 12) continue; // its number would stand on the one below
    pen.fillText(digits(tick), px - 7, py);
    last = py;
  }
}

// Whether the surface stands between the eye and its middle at height z: the line of sight rises towards the eye.
function isHidden(z, high, place) {
  for (let way = 0.06; way < 1.4; way += 0.04) {
    const [x, y] = [-way * Math.sin(view.turn), -way * Math.cos(view.turn)];
    const nearest = (at) => place.reduce((best, p, i) => (Math.abs(p - at) < Math.abs(place[best] - at) ? i : best), 0);
    if (Math.max(Math.abs(x), Math.abs(y)) > 1) return false;
    if (high[nearest(y)][nearest(x)] * HEIGHT > z * HEIGHT + way * Math.tan(view.tilt) + 0.01) return true;
  }
  return false;
}

function paintCentre(pen, eye, z, hiddenAt) {
  const [x, y] = eye.to(0, 0, z);
  pen.beginPath();
  pen.arc(x, y, 4.5, 0, 7);
  pen.fillStyle = hiddenAt(z) ? "rgba(255, 122, 47, 0.25)" : "#ff7a2f"; // behind the surface it shines through
  pen.strokeStyle = "#fff";
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

const paintSurfaces = () => { for (const canvas of surfaces.keys()) paintSurface(canvas); };
let requested = false;

function repaint() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(() => {
    requested = false;
    if (turning) { view.turn += 0.008; repaint(); }
    paintSurfaces();
  });
}

function turnBy(turn, tilt) {
  view.turn += turn;
  view.tilt = Math.min(Math.max(view.tilt + tilt, 0.05), Math.PI / 2);
  repaint();
}

const TURNS = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.08], ArrowDown: [0, -0.08] };

function turnByKey(event) {
  if (TURNS[event.key]) turnBy(...TURNS[event.key]);
  else if (event.key === "+" || event.key === "=") view.zoom = Math.min(view.zoom * 1.1, 3);
  else if (event.key === "-") view.zoom = Math.max(view.zoom / 1.1, 0.5);
  else if (event.key === "0" || event.key === "Home") Object.assign(view, START);
  else return;
  event.preventDefault();
  repaint();
}

function makeSurface(canvas) {
  let last = null;
  canvas.addEventListener("pointerdown", (event) => { last = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    turnBy((event.clientX - last[0]) * 0.01, event.pointerType === "touch" ? 0 : (event.clientY - last[1]) * 0.008);
    last = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { last = null; });
  canvas.addEventListener("dblclick", () => { Object.assign(view, START); repaint(); });
  canvas.addEventListener("keydown", turnByKey);
}
