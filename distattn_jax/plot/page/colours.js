// Colours of weights, for light and dark pages.

const STOPS = {
  light: {
    sequential: ["#ffffff", "#d6e6f4", "#9dc9e2", "#4a97c9", "#1864aa", "#08306b"],
    diverging: ["#1864aa", "#9dc9e2", "#ffffff", "#f4b393", "#b2321a"],
  },
  dark: {
    sequential: ["#1d232d", "#1b3f63", "#1f659e", "#3f95d0", "#95cdf2", "#f2faff"],
    diverging: ["#6db5e8", "#27567e", "#1d232d", "#87452c", "#ff9d7a"],
  },
};

// Colours of heads in one picture: readable on light and dark ground, distinct for colour-blind
// readers as far as the first seven. More heads use them again.
const HEAD_COLOURS = [
  "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f7f7f", "#8c564b",
  "#9467bd", "#d62728", "#5f9e00", "#008b9a",
];

/** Return the colour of a head as [red, green, blue]. */
function headColour(head) { return parseColour(HEAD_COLOURS[head % HEAD_COLOURS.length]); }

/** Return the numbers [red, green, blue] of a colour such as "#0072b2". */
function parseColour(text) { return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)); }

/** Return 256 colours [red, green, blue] between the stops. */
function interpolate(stops) {
  const parsed = stops.map(parseColour);
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (parsed.length - 1);
    const low = Math.min(Math.floor(place), parsed.length - 2);
    return parsed[low].map((x, c) => Math.round(x + (place - low) * (parsed[low + 1][c] - x)));
  });
}

/** Return the relative luminance of a colour. Above 0.179, black has more contrast than white. */
function luminance(colour) {
  const [red, green, blue] = colour.map((x) => (
    x <= 10 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Colours of one theme. `root` colours the square root of a weight, which shows small ones. */
class Palette {
  constructor(theme, root) {
    this.sequential = interpolate(STOPS[theme].sequential);
    this.diverging = interpolate(STOPS[theme].diverging);
    this.root = root;
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "faint", "line", "accent", "local", "global"]) {
      this[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

  /** Return the index, from 0 to 255, of the colour of a fraction of the largest weight. */
  index(fraction) {
    const shown = this.root ? Math.sqrt(Math.max(fraction, 0)) : fraction;
    return Math.max(0, Math.min(255, Math.round(255 * shown)));
  }

  /** Return the index of the colour of a difference, from -1 to 1, in the diverging colours. */
  divergingIndex(fraction) {
    const size = this.root ? Math.sqrt(Math.abs(fraction)) : Math.abs(fraction);
    return Math.max(0, Math.min(255, Math.round(127.5 + 127.5 * Math.sign(fraction) * size)));
  }

  /** Colour an element by a fraction of the largest weight, with readable text on it. */
  colour(element, fraction) {
    const [red, green, blue] = this.sequential[this.index(fraction)];
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = luminance([red, green, blue]) > 0.179 ? "#000000" : "#ffffff";
  }
}

/** Write the values of a map to the pixels of a canvas, one pixel for each pair of tokens. */
function paintPixels(canvas, rows, columns, colourOf) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0, place = 0; i < rows * columns; i++, place += 4) {
    const colour = colourOf(i);
    image.data[place] = colour[0];
    image.data[place + 1] = colour[1];
    image.data[place + 2] = colour[2];
    image.data[place + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Set the size of a canvas in CSS pixels, sharp on every screen, and return its empty context. */
function openCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

/** Return a text that is at most `width` pixels wide. A text that was cut ends in an ellipsis. */
function cutText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text).slice(0, 40);
  const shorten = () => `${characters.join("")}\u2026`;
  while (characters.length > 1 && context.measureText(shorten()).width > width) characters.pop();
  return shorten();
}
