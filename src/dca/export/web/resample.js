// Pillow's resampling of 8-bit images, with the same integer arithmetic, and the crop that the model takes.
"use strict";

const PRECISION = 22; // bits behind the point of a weight

function sinc(x) {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

// Pillow's filter numbers: half-width in pixels, and the weight at a distance.
const FILTERS = {
  1: { support: 3, weight: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) }, // lanczos
  2: { support: 1, weight: (x) => Math.max(1 - Math.abs(x), 0) }, // bilinear
  3: { support: 2, weight: bicubic },
  4: { support: 0.5, weight: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) }, // box
  5: { support: 1, weight: hamming },
};

function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

function hamming(distance) {
  const x = Math.abs(distance) * Math.PI;
  if (x === 0) return 1;
  return x >= Math.PI ? 0 : (Math.sin(x) / x) * (0.54 + 0.46 * Math.cos(x));
}

// For `count` output pixels from `first` on: the first input pixel of each, and the integer weights of those after it.
function computeWeights(inputSize, outputSize, first, count, filter) {
  const scale = inputSize / outputSize;
  const rows = [];
  if (filter === 0) { // nearest; Pillow adds up the centres, too, so that rounding is the same
    for (let i = 0, center = 0.5 * scale; i < first + count; i++, center += scale) {
      if (i >= first) rows.push({ start: Math.floor(center), weights: [1 << PRECISION] });
    }
    return rows;
  }
  const { support, weight } = FILTERS[filter];
  for (let i = first; i < first + count; i++) {
    const center = (i + 0.5) * scale;
    const stretch = Math.max(scale, 1);
    const reach = support * stretch;
    const start = Math.max(Math.trunc(center - reach + 0.5), 0);
    const end = Math.min(Math.trunc(center + reach + 0.5), inputSize);
    const exact = [];
    for (let x = start; x < end; x++) exact.push(weight((x - center + 0.5) * (1 / stretch)));
    const sum = exact.reduce((a, b) => a + b, 0);
    const scaled = exact.map((w) => (w / sum) * (1 << PRECISION));
    rows.push({ start, weights: scaled.map((w) => Math.trunc(w + (w < 0 ? -0.5 : 0.5))) });
  }
  return rows;
}

function clip8(sum) {
  return Math.min(Math.max(sum >> PRECISION, 0), 255);
}

// One pass along one axis. pixels: `lines` lines of `length` pixels; line `l` begins at `l * lineStep`, and its pixels
// are `step` values apart. Returns RGB values, line after line.
function resampleLines(pixels, lines, lineStep, step, rows) {
  const out = new Uint8Array(lines * rows.length * 3);
  let place = 0;
  for (let line = 0; line < lines; line++) {
    for (const { start, weights } of rows) {
      let red = 1 << (PRECISION - 1), green = red, blue = red;
      let at = line * lineStep + start * step;
      for (const weight of weights) {
        red += pixels[at] * weight;
        green += pixels[at + 1] * weight;
        blue += pixels[at + 2] * weight;
        at += step;
      }
      out[place++] = clip8(red);
      out[place++] = clip8(green);
      out[place++] = clip8(blue);
    }
  }
  return out;
}

// The square that the model takes: RGB values (size, size, 3) of an RGBA image, as `crop` of predict.py.
function cropPixels(pixels, width, height, preprocess) {
  const { size, resize, resample, even } = preprocess;
  let target = [size, size];
  if (resize !== null) {
    const scaled = Math.trunc((resize * Math.max(width, height)) / Math.min(width, height));
    target = width <= height ? [resize, scaled] : [scaled, resize];
  }
  // Half a pixel: to the even number, as torchvision rounds, or down.
  const halve = margin => (even && margin % 4 === 3 ? (margin + 1) / 2 : Math.floor(margin / 2));
  const left = halve(target[0] - size), top = halve(target[1] - size);
  const columns = computeWeights(width, target[0], left, size, resample);
  const rows = computeWeights(height, target[1], top, size, resample);
  // Each pass rounds, so their order matters. Since Pillow 13, images that become much lower are first made lower.
  const less = [width - target[0], height - target[1]];
  if (less[1] > 0 && less[1] > 2 * less[0] && resample !== 0) {
    const low = resampleLines(pixels, width, 4, 4 * width, rows); // column after column: (width, size, 3)
    return resampleLines(low, size, 3, 3 * size, columns);
  }
  const narrow = resampleLines(pixels, height, 4 * width, 4, columns); // (height, size, 3)
  return transpose(resampleLines(narrow, size, 3, 3 * size, rows), size);
}

// RGB values column after column -> row after row, of a square.
function transpose(pixels, size) {
  const out = new Uint8Array(pixels.length);
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      for (let c = 0; c < 3; c++) out[(y * size + x) * 3 + c] = pixels[(x * size + y) * 3 + c];
    }
  }
  return out;
}

if (typeof module !== "undefined") module.exports = { cropPixels };
