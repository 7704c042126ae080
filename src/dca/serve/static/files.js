// From what a person drops or chooses to photos on the server: folders, zip archives, and uploads with progress.

import { $, button, element, pluralize, say } from "./elements.js";
import { call } from "./server.js";

const PARALLEL = 4;
const SUFFIXES = /\.(jpe?g|jpe|jfif|png|webp|gif|bmp|tiff?|pp?m|pgm|avif|heic|heif)$/i;
const PARTS = /^(train|training|val|valid|validation|dev|test|testing)$/i;
// Limits of an archive: entries, bytes of one file when unpacked, and how many times larger than packed it may be.
const MOST_ENTRIES = 50_000, MOST_BYTES = 20e6, MOST_RATIO = 200;
const RETRY_MS = 1500, RETRIES = 80;

const hidden = (name) => name.startsWith(".") || ["__MACOSX", "Thumbs.db", "desktop.ini"].includes(name);
const isZip = (file) => /\.zip$/i.test(file.name) || file.type === "application/zip" || file.type === "application/x-zip-compressed";
export const isImage = (name, type = "") => SUFFIXES.test(name) || type.startsWith("image/");

// What was dropped or chosen: [{path: folders above it, name, read: () => Promise<Blob>}], and files that are no images.
export async function collect(transfer) {
  const found = [], others = [];
  const entries = [...(transfer.items || [])].map((item) => (item.webkitGetAsEntry ? item.webkitGetAsEntry() : null));
  const files = [...(transfer.files || [])];
  if (entries.some((entry) => entry && entry.isDirectory)) {
    for (const entry of entries) if (entry) await walk(entry, [], found, others);
  } else {
    for (const file of files) {
      const path = (file.webkitRelativePath || "").split("/").slice(0, -1);
      await addFile(file, path, found, others);
    }
  }
  return { images: found, others };
}

async function walk(entry, path, found, others) {
  if (hidden(entry.name)) return;
  if (entry.isFile) {
    const file = await new Promise((done, fail) => entry.file(done, fail));
    return addFile(file, path, found, others);
  }
  const reader = entry.createReader();
  for (;;) { // a reader gives at most 100 entries at a time
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) return;
    for (const inner of some) await walk(inner, [...path, entry.name], found, others);
  }
}

async function addFile(file, path, found, others) {
  if (path.some(hidden) || hidden(file.name)) return;
  if (isZip(file)) return readZip(file, found, others);
  if (isImage(file.name, file.type)) found.push({ path, name: file.name, read: async () => file });
  else others.push(file.name);
}

// --- zip archives: read from their list of contents, one file at a time, never as a whole -----

async function readZip(file, found, others) {
  const tail = await bytes(file, Math.max(0, file.size - 65_557), file.size);
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error(`${file.name} is not a readable zip archive`);
  const count = tail.getUint16(end + 10, true), size = tail.getUint32(end + 12, true), start = tail.getUint32(end + 16, true);
  if (start === 0xffffffff || count === 0xffff) throw new Error(`${file.name} is larger than 4 GB: unpack it and drop the folder`);
  if (count > MOST_ENTRIES) throw new Error(`${file.name} has more than ${MOST_ENTRIES.toLocaleString("en")} files`);
  const list = await bytes(file, start, start + size);
  const words = new TextDecoder();
  let at = 0;
  for (let n = 0; n < count && at + 46 <= list.byteLength; n += 1) {
    if (list.getUint32(at, true) !== 0x02014b50) throw new Error(`${file.name} is damaged`);
    const flags = list.getUint16(at + 8, true), method = list.getUint16(at + 10, true);
    const packed = list.getUint32(at + 20, true), unpacked = list.getUint32(at + 24, true);
    const length = list.getUint16(at + 28, true), extra = list.getUint16(at + 30, true), comment = list.getUint16(at + 32, true);
    const offset = list.getUint32(at + 42, true);
    const full = words.decode(new Uint8Array(list.buffer, list.byteOffset + at + 46, length));
    at += 46 + length + extra + comment;
    const parts = full.split(/[/\\]/).filter((part) => part && part !== "." && part !== "..");
    if (full.endsWith("/") || !parts.length || parts.some(hidden)) continue;
    const name = parts.pop();
    if (!isImage(name)) { others.push(name); continue; }
    found.push({ path: parts, name, read: () => unzip(file, { name, flags, method, packed, unpacked, offset }) });
  }
}

async function bytes(file, from, to) {
  return new DataView(await file.slice(from, to).arrayBuffer());
}

async function unzip(file, { name, flags, method, packed, unpacked, offset }) {
  if (flags & 1) throw new Error(`${name}: the archive has a password`);
  if (unpacked > MOST_BYTES || unpacked > MOST_RATIO * Math.max(packed, 1)) throw new Error(`${name}: too large when unpacked`);
  const head = await bytes(file, offset, offset + 30);
  if (head.byteLength < 30 || head.getUint32(0, true) !== 0x04034b50) throw new Error(`${name}: damaged in the archive`);
  const from = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const data = file.slice(from, from + packed);
  if (method === 0) return data;
  if (method !== 8) throw new Error(`${name}: packed in a way that browsers do not know; unpack the archive and drop the folder`);
  const reader = data.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const pieces = [];
  let total = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(pieces);
    total += value.length;
    if (total > MOST_BYTES || total > unpacked) { // what the list says may be a lie
      await reader.cancel();
      throw new Error(`${name}: larger than the archive says`);
    }
    pieces.push(value);
  }
}

// --- which class ------------------------------------------------------------------------------

// Sets `label` of each image to the folder that names its class, or null where none does: the folder right below those
// that all images share, or the last of these where most images lie in it. train/ and test/ are passed over.
export function nameClasses(images) {
  for (const image of images) image.path = image.path.filter((part) => !PARTS.test(part));
  const shared = [...(images.length ? images[0].path : [])];
  for (const { path } of images) while (shared.some((part, n) => path[n] !== part)) shared.pop();
  const direct = images.filter(({ path }) => path.length === shared.length).length;
  const single = shared.length > 0 && 2 * direct >= images.length;
  for (const image of images) image.label = single ? shared.at(-1) : image.path[shared.length] ?? null;
  return images;
}

// --- uploads ----------------------------------------------------------------------------------

let queue = [], running = 0, total = 0, finished = 0, known = 0, stopped = false;
const failures = [];
export const isUploading = () => running > 0 || queue.length > 0;

// Uploads images into classes, and resolves when all are sent; what is added while others are on their way joins them.
export function upload(images) {
  const drop = crypto.getRandomValues(new Uint32Array(2)).join("");
  if (!isUploading()) { total = finished = known = 0; failures.length = 0; stopped = false; }
  total += images.length;
  for (const image of images) queue.push({ ...image, drop }); // one by one: a call takes some 100,000 arguments at most
  showProgress();
  return new Promise((done) => {
    const started = Math.min(PARALLEL - running, queue.length);
    for (let n = 0; n < started; n += 1) work().then(() => { if (!isUploading()) done(); });
    if (!started) done();
  });
}

async function work() {
  running += 1;
  while (queue.length && !stopped) {
    const image = queue.shift();
    try {
      const answer = await send(image);
      if (!answer.photo) known += 1;
    } catch (error) {
      failures.push(`${image.name}: ${error.message}`);
      if (error.status === 507 || error.status === 401) stopped = true;
    }
    finished += 1;
    showProgress();
  }
  running -= 1;
  if (stopped) queue = [];
  if (!isUploading()) end();
}

// A server that is away for a moment, or busy, is asked again: nothing that was dropped is lost with it.
async function send({ read, name, label, drop }) {
  const blob = await read();
  const where = new URLSearchParams({ class: label, name, drop });
  for (let n = 0; ; n += 1) {
    try {
      return await (await call("POST", `photos?${where}`, blob)).json();
    } catch (error) {
      if (!error.passing || n >= RETRIES || stopped) throw error;
      // The request for a file that is gone fails as if there were no server.
      await blob.arrayBuffer().catch(() => { throw new Error("it cannot be read; was it moved?"); });
      $("progress-words").textContent = "The server does not answer. Trying again …";
      await new Promise((wake) => setTimeout(wake, RETRY_MS));
    }
  }
}

let shownAt = 0;
function showProgress() {
  const now = performance.now();
  if (now - shownAt < 100 && finished !== total) return;
  shownAt = now;
  $("progress").hidden = false;
  $("progress-bar").max = total;
  $("progress-bar").value = finished;
  $("progress-words").textContent = `Adding ${finished.toLocaleString("en")} of ${pluralize(total, "photo")} …`;
}

function end() {
  $("progress").hidden = true;
  const added = finished - known - failures.length;
  const again = known ? `, ${known.toLocaleString("en")} were there already` : "";
  say(`Saved ${pluralize(added, "photo")}${again}${failures.length ? `, ${failures.length.toLocaleString("en")} not` : ""}`, { bad: failures.length > 0 });
  showFailures();
}

function showFailures() {
  const box = $("failures");
  box.hidden = !failures.length;
  if (!failures.length) return;
  const shown = failures.slice(0, 20).map((line) => element("li", { text: line }));
  const more = failures.length > 20 ? [element("p", { class: "quiet", text: `and ${failures.length - 20} more` })] : [];
  const close = button("Close", () => { box.hidden = true; failures.length = 0; });
  box.replaceChildren(element("h2", { text: `${pluralize(failures.length, "file")} not added` }), element("ul", { class: "lines" }, ...shown), ...more, close);
}

export function stopUploads() {
  stopped = true;
}
