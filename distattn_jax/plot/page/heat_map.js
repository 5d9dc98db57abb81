// One attention map in full size: rows are queries, columns are keys. Received attention is below.

const MAX_CELL = 52, LABEL_FONT = 12, BAR_HEIGHT = 34, GAP = 6;

class HeatMap {
  /** `box` holds the canvas and the two marks of the selected row and column. */
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector(".map");
    this.rowMark = box.querySelector(".row-mark");
    this.columnMark = box.querySelector(".column-mark");
    this.pixels = document.createElement("canvas");
  }

  /**
   * Draw a map.
   *
   * `colourOf(i)` is the colour of entry i, row by row. `received` has one number for each key, or
   * is null to draw no bars.
   */
  draw(part, colourOf, received, palette) {
    this.part = part;
    const queries = part.queryTokens.map(nameToken), keys = part.tokens.map(nameToken);
    const available = Math.max(this.box.clientWidth - 2, 200);
    const measure = this.canvas.getContext("2d");
    measure.font = `${LABEL_FONT}px ${FONT_FAMILY}`;
    const widest = (tokens) => Math.max(...tokens.map((token) => measure.measureText(token).width));
    const named = Math.max(widest(queries), widest(["received"]));
    this.left = Math.ceil(Math.min(named, 0.28 * available, 120)) + GAP;
    this.top = Math.ceil(Math.max(Math.min(widest(keys), 100), LABEL_FONT)) + GAP;
    this.cell = Math.min((available - this.left) / part.keys, MAX_CELL);
    const width = Math.ceil(this.left + this.cell * part.keys);
    const mapHeight = this.cell * part.queries;
    const height = Math.ceil(this.top + mapHeight + (received ? BAR_HEIGHT + 2 * GAP : 0));
    const context = openCanvas(this.canvas, Math.max(width, 60), height);
    paintPixels(this.pixels, part.queries, part.keys, colourOf);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.pixels, this.left, this.top, this.cell * part.keys, mapHeight);
    context.strokeStyle = palette.line;
    context.strokeRect(this.left, this.top, this.cell * part.keys, mapHeight);
    this.drawLabels(context, queries, keys, palette);
    if (received) this.drawReceived(context, received, this.top + mapHeight + GAP, palette);
    this.mark(null, null);
  }

  /** Name tokens beside the map: all, or every second, third or later one if there is no room. */
  drawLabels(context, queries, keys, palette) {
    const every = Math.max(1, Math.ceil(11 / this.cell));
    const size = Math.min(LABEL_FONT, Math.max(9, this.cell * every));
    context.font = `${size}px ${FONT_FAMILY}`;
    context.fillStyle = palette.ink;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let i = 0; i < queries.length; i += every) {
      const text = cutText(context, queries[i], this.left - GAP);
      context.fillText(text, this.left - 4, this.top + (i + 0.5) * this.cell);
    }
    context.textAlign = "left";
    for (let j = 0; j < keys.length; j += every) {
      context.save();
      context.translate(this.left + (j + 0.5) * this.cell, this.top - 4);
      context.rotate(-Math.PI / 2);
      context.fillText(cutText(context, keys[j], this.top - GAP), 0, 0);
      context.restore();
    }
  }

  /** Draw the attention that each key receives as bars. The dotted line is the mean. */
  drawReceived(context, received, top, palette) {
    const largest = Math.max(...received, 1e-9);
    context.fillStyle = palette.accent;
    received.forEach((value, j) => {
      const height = BAR_HEIGHT * value / largest;
      context.fillRect(
        this.left + j * this.cell, top + BAR_HEIGHT - height, Math.max(this.cell - 1, 0.7), height);
    });
    const mean = received.reduce((a, b) => a + b, 0) / received.length;
    const y = top + BAR_HEIGHT * (1 - mean / largest);
    context.strokeStyle = palette.faint;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(this.left, y);
    context.lineTo(this.left + this.cell * received.length, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = palette.faint;
    context.font = `11px ${FONT_FAMILY}`;
    context.textAlign = "right";
    const label = cutText(context, "received", this.left - GAP);
    context.fillText(label, this.left - 4, top + BAR_HEIGHT / 2);
  }

  /** Return the query and the key under a pointer; null outside. Beside the map, one of them. */
  locate(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - bounds.left - this.left) / this.cell);
    const query = Math.floor((event.clientY - bounds.top - this.top) / this.cell);
    const inside = (index, count) => (index >= 0 && index < count ? index : null);
    const found = { query: inside(query, this.part.queries), key: inside(key, this.part.keys) };
    return found.query === null && found.key === null ? null : found;
  }

  /** Frame the row of a query and the column of a key. Null frames nothing. */
  mark(query, key) {
    const place = (element, shown, left, top, width, height) => {
      element.hidden = !shown;
      if (!shown) return;
      Object.assign(element.style, {
        left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px`,
      });
    };
    const width = this.cell * this.part.keys, height = this.cell * this.part.queries;
    place(this.rowMark, query !== null, this.left, this.top + query * this.cell, width, this.cell);
    place(this.columnMark, key !== null, this.left + key * this.cell, this.top, this.cell, height);
  }
}
