// Requests to the control plane this page came from. Errors are its problem documents.

const base = new URL(".", document.baseURI);

export function address(path) {
  return new URL(path.replace(/^\//, ""), base).toString();
}

export function of(type, name) {
  return `${encodeURIComponent(type)}/${name.split("/").map(encodeURIComponent).join("/")}`;
}

export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `the service answered ${status}`);
    this.status = status;
    this.type = body?.type || "";
    this.errors = body?.errors || [];
  }
}

export async function call(method, path, body, headers = {}) {
  const options = { method, headers: { Accept: "application/json", "X-Everkeel-Request": "page", ...headers } };
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(address(path), options);
  } catch {
    throw new Problem(0, { detail: "the service cannot be reached" });
  }
  const text = await response.text();
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    answer = null; // not ours: a proxy's page, perhaps
  }
  if (!response.ok) throw new Problem(response.status, answer);
  return answer;
}

export const get = (path) => call("GET", path);
