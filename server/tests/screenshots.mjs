// Pictures of the page for its document, in headless Chromium: scripts/page-screenshots starts it.
//
//   node screenshots.mjs PROGRAM MODEL PAGE FOLDER
//
// The page is the real one, with its files from PAGE. The checkpoint has random weights, so the answers are those written below, which the
// browser gets in place of the server's.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { chromium } = createRequire(join(process.cwd(), "/"))("playwright-core");
const [program, model, pageFiles, folder] = process.argv.slice(2);
const PORT = 18182;
const ADDRESS = `http://127.0.0.1:${PORT}/`;

const TRIANGLE = `This is **Pascal's triangle**, here its first six rows. Each number is the sum of the two above it:

$$\\binom{n}{k} = \\binom{n-1}{k-1} + \\binom{n-1}{k}$$

| row | sum | as a power |
|----:|----:|:-----------|
| 4   | 16  | $2^4$      |
| 5   | 32  | $2^5$      |

The next row is 1 6 15 20 15 6 1:

\`\`\`python
def next_row(row):
    """Sums of neighbours, between ones."""
    return [1] + [a + b for a, b in zip(row, row[1:])] + [1]
\`\`\`
`;

const ASKED = [
  ["How many days has February?", "28, and 29 in a leap year."],
  ["Write a haiku about rain", "Rain on the window,\\\na second rain on the street,\\\nfootsteps in between."],
  ["Plan a walk of two hours", "Out for 55 minutes, a pause of ten, and back by another way."],
];

async function mock(page, text) {
  await page.unroute("**/v1/chat/completions");
  await page.route("**/v1/chat/completions", (route) => {
    const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
    const pieces = text.match(/[\s\S]{1,4}/g).map((content) => event({ choices: [{ index: 0, delta: { content }, finish_reason: null }] }));
    const end = event({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
    route.fulfill({ contentType: "text/event-stream", body: `${pieces.join("")}${end}data: [DONE]\n\n` });
  });
}

async function ask(page, words, text, count) {
  await mock(page, text);
  await page.locator("#text").fill(words);
  await page.keyboard.press("Enter");
  await page.waitForFunction((count) => document.querySelectorAll("article.assistant:not(.waiting)").length === count, count);
}

/** A drawing of Pascal's triangle, as a file. */
async function triangle(page) {
  const data = await page.evaluate(() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 480, height: 300 });
    const context = canvas.getContext("2d");
    context.fillStyle = "#f6efdf";
    context.fillRect(0, 0, 480, 300);
    context.fillStyle = "#3b2f20";
    context.font = "24px serif";
    context.textAlign = "center";
    let row = [1];
    for (let at = 0; at < 6; at += 1) {
      for (const [k, value] of row.entries()) context.fillText(value, 240 + (2 * k - at) * 32, 52 + at * 43);
      row = [1, ...row.slice(1).map((value, k) => value + row[k]), 1];
    }
    return canvas.toDataURL("image/png").split(",")[1];
  });
  return { name: "triangle.png", mimeType: "image/png", buffer: Buffer.from(data, "base64") };
}

const server = spawn(program, ["serve", "--model", model, "--device", "cpu", "--port", PORT, "--name", "Qwen3-VL-2B-Instruct"], { stdio: ["ignore", "ignore", "pipe"] });
const profile = mkdtempSync(join(tmpdir(), "page-"));
let browser;
try {
  for await (const line of server.stderr) if (String(line).includes("http://")) break;
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars".split(" "),
    viewport: { width: 1200, height: 800 },
  });
  const page = await browser.newPage();
  await page.route((url) => /^\/([a-z]+\.[a-z]+)?$/.test(url.pathname), (route) => {
    const path = join(pageFiles, new URL(route.request().url()).pathname.slice(1) || "index.html");
    route.fulfill({ path, contentType: { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" }[path.split(".").at(-1)] });
  });
  await page.goto(ADDRESS);
  await page.waitForFunction(() => document.title.includes("Qwen3"));
  for (const [words, text] of ASKED) {
    await ask(page, words, text, 1);
    await page.locator("#new").click();
    await page.waitForFunction(() => !document.querySelector("article"));
  }
  await page.locator("#files").setInputFiles([await triangle(page)]);
  await page.locator("#pictures img").waitFor();
  await ask(page, "What is this, and what is the next row?", TRIANGLE, 1);
  // a speed would be that of this script
  await page.locator("article.assistant .note").evaluateAll((notes) => notes.forEach((note) => note.remove()));
  await page.mouse.move(600, 5);
  await page.locator("#text").focus();
  const shot = async (name, colorScheme, [width, height], top = 0) => {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme });
    await page.waitForTimeout(300);
    await page.locator("main").evaluate((main, top) => (main.scrollTop = top), top);
    await page.screenshot({ path: join(folder, `${name}.png`) });
  };
  await shot("desktop-light", "light", [1200, 800]);
  await shot("desktop-dark", "dark", [1200, 800], 1e6);
  await shot("phone-light", "light", [375, 740]);
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.waitForTimeout(300);
  await shot("phone-dark", "dark", [375, 740]);
} finally {
  await browser?.close();
  const exit = once(server, "exit");
  server.kill("SIGKILL");
  await exit;
  rmSync(profile, { recursive: true, force: true });
}
