// Server-sent events of a chat completion.

/** An error in the server's own words, or that there is no server. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** GET or POST, with the key if there is one. */
export async function ask(path, key, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    const method = body ? "POST" : "GET";
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server can't be reached. Is it running?", 0);
  }
  if (response.ok) return response;
  const json = await response.json().catch(() => null);
  throw new ServerError(json?.error?.message ?? `The server answers ${response.status}.`, response.status);
}

/** The chunks of a streamed response, up to its `[DONE]`. */
export async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        return { done: true };
      });
      if (done) throw new ServerError("The connection broke before the answer was complete.", 0);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue; // a comment, which keeps the connection alive
        const data = event.slice(6);
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ServerError(chunk.error.message, 0);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
