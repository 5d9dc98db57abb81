// All heads of a part as small maps: a row for each layer, a column for each head and for the mean.
// The maps of a single layer are larger, and wrap into several rows.

const MAX_THUMBNAIL = 48, MAX_THUMBNAIL_SINGLE = 144; // pixels on a side

class HeadGrid {
  /** `onSelect(layer, head)` is called when a map is clicked or reached by the arrow keys. */
  constructor(element, part, onSelect) {
    this.element = element;
    this.part = part;
    this.onSelect = onSelect;
    this.buttons = [];
    const maps = part.heads + 1;
    this.isSingle = part.layers === 1;
    this.columns = this.isSingle ? Math.ceil(Math.sqrt(1.3 * maps)) : maps;
    element.replaceChildren();
    element.style.gridTemplateColumns = this.isSingle
      ? `repeat(${this.columns}, minmax(22px, 144px))`
      : `max-content repeat(${maps}, minmax(22px, 64px))`;
    // A map of many queries and few keys would be too high for a grid.
    const shape = Math.max(0.5, Math.min(2, part.keys / part.queries));
    element.style.setProperty("--shape", String(shape));
    // Enlarged pixels stay sharp. Reduced pixels are averaged, so that none of them vanishes.
    element.style.setProperty("--pixels", part.keys < 32 ? "pixelated" : "auto");
    const nameOf = (head, prefix) => (part.isMean(head) ? "mean" : `${prefix}${head + 1}`);
    if (this.isSingle) {
      for (let head = 0; head < maps; head++) {
        this.addButton(0, head, element.appendChild(makeCell(nameOf(head, "head "))));
      }
    } else {
      const above = makeLabel("head"), beside = makeLabel("layer");
      above.style.gridColumn = `2 / span ${part.heads}`;
      beside.style.gridColumn = "1"; // begins the next row
      element.append(above, beside);
      for (let head = 0; head < maps; head++) element.append(makeLabel(nameOf(head, "")));
      for (let layer = 0; layer < part.layers; layer++) {
        element.append(makeLabel(String(part.layerNumbers[layer])));
        for (let head = 0; head < maps; head++) this.addButton(layer, head, element);
      }
    }
    element.onkeydown = (event) => this.move(event);
  }

  /** Add the small map of a head to a parent element. */
  addButton(layer, head, parent) {
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
    parent.append(button);
  }

  /** Draw all small maps. A pixel shows the largest weight of the pairs of tokens in it. */
  draw(scale, between, palette) {
    const { part } = this;
    const most = this.isSingle ? MAX_THUMBNAIL_SINGLE : MAX_THUMBNAIL;
    const pool = (count) => {
      const pixels = Math.min(count, most);
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
    const { columns } = this, now = this.buttons.indexOf(document.activeElement);
    const row = Math.floor(now / columns), column = now % columns;
    const places = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, columns - 1],
    };
    if (now < 0 || !(event.key in places)) return;
    event.preventDefault();
    const [newRow, newColumn] = places[event.key];
    if (newRow < 0 || newColumn < 0 || newColumn >= columns) return;
    const place = newRow * columns + newColumn, maps = this.part.heads + 1;
    if (place >= this.buttons.length) return;
    this.buttons[place].focus();
    this.onSelect(Math.floor(place / maps), place % maps);
  }
}

/** Return the label of a row, a column or a cell of the grid. */
function makeLabel(text) {
  const label = document.createElement("span");
  label.className = "label";
  label.textContent = text;
  return label;
}

/** Return a cell that has its own label. */
function makeCell(text) {
  const cell = document.createElement("div");
  cell.className = "cell";
  cell.append(makeLabel(text));
  return cell;
}

/** Return the name of a head, such as "layer 1, head 3". */
function nameHead(part, layer, head) {
  const name = part.isMean(head) ? "mean of all heads" : `head ${head + 1}`;
  return `layer ${part.layerNumbers[layer]}, ${name}`;
}

/** Return the name of several heads of a layer, such as "layer 1, heads 1, 3 and 4". */
function nameHeads(part, layer, heads) {
  if (heads.length === 1) return nameHead(part, layer, heads[0]);
  const names = heads.map((head) => String(head + 1));
  const last = names.pop();
  return `layer ${part.layerNumbers[layer]}, heads ${names.join(", ")} and ${last}`;
}
