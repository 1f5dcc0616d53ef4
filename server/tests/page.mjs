// The page in headless Chromium, against a server with the tiny model: scripts/page-test starts it.
//
//   node page.mjs PROGRAM MODEL [FOLDER]     screenshots go to FOLDER
//
// PAGE=server/page takes the page's files from there, so that they can be changed without building the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "/"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [program, model, folder] = process.argv.slice(2);
const PORT = 18181;
const ADDRESS = `http://127.0.0.1:${PORT}/`;

async function serve() {
  const args = ["serve", "--model", model, "--device", "cpu", "--port", PORT, "--max-new-tokens", "12", "--ignore-eos"];
  const server = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of server.stderr) if (String(line).includes("http://")) return server;
  throw new Error("the server does not start");
}

async function end(server) {
  const exit = once(server, "exit");
  server.kill("SIGKILL");
  await exit;
}

async function metric(name) {
  const text = await (await fetch(`${ADDRESS}metrics`)).text();
  return Number(text.split("\n").find((line) => line.startsWith(`${name} `)).split(" ")[1]);
}

/** A PNG of one colour. */
async function png(page, width, height, colour) {
  const data = await page.evaluate(([width, height, colour]) => {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, width, height);
    context.fillStyle = "#fff8";
    context.fillRect(width / 4, height / 4, width / 2, height / 2);
    return canvas.toDataURL("image/png").split(",")[1];
  }, [width, height, colour]);
  return { name: `${colour}.png`, mimeType: "image/png", buffer: Buffer.from(data, "base64") };
}

/** No rule of WCAG 2.1 A and AA that axe checks is broken. */
async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`), [], where);
}

const steps = [];
const step = (name, run) => steps.push([name, run]);
const answers = (page) => page.locator("article.assistant");
const done = (page, count) => page.waitForFunction((count) => {
  const answers = [...document.querySelectorAll("article.assistant")];
  return answers.length === count && answers.every((answer) => !answer.matches(".waiting"));
}, count);

async function setting(page, name, value) {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator(`dialog [name=${name}]`).fill(value);
  await page.getByRole("button", { name: "Close" }).click();
}

step("a question is streamed, and its speed shown", async (page) => {
  await page.locator("#text").fill("Hello");
  await page.keyboard.press("Enter");
  await done(page, 1);
  assert.match(await answers(page).last().locator(".tools").innerText(), /^12 tokens, [\d.]+ tokens\/s, first after [\d.]+ s, cut off/);
  assert.ok((await answers(page).last().locator(".text").innerText()).length > 0);
  // a screen reader is told the whole answer, and the keyboard is where the next question goes
  assert.equal(await page.locator("#said").innerText(), (await answers(page).last().locator(".text").innerText()));
  assert.equal(await page.evaluate(() => document.activeElement.id), "text");
});

step("pictures are chosen, dropped, pasted and taken away", async (page) => {
  await page.locator("#files").setInputFiles([await png(page, 64, 48, "#a33"), await png(page, 40, 40, "#3a3")]);
  await page.waitForFunction(() => document.querySelectorAll("#pictures li").length === 2);
  for (const kind of ["drop", "paste"]) {
    const file = await png(page, 32, 32, "#33a");
    await page.evaluate(([kind, bytes]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: "image/png" }));
      const event = kind === "drop"
        ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
        : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
      document.querySelector("main").dispatchEvent(event);
    }, [kind, [...file.buffer]]);
    await page.getByAltText(`${kind}.png`).waitFor();
  }
  await page.getByRole("button", { name: "Remove paste.png" }).click();
  assert.equal(await page.locator("#pictures li").count(), 3);
  const asked = page.waitForRequest("**/v1/chat/completions");
  await page.locator("#text").fill("What is it?");
  await page.getByRole("button", { name: "Send" }).click();
  const { messages } = (await asked).postDataJSON();
  assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "user"]);
  assert.deepEqual(messages[2].content.map(({ type }) => type), ["image_url", "image_url", "image_url", "text"]);
  await done(page, 2);
  assert.equal(await page.locator("article.user").last().locator("img").count(), 3);
  assert.equal(await page.locator(".error").count(), 0);
});

step("a picture that the server can't read is drawn anew", async (page) => {
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"><rect width="60" height="40" fill="red"/></svg>');
  await page.locator("#files").setInputFiles({ name: "a.svg", mimeType: "image/svg+xml", buffer: svg });
  await page.waitForTimeout(300);
  const pictures = await page.locator("#pictures img").count();
  if (pictures) {
    assert.match(await page.locator("#pictures img").getAttribute("src"), /^data:image\/jpeg/);
    await page.locator("#pictures button").click();
  } else {
    assert.match(await page.locator("#said").innerText(), /can't be read/);
  }
});

step("an answer is stopped by the button and by Escape", async (page) => {
  await setting(page, "max_tokens", "1500");
  for (const way of ["button", "Escape"]) {
    await page.locator("#text").fill("Go on");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("article.waiting .text")?.innerText.length > 3);
    if (way === "button") await page.getByRole("button", { name: "Stop" }).click();
    else await page.keyboard.press("Escape");
    await page.waitForFunction(() => !document.querySelector("article.waiting"));
    assert.match(await answers(page).last().locator(".tools").innerText(), /stopped/);
    for (let wait = 0; (await metric("pascaline_requests_running")) > 0; wait += 1) {
      assert.ok(wait < 100, "the server goes on");
      await page.waitForTimeout(20);
    }
  }
  assert.ok((await metric('pascaline_requests_total{outcome="left"}')) >= 2);
  await setting(page, "max_tokens", "12");
});

step("an answer is given anew, and a question is edited", async (page) => {
  const count = await answers(page).count();
  await answers(page).last().getByRole("button", { name: "Regenerate" }).click();
  await done(page, count);
  await page.locator("article.user").first().getByRole("button", { name: "Edit" }).click();
  await page.locator("article.user form textarea").fill("Something else");
  await page.keyboard.press("Enter");
  await done(page, 1);
  assert.equal(await page.locator("article.user .text").innerText(), "Something else");
});

step("a connection that breaks is told, and tried again", async (page, state) => {
  await setting(page, "max_tokens", "1500");
  await page.locator("#text").fill("Go on");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("article.waiting .text")?.innerText.length > 3);
  await end(state.server);
  await page.locator(".error").waitFor();
  assert.match(await page.locator(".error").innerText(), /connection broke/);
  const before = await answers(page).last().locator(".text").innerText();
  assert.ok(before.length > 3, "what has come stays");
  await setting(page, "max_tokens", "12");
  const count = await answers(page).count();
  await answers(page).last().getByRole("button", { name: "Try again" }).click();
  await page.waitForFunction(() => document.querySelector(".error")?.innerText.includes("can't be reached"));
  state.server = await serve();
  await answers(page).last().getByRole("button", { name: "Try again" }).click();
  await done(page, count);
  assert.equal(await page.locator(".error").count(), 0);
});

step("settings are kept, and the server's are shown", async (page) => {
  await setting(page, "temperature", "0.5");
  await page.reload();
  await page.getByRole("button", { name: "Settings" }).click();
  assert.equal(await page.locator("[name=temperature]").inputValue(), "0.5");
  assert.equal(await page.locator("[name=top_p]").getAttribute("placeholder"), "1");
  await accessible(page, "settings");
  await page.getByRole("button", { name: "As the server says" }).click();
  await page.keyboard.press("Escape");
});

const SAMPLE = `## What it shows

A **red square** in *two* shades, see [the docs](https://example.org/a_(b)) or \`main.rs\`.

1. First
2. Second
   - nested \`code\`
   - another

> A quote of a line.

| colour | share |
|:-------|------:|
| red    | 75 %  |
| white  | 25 %  |

\`\`\`rust
fn main() {
    println!("{}", 1 << 4); // a line that is long enough to be scrolled on a phone, where there is little room
}
\`\`\`

<img src=x onerror="window.broken=1"> [bad](javascript:window.broken=1) ![far](https://example.org/x.png)
`;

step("markdown becomes elements, and markup stays text", async (page) => {
  await page.route("**/v1/chat/completions", (route) => {
    const event = (choices, usage) => `data: ${JSON.stringify({ choices, usage })}\n\n`;
    const pieces = SAMPLE.match(/[\s\S]{1,7}/g).map((content) => event([{ index: 0, delta: { content }, finish_reason: null }], null));
    const tail = event([{ index: 0, delta: {}, finish_reason: "stop" }], null) + event([], { completion_tokens: pieces.length });
    route.fulfill({ contentType: "text/event-stream", body: `${pieces.join("")}: alive\n\n${tail}data: [DONE]\n\n` });
  });
  await page.locator("#files").setInputFiles([await png(page, 320, 200, "#b33")]);
  await page.waitForFunction(() => document.querySelectorAll("#pictures li").length === 1);
  await page.locator("#text").fill("What does the picture show?\nIn two lines.");
  await page.keyboard.press("Enter");
  await done(page, 1);
  const shown = answers(page).last().locator(".text");
  for (const [selector, count] of [["h4", 1], ["strong", 1], ["em", 1], ["ol > li", 2], ["ul > li", 2], ["blockquote", 1], ["table", 1], ["td", 4], ["pre code", 1], ["img", 0], ["script", 0]]) {
    assert.equal(await shown.locator(selector).count(), count, selector);
  }
  assert.deepEqual(await shown.locator("a").evaluateAll((links) => links.map((link) => link.getAttribute("href"))), ["https://example.org/a_(b)", "https://example.org/x.png"]);
  assert.ok((await shown.innerText()).includes('<img src=x onerror="window.broken=1">'));
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.equal(await page.locator("pre code").innerText().then((text) => text.split("\n")[1].startsWith("    println")), true);
});

step("it is readable on a phone and a desk, by day and by night", async (page) => {
  for (const [size, width, height] of [["desktop", 1200, 900], ["phone", 375, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      for (const [part, top] of [["end", 1e6], ["begin", 0]]) {
        await page.locator("main").evaluate((main, top) => (main.scrollTop = top), top);
        if (folder) await page.screenshot({ path: join(folder, `${size}-${colorScheme}-${part}.png`) });
      }
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${size}: ${wide} pixels too wide`);
      await accessible(page, `${size}, ${colorScheme}`);
      if (folder) {
        await page.getByRole("button", { name: "Settings" }).click();
        await page.screenshot({ path: join(folder, `${size}-${colorScheme}-settings.png`) });
        await page.keyboard.press("Escape");
      }
    }
  }
});

step("all is reached by the keyboard", async (page) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  await page.locator("body").evaluate(() => document.activeElement.blur());
  const reached = [];
  for (let press = 0; press < 40; press += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => {
      const active = document.activeElement;
      return active.id || active.textContent.slice(0, 20) || active.tagName;
    });
    if (reached.includes(name)) break;
    reached.push(name);
  }
  for (const name of ["new", "open-settings", "Edit", "Copy code", "Copy", "Regenerate", "files", "text", "send"]) {
    assert.ok(reached.includes(name), `${name} in ${reached}`);
  }
});

const state = { server: await serve() };
const profile = mkdtempSync(join(tmpdir(), "page-"));
const flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";
let browser;
try {
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: flags.split(" "),
    viewport: { width: 1200, height: 900 },
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  page.on("dialog", (dialog) => dialog.accept());
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(ADDRESS) && !/^(data|blob):/.test(request.url())) complaints.push(`asks ${request.url()}`);
  });
  if (process.env.PAGE) {
    await page.route((url) => /^\/([a-z]+\.[a-z]+)?$/.test(url.pathname), (route) => {
      route.fulfill({ path: join(process.env.PAGE, new URL(route.request().url()).pathname.slice(1) || "index.html") });
    });
  }
  await page.goto(ADDRESS);
  await page.waitForFunction(() => document.title.includes("tiny"));
  await accessible(page, "empty");
  for (const [name, run] of steps) {
    await run(page, state);
    console.log(`ok  ${name}`);
  }
  assert.deepEqual(complaints, []);
} finally {
  await browser?.close();
  await end(state.server);
  rmSync(profile, { recursive: true, force: true });
}
