// Talking to the server: requests with the token, and small images as blob addresses.

const THUMBNAILS_KEPT = 600;
const KEY = "dca-token";

let token = "";
let base = "/api"; // of the model, or of the open project
const thumbnails = new Map(); // path of an image -> promise of a blob address

export class Refused extends Error {
  constructor(status, body) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }

  // Whether the same request may succeed later: the server is away or busy.
  get passing() {
    return this.status === 0 || this.status === 503;
  }
}

export function setBase(path) {
  base = path;
}

export const getBase = () => base;

export function useToken(given) {
  token = given;
  if (token) sessionStorage.setItem(KEY, token);
}

// The token is the part of the address after "#", which browsers do not send. It is kept for this tab only, and not as a
// cookie: browsers send those to every port of a host, which may be the server of another user of the machine.
export function readTokenFromAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const given = said.get("token"), project = said.get("project");
  if (given || project) history.replaceState(null, "", location.pathname + (project ? `#${encodeURIComponent(project)}` : ""));
  return given || sessionStorage.getItem(KEY) || "";
}

let onTokenNeeded = () => {};
export function whenTokenNeeded(act) {
  onTokenNeeded = act;
}

export async function call(method, path, body) {
  const headers = { "X-DCA": "1" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const raw = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = raw ? "application/octet-stream" : "application/json";
  const address = path.startsWith("/") ? path : `${base}/${path}`;
  let response;
  try {
    response = await fetch(address, { method, headers, body: body === undefined || raw ? body : JSON.stringify(body) });
  } catch {
    throw new Refused(0, { message: "the server does not answer", hint: "is dca still running?" });
  }
  if (response.status === 401) onTokenNeeded();
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
  return response;
}

export const get = async (path) => (await call("GET", path)).json();
export const post = async (path, body) => (await call("POST", path, body)).json();

export function thumbnail(image) {
  const path = `images/${image}`;
  if (!thumbnails.has(path)) {
    thumbnails.set(path, call("GET", path).then((r) => r.blob()).then((b) => URL.createObjectURL(b)));
    thumbnails.get(path).catch(() => thumbnails.delete(path));
    if (thumbnails.size > THUMBNAILS_KEPT) {
      const [oldest, address] = thumbnails.entries().next().value;
      thumbnails.delete(oldest);
      address.then((a) => URL.revokeObjectURL(a)).catch(() => {});
    }
  }
  return thumbnails.get(path);
}
