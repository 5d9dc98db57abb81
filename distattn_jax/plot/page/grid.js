// All heads of a part as small maps: a row for each layer, a column for each head and for the mean.

const MAX_THUMBNAIL = 48; // pixels on a side

class HeadGrid {
  /** `onSelect(layer, head)` is called when a map is clicked or reached by the arrow keys. */
  constructor(element, part, onSelect) {
    this.element = element;
    this.part = part;
    this.onSelect = onSelect;
    this.buttons = [];
    const columns = part.heads + 1;
    element.replaceChildren();
    element.style.gridTemplateColumns = `18px repeat(${columns}, minmax(22px, 64px))`;
    // A map of many queries and few keys would be too high for a grid.
    const shape = Math.max(0.5, Math.min(2, part.keys / part.queries));
    element.style.setProperty("--shape", String(shape));
    // Enlarged pixels stay sharp. Reduced pixels are averaged, so that none of them vanishes.
    element.style.setProperty("--pixels", part.keys < 32 ? "pixelated" : "auto");
    const addLabel = (text) => {
      const label = document.createElement("span");
      label.className = "label";
      label.textContent = text;
      element.append(label);
    };
    addLabel("");
    for (let head = 0; head < part.heads; head++) addLabel(String(head + 1));
    addLabel("mean");
    for (let layer = 0; layer < part.layers; layer++) {
      addLabel(String(part.layerNumbers[layer]));
      for (let head = 0; head < columns; head++) this.addButton(layer, head);
    }
    element.onkeydown = (event) => this.move(event);
  }

  addButton(layer, head) {
    const { part } = this;
    const button = document.createElement("button");
    button.type = "button";
    button.tabIndex = -1;
    const title = nameHead(part, layer, head);
    const weight = !part.isMean(head) && part.positions && part.positions[layer].numbers.w;
    if (weight) button.classList.add(weight[head] < 0 ? "local" : "global");
    button.title = weight ? `${title}: w = ${formatNumber(weight[head])}` : title;
    button.setAttribute("aria-label", button.title);
    button.append(document.createElement("canvas"));
    button.addEventListener("click", () => this.onSelect(layer, head));
    this.buttons.push(button);
    this.element.append(button);
  }

  /** Draw all small maps. A pixel shows the largest weight of the pairs of tokens in it. */
  draw(scale, between, palette) {
    const { part } = this;
    const pool = (count) => {
      const pixels = Math.min(count, MAX_THUMBNAIL);
      return [pixels, Array.from({ length: count }, (_, i) => Math.floor(i * pixels / count))];
    };
    const [rows, rowOf] = pool(part.queries), [columns, columnOf] = pool(part.keys);
    const pooled = new Float32Array(rows * columns);
    this.buttons.forEach((button, index) => {
      const layer = Math.floor(index / (part.heads + 1)), head = index % (part.heads + 1);
      const mean = part.isMean(head);
      // Integers are compared instead of weights, because decoding all maps would take longer.
      const values = mean ? part.weights(layer, head) : part.integersOf(layer, head);
      const largest = part.largestOf(layer, head);
      const end = (scale === "all" ? part.overallLargest : largest) || 1;
      pooled.fill(0);
      for (let i = 0, place = 0; i < part.queries; i++) {
        const start = rowOf[i] * columns;
        for (let j = 0; j < part.keys; j++, place++) {
          const target = start + columnOf[j];
          if (values[place] > pooled[target] && part.isSelected(i, j, between)) {
            pooled[target] = values[place];
          }
        }
      }
      const toFraction = mean ? (x) => x / end : (x) => (x / part.levels) ** 2 * largest / end;
      const colourOf = (i) => palette.sequential[palette.index(toFraction(pooled[i]))];
      paintPixels(button.firstChild, rows, columns, colourOf);
    });
  }

  /** Show which head is selected. */
  mark(layer, head) {
    const selected = layer * (this.part.heads + 1) + head;
    this.buttons.forEach((button, index) => {
      button.setAttribute("aria-pressed", String(index === selected));
      button.tabIndex = index === selected ? 0 : -1;
    });
  }

  /** Select a neighbour with the arrow keys. */
  move(event) {
    const columns = this.part.heads + 1, now = this.buttons.indexOf(document.activeElement);
    const row = Math.floor(now / columns), column = now % columns;
    const places = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, columns - 1],
    };
    if (now < 0 || !(event.key in places)) return;
    event.preventDefault();
    const [layer, head] = places[event.key];
    if (layer < 0 || layer >= this.part.layers || head < 0 || head >= columns) return;
    this.buttons[layer * columns + head].focus();
    this.onSelect(layer, head);
  }
}

/** Return the name of a head, such as "layer 1, head 3". */
function nameHead(part, layer, head) {
  const name = part.isMean(head) ? "mean of all heads" : `head ${head + 1}`;
  return `layer ${part.layerNumbers[layer]}, ${name}`;
}
