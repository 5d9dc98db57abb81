// Small charts of one head: curves, tables of relative positions, attention by distance.

const CHART_WIDTH = 290, CHART_HEIGHT = 150;
const SIDES = ["", " before", " after"]; // ends of the names of parameters; "" is for all keys
const CHART_MARGIN = { left: 42, right: 8, top: 8, bottom: 32 };

/** Return a figure with a caption and an empty canvas. */
function makeChart(caption, label) {
  const figure = document.createElement("figure");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const text = document.createElement("figcaption");
  text.textContent = caption;
  figure.append(text, canvas);
  return [figure, canvas];
}

/** Return a number with three significant digits and a typographic minus sign. */
function formatNumber(x) {
  const isTiny = Math.abs(x) < 1e-4 && x !== 0;
  const text = isTiny ? x.toExponential(1) : String(Number(x.toPrecision(3)));
  return text.replace("-", "\u2212");
}

/** Return round numbers from low to high, at most `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const found = [];
  const first = Math.ceil(low / step - 1e-9); // Rounding errors must not lose a tick at the ends.
  for (let i = first; i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

/**
 * Draw lines in one chart.
 *
 * `lines` are objects { y, colour, dashed, start } with one number for each entry of `x`, from the
 * index `start` on, which is 0 if missing. `baseline` is a value marked by a dotted line, or null.
 */
function drawCurves(canvas, x, lines, xLabel, baseline, palette) {
  const context = openCanvas(canvas, CHART_WIDTH, CHART_HEIGHT);
  const { left, right, top, bottom } = CHART_MARGIN;
  const values = lines.flatMap((line) => Array.from(line.y));
  if (baseline !== null) values.push(baseline);
  let low = Math.min(0, ...values), high = Math.max(...values);
  if (high - low < 1e-9) high = low + 1;
  const first = x[0], last = x.length > 1 ? x[x.length - 1] : x[0] + 1;
  const toX = (value) => left + (value - first) / (last - first) * (CHART_WIDTH - left - right);
  const toY = (value) => top + (high - value) / (high - low) * (CHART_HEIGHT - top - bottom);
  context.font = `11px ${FONT_FAMILY}`;
  context.fillStyle = palette.faint;
  context.strokeStyle = palette.line;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of ticks(low, high, 4)) context.fillText(formatNumber(tick), left - 5, toY(tick));
  context.textAlign = "center";
  for (const tick of ticks(first, last, 5).filter(Number.isInteger)) {
    context.fillText(formatNumber(tick), toX(tick), CHART_HEIGHT - bottom + 9);
  }
  context.fillText(xLabel, (left + CHART_WIDTH - right) / 2, CHART_HEIGHT - 7);
  const stroke = (points, colour, width, dash) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([a, b], i) => (i ? context.lineTo(a, b) : context.moveTo(a, b)));
    context.stroke();
    context.setLineDash([]);
  };
  const end = CHART_WIDTH - right, floor = CHART_HEIGHT - bottom;
  stroke([[left, top], [left, floor], [end, floor]], palette.line, 1, []);
  if (baseline !== null) {
    stroke([[left, toY(baseline)], [end, toY(baseline)]], palette.faint, 1, [2, 3]);
  }
  for (const { y, colour, dashed, start = 0 } of lines) {
    const points = Array.from(y, (value, i) => [toX(x[start + i]), toY(value)]);
    stroke(points, colour, 2, dashed ? [4, 3] : []);
  }
}

/** Draw the similarities of position vectors: rows and columns are positions of a key, j - i. */
function drawSimilarities(canvas, positions, cosines, palette) {
  const size = positions.length, side = 150, margin = 26;
  const context = openCanvas(canvas, side + margin + 4, side + margin + 12);
  const pixels = document.createElement("canvas");
  const colourOf = (i) => palette.diverging[palette.divergingIndex(cosines[i] / 127 - 1)];
  paintPixels(pixels, size, size, colourOf);
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels, margin, 2, side, side);
  context.fillStyle = palette.faint;
  context.font = `11px ${FONT_FAMILY}`;
  context.textBaseline = "middle";
  for (const position of ticks(positions[0], positions[size - 1], 4).filter(Number.isInteger)) {
    const place = (position - positions[0] + 0.5) / size * side;
    context.textAlign = "right";
    context.fillText(formatNumber(position), margin - 3, 2 + place);
    context.textAlign = "center";
    context.fillText(formatNumber(position), margin + place, side + 12);
  }
  context.fillText("key before (\u2212) / after (+)", margin + side / 2, side + 28);
}

/** Return the share of the attention at each distance |i - j|, and the share if it were uniform. */
function attentionByDistance(part, layer, head) {
  const weights = part.weights(layer, head), { queries, keys } = part;
  const measured = new Float32Array(Math.max(queries, keys)), uniform = measured.slice();
  let total = 0;
  for (let i = 0; i < queries; i++) {
    const visible = part.visibleKeys(i);
    for (let j = 0; j < keys; j++) {
      measured[Math.abs(i - j)] += weights[i * keys + j];
      total += weights[i * keys + j];
      if (j < visible) uniform[Math.abs(i - j)] += 1 / visible;
    }
  }
  return {
    measured: measured.map((x) => x / (total || 1)),
    uniform: uniform.map((x) => x / queries),
  };
}

/** Fill the details of one head: parameters, curves, tables, attention by distance. */
function showDetails(element, part, layer, head, palette) {
  element.replaceChildren();
  const charts = document.createElement("div");
  charts.className = "charts";
  const positions = part.positions && !part.isMean(head) ? part.positions[layer] : null;
  if (positions) {
    for (const side of SIDES) {
      const line = describeNumbers(positions.numbers, head, side);
      if (line) element.append(line);
    }
    for (const curve of positions.curves) {
      const y = curve.y.subarray(head * curve.x.length, (head + 1) * curve.x.length);
      const label = `${curve.title} from ${formatNumber(y[0])} to ${formatNumber(y[y.length - 1])}`;
      const [figure, canvas] = makeChart(curve.title, label);
      charts.append(figure);
      const lines = colourSides(curve.x, y, positions.numbers, head, palette);
      drawCurves(canvas, curve.x, lines, curve.x_label, curve.baseline, palette);
    }
    for (const table of positions.tables) {
      const size = table.positions.length ** 2;
      const [figure, canvas] = makeChart(table.title, table.title);
      charts.append(figure);
      const cosines = table.cosines.subarray(head * size, (head + 1) * size);
      drawSimilarities(canvas, table.positions, cosines, palette);
    }
  }
  if (part.isSelf && part.queries > 1) {
    const { measured, uniform } = attentionByDistance(part, layer, head);
    const mean = measured.reduce((sum, share, distance) => sum + share * distance, 0);
    const caption = "attention by distance in this text, "
      + `mean ${formatNumber(mean)} tokens (dashed: uniform)`;
    const [figure, canvas] = makeChart(caption, caption);
    charts.append(figure);
    drawCurves(canvas, measured.map((_, i) => i), [
      { y: uniform, colour: palette.faint, dashed: true },
      { y: measured, colour: palette.accent },
    ], "distance |i \u2212 j|", null, palette);
  }
  element.append(charts);
}

/** Return a paragraph with the parameters of a head for all keys or for one side, or null. */
function describeNumbers(numbers, head, side) {
  const sideOf = (name) => SIDES.find((end) => end && name.endsWith(end)) || "";
  const named = Object.entries(numbers).filter(([name]) => sideOf(name) === side);
  const texts = named.map(([name, values]) => (
    `${name.slice(0, name.length - side.length)} = ${formatNumber(values[head])}`));
  if (!texts.length) return null;
  const line = document.createElement("p");
  line.className = "parameters";
  line.textContent = (side ? `keys${side} the query: ` : "") + texts.join(", ");
  const weight = numbers[`w${side}`];
  if (weight) line.append(describeDistanceWeight(weight[head]));
  return line;
}

/** Return the lines of a curve: one, or two if each side of the query has a distance weight w. */
function colourSides(x, y, numbers, head, palette) {
  const colourOf = (weight) => (weight && weight[head] < 0 ? palette.local : palette.global);
  const own = x.indexOf(0);
  if (!numbers["w after"]) return [{ y, colour: colourOf(numbers.w || numbers["w before"]) }];
  return [
    { y: y.subarray(0, own + 1), colour: colourOf(numbers["w before"]) },
    { y: y.subarray(own), colour: colourOf(numbers["w after"]), start: own },
  ];
}

/** Say in words what the distance weight w does. */
function describeDistanceWeight(w) {
  const words = document.createElement("span");
  words.className = w < 0 ? "local-text" : "global-text";
  words.textContent = w < 0
    ? " \u2013 local: distant keys lose their scores"
    : " \u2013 global: scores of distant keys grow";
  return words;
}
