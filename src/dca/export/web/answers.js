// What the outputs of the model mean: a row for each image, as `make_row` of predict.py, and the table of all rows.
"use strict";

const NONE_OF_THESE = "none of these";

// Raises, in words for people, for options that the model cannot keep; `about` is classes.json.
function checkOptions(about, { reject, coverage }) {
  if (reject !== null) {
    if (!(reject >= 0 && reject <= 1)) throw new Error("Give a percentage from 0 to 100.");
    if (about.smallest_p_value === null) throw new Error("This model cannot tell images of none of its classes.");
    if (reject > 0 && reject < about.smallest_p_value) {
      throw new Error(`This model cannot keep that rate: it works from ${ceilPercent(about.smallest_p_value)} % on.`);
    }
  }
  if (coverage !== null) {
    if (!(coverage > 0 && coverage < 1)) throw new Error("Give a percentage between 0 and 100.");
    if (about.set_images === null) throw new Error("This model cannot give sets of classes.");
    if (coverage * (about.set_images + 1) > about.set_images + 1e-9) {
      throw new Error(`That is too much for ${about.set_images} training images: ask for less.`);
    }
  }
}

function ceilPercent(share) {
  return Math.ceil(1000 * share - 1e-9) / 10;
}

// found: probabilities, and pValue and ranks, null where the model has none.
function makeRow(about, path, found, { top, reject, coverage }) {
  const order = Array.from(found.probabilities.keys()).sort((a, b) => found.probabilities[b] - found.probabilities[a]);
  const best = order.slice(0, top).map((c) => ({ label: String(about.labels[c]), probability: found.probabilities[c] }));
  const row = { path, label: best[0].label, probability: best[0].probability, top: best };
  if (found.pValue !== null) {
    row.pValue = found.pValue;
    if (reject !== null && found.pValue <= reject) row.label = NONE_OF_THESE;
  }
  if (coverage !== null && found.ranks !== null) {
    const kept = (c) => c === order[0] || found.ranks[c] < coverage * (about.set_images + 1);
    row.set = order.filter(kept).map((c) => String(about.labels[c]));
  }
  return row;
}

// The columns of `dca predict -o`.
function listColumns(about, { top, coverage }) {
  const columns = ["path", "label", "probability"];
  for (let n = 2; n <= Math.min(top, about.labels.length); n++) columns.push(`label_${n}`, `probability_${n}`);
  if (about.smallest_p_value !== null) columns.push("p_value");
  if (coverage !== null) columns.push("set");
  return [...columns, "error"];
}

function toCell(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "number") return value.toFixed(6);
  const text = Array.isArray(value) ? value.join("; ") : value;
  // A spreadsheet would run these as formulas.
  const safe = /^[=+\-@\t\r\n]/.test(text) && !/^[+-]\d+(\.\d+)?$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function formatTable(columns, rows) {
  const lines = rows.map((row) => {
    const cells = { ...row, p_value: row.pValue };
    (row.top || []).slice(1).forEach((best, at) => {
      [cells[`label_${at + 2}`], cells[`probability_${at + 2}`]] = [best.label, best.probability];
    });
    return columns.map((name) => toCell(cells[name])).join(",");
  });
  return [columns.join(","), ...lines, ""].join("\n");
}

if (typeof module !== "undefined") module.exports = { checkOptions, formatTable, listColumns, makeRow };
