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
import { setTimeout } from "node:timers/promises";

const require = createRequire(join(process.cwd(), "/"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [program, model, folder] = process.argv.slice(2);
const PORT = 18181;
const ADDRESS = `http://127.0.0.1:${PORT}/`;

async function serve(...more) {
  const args = ["serve", "--model", model, "--device", "cpu", "--port", PORT, "--max-new-tokens", "12", "--ignore-eos", ...more];
  const server = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of server.stderr) if (String(line).includes("http://")) return server;
  throw new Error("the server does not start");
}

async function end(server) {
  const exit = once(server, "exit");
  server.kill("SIGKILL");
  await exit;
}

/** While `run` runs, the server works 5 of each 100 ms: an answer of 1,500 tokens takes seconds on the fastest machine. */
async function slowly(server, run) {
  let isSlow = true;
  const turns = (async () => {
    while (isSlow) {
      server.kill("SIGSTOP");
      await setTimeout(95);
      server.kill("SIGCONT");
      await setTimeout(5);
    }
  })();
  try {
    await run();
  } finally {
    isSlow = false;
    await turns;
  }
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
  const field = page.locator(`dialog [name=${name}]`);
  if (name === "theme") await field.selectOption(value);
  else await field.fill(value);
  await page.getByRole("button", { name: "Close", exact: true }).click();
}

const titles = (page) => page.locator("#chats li:not([hidden]) .title").allInnerTexts();

async function ask(page, words) {
  const count = await answers(page).count();
  await page.locator("#text").fill(words);
  await page.keyboard.press("Enter");
  await done(page, count + 1);
}

/** Asks for an answer, and waits for its first characters. */
async function goOn(page) {
  await page.locator("#text").fill("Go on");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("article.waiting .text")?.innerText.length > 3);
}

async function action(page, title, name) {
  await page.getByRole("button", { name: `Rename, export or delete ${title}` }).click();
  await page.locator("#chats .actions:visible").getByRole("button", { name }).click();
}

/** What a click downloads, as text. */
async function downloaded(page, click) {
  const [download] = await Promise.all([page.waitForEvent("download"), click()]);
  return { name: download.suggestedFilename(), text: readFileSync(await download.path(), "utf8") };
}

async function importFile(page, text) {
  await page.locator("#notice").evaluate((notice) => (notice.hidden = true));
  await page.locator("#import").setInputFiles({ name: "file.json", mimeType: "application/json", buffer: Buffer.from(text) });
  await page.locator("#notice").waitFor();
  return page.locator("#notice p").innerText();
}

/** Answers with these deltas until the page is routed otherwise. */
async function mock(page, deltas, reason = "stop") {
  await page.unroute("**/v1/chat/completions");
  await page.route("**/v1/chat/completions", (route) => {
    const event = (choices, usage) => `data: ${JSON.stringify({ choices, usage })}\n\n`;
    const pieces = deltas.map((delta) => event([{ index: 0, delta, finish_reason: null }], null));
    const tail = event([{ index: 0, delta: {}, finish_reason: reason }], null) + event([], { completion_tokens: pieces.length });
    route.fulfill({ contentType: "text/event-stream", body: `${pieces.join("")}: alive\n\n${tail}data: [DONE]\n\n` });
  });
}
const piecewise = (text) => text.match(/[\s\S]{1,7}/g).map((content) => ({ content }));

step("a question is streamed, and told", async (page) => {
  await page.locator("#text").fill("Hello");
  await page.keyboard.press("Enter");
  await done(page, 1);
  // so few tokens are no measure of speed
  assert.match(await answers(page).last().locator(".note").innerText(), /^12 tokens, first after [\d.]+ s, cut off/);
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
      for (const name of [`${kind}.png`, `${kind}-2.png`]) transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
      const event = kind === "drop"
        ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
        : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
      document.querySelector("main").dispatchEvent(event);
    }, [kind, [...file.buffer]]);
    await page.getByAltText(`${kind}-2.png`).waitFor();
    await page.getByRole("button", { name: `Remove ${kind}-2.png` }).click();
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
  assert.equal(await page.locator(".error:not([hidden])").count(), 0);
});

step("a text file becomes part of the message, a video a part of its own, and another file is refused in sight", async (page) => {
  const file = (name, mimeType, text) => ({ name, mimeType, buffer: Buffer.from(text) });
  await page.getByRole("button", { name: "New chat" }).first().click();
  await page.locator("#text").fill("See");
  await page.locator("#files").setInputFiles([file("notes.md", "text/markdown", "# A\n```\nb\n```\n")]);
  await page.waitForFunction(() => document.querySelector("#text").value.endsWith("````\n"));
  assert.equal(await page.locator("#text").inputValue(), "See\n\nnotes.md:\n````\n# A\n```\nb\n```\n````\n");
  await page.locator("#files").setInputFiles([file("some.pdf", "application/pdf", "%PDF\0")]);
  await page.locator("#notice").getByText("some.pdf is neither a picture, a video nor a text in UTF-8.").waitFor();
  await page.locator("#notice").getByRole("button", { name: "Dismiss" }).click();
  await page.locator("#files").setInputFiles([file("film.webm", "video/webm", "no film")]);
  await page.locator("#pictures video").waitFor();
  const asked = page.waitForRequest("**/v1/chat/completions");
  await page.getByRole("button", { name: "Send" }).click();
  const { content } = (await asked).postDataJSON().messages.at(-1);
  assert.deepEqual(content.map(({ type }) => type), ["video_url", "text"]);
  assert.match(content[0].video_url.url, /^data:video\/webm;base64,/);
  await page.locator("article.assistant .error:not([hidden])").waitFor(); // in the server's own words
  await action(page, "See", "Delete");
  await page.getByRole("button", { name: "Dismiss" }).click();
  await page.locator("#chats a").first().click();
  await done(page, 2);
});

step("a picture that the server can't read is drawn anew", async (page) => {
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"><rect width="60" height="40" fill="red"/></svg>');
  await page.locator("#files").setInputFiles({ name: "a.svg", mimeType: "image/svg+xml", buffer: svg });
  await page.waitForTimeout(300);
  if (await page.locator("#pictures img").count()) {
    const asked = page.waitForRequest("**/v1/chat/completions");
    await ask(page, "And this?");
    assert.match((await asked).postDataJSON().messages.at(-1).content[0].image_url.url, /^data:image\/jpeg/);
  } else {
    assert.match(await page.locator("#said").innerText(), /can't be read/);
  }
});

step("an answer is stopped by the button and by Escape", async (page, state) => {
  await setting(page, "max_tokens", "1500");
  for (const way of ["button", "Escape"]) {
    await slowly(state.server, async () => {
      await goOn(page);
      if (way === "button") await page.getByRole("button", { name: "Stop" }).click();
      else await page.keyboard.press("Escape");
      await page.waitForFunction(() => !document.querySelector("article.waiting"));
    });
    assert.match(await answers(page).last().locator(".note").innerText(), /stopped/);
    for (let wait = 0; (await metric("pascaline_requests_running")) > 0; wait += 1) {
      assert.ok(wait < 100, "the server goes on");
      await page.waitForTimeout(20);
    }
  }
  assert.ok((await metric('pascaline_requests_total{outcome="left"}')) >= 2);
  await setting(page, "max_tokens", "400");
  await slowly(state.server, () => ask(page, "Long")); // the page tells no rate of an answer of less than 0.2 s
  assert.match(await answers(page).last().locator(".note").innerText(), /^400 tokens, \d{2,5}\.\d tokens\/s, first after/);
  await setting(page, "max_tokens", "12");
});

step("an answer that was cut goes on in its place", async (page) => {
  await setting(page, "temperature", "0");
  await setting(page, "max_tokens", "24");
  await ask(page, "One and two");
  const whole = await answers(page).last().locator(".text").innerText();
  await setting(page, "max_tokens", "12");
  await answers(page).last().getByRole("button", { name: "Regenerate" }).click();
  const count = await answers(page).count();
  await done(page, count);
  const begun = await answers(page).last().locator(".text").innerText();
  assert.ok(whole.startsWith(begun.trimEnd()) && begun.length < whole.length, `${begun} of ${whole}`);
  const asked = page.waitForRequest("**/v1/chat/completions");
  await answers(page).last().getByRole("button", { name: "Continue" }).click();
  const body = (await asked).postDataJSON();
  assert.deepEqual([body.continue_final_message, body.messages.at(-1).role], [true, "assistant"]);
  await done(page, count);
  const now = await answers(page).last().locator(".text").innerText();
  assert.ok(now.startsWith(begun.trimEnd()) && now.length > begun.length, `${now} after ${begun}`);
  assert.equal(await answers(page).count(), count);
  // only the last answer can go on
  await ask(page, "Next");
  assert.equal(await answers(page).nth(count - 1).getByRole("button", { name: "Continue" }).count(), 0);
  await setting(page, "temperature", "");
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
  await slowly(state.server, async () => {
    await goOn(page);
    await end(state.server);
  });
  await page.locator(".error:not([hidden])").waitFor();
  assert.match(await page.locator(".error:not([hidden])").innerText(), /connection broke/);
  const before = await answers(page).last().locator(".text").innerText();
  assert.ok(before.length > 3, "what has come stays");
  await setting(page, "max_tokens", "12");
  const count = await answers(page).count();
  await answers(page).last().getByRole("button", { name: "Try again" }).click();
  await page.waitForFunction(() => document.querySelector(".error:not([hidden])")?.innerText.includes("can't be reached"));
  state.server = await serve();
  await answers(page).last().getByRole("button", { name: "Try again" }).click();
  await done(page, count);
  assert.equal(await page.locator(".error:not([hidden])").count(), 0);
});

step("settings and the theme are kept, and the server's are shown", async (page) => {
  await setting(page, "temperature", "0.5");
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const day = await background();
  await setting(page, "theme", "dark");
  assert.notEqual(await background(), day);
  const night = await background();
  await page.reload();
  assert.equal(await background(), night, "before the page's modules run");
  await page.locator("body.ready").waitFor();
  await page.getByRole("button", { name: "Settings" }).click();
  assert.equal(await page.locator("[name=temperature]").inputValue(), "0.5");
  assert.equal(await page.locator("[name=theme]").inputValue(), "dark");
  await page.waitForFunction(() => document.querySelector("[name=top_p]").placeholder === "1");
  await accessible(page, "settings");
  await page.getByRole("button", { name: "As the server says" }).click();
  await page.keyboard.press("Escape");
  await page.emulateMedia({ colorScheme: "dark" });
  await setting(page, "theme", "light");
  assert.equal(await background(), day);
  await page.emulateMedia({ colorScheme: "light" });
  await setting(page, "theme", "");
});

step("a reload opens the conversation again, with its pictures", async (page) => {
  await page.getByRole("button", { name: "New chat" }).first().click();
  assert.equal(await page.locator("article").count(), 0);
  await page.locator("#files").setInputFiles([await png(page, 64, 48, "#a33"), await png(page, 40, 30, "#3a3")]);
  await page.waitForFunction(() => document.querySelectorAll("#pictures li").length === 2);
  await ask(page, "Two Pelicans\nand a boat");
  const text = await answers(page).locator(".text").innerText();
  const note = await answers(page).locator(".note").innerText();
  await page.reload();
  await done(page, 1);
  assert.equal(await page.locator("article.user .text").innerText(), "Two Pelicans\nand a boat");
  assert.equal(await answers(page).locator(".text").innerText(), text);
  assert.equal(await answers(page).locator(".note").innerText(), note);
  await page.waitForFunction(() => [...document.querySelectorAll("article img")].every(({ complete }) => complete));
  assert.deepEqual(await page.locator("article img").evaluateAll((images) => images.map(({ naturalWidth }) => naturalWidth)), [64, 40]);
  const asked = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "More");
  assert.deepEqual((await asked).postDataJSON().messages[0].content.map(({ image_url }) => image_url?.url.slice(0, 15)), ["data:image/png;", "data:image/png;", undefined]);
  // back to the conversation before, and forth
  assert.deepEqual(await titles(page), ["Two Pelicans", "Something else"]);
  await page.goBack();
  await page.waitForFunction(() => !document.querySelector("article"));
  await page.goForward();
  await done(page, 2);
});

step("an answer goes on while another conversation is open, and a reload keeps what has come", async (page, state) => {
  await setting(page, "max_tokens", "1500");
  await slowly(state.server, async () => {
    await goOn(page);
    await page.locator("#chats a").filter({ hasText: "Something else" }).click();
    await page.waitForFunction(() => document.querySelector("article.user .text").innerText === "Something else");
    assert.equal(await page.locator("#send").isVisible(), true);
    await page.locator("#chats a").filter({ hasText: "Two Pelicans" }).click();
    await page.locator("article.waiting").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await done(page, 3);
    await goOn(page);
    await page.reload();
    await done(page, 4);
  });
  assert.match(await answers(page).last().locator(".note").innerText(), /interrupted/);
  await setting(page, "max_tokens", "12");
  // a question is kept before its answer begins
  await page.getByRole("button", { name: "New chat" }).first().click();
  await page.route("**/v1/chat/completions", () => {});
  await page.locator("#text").fill("Unanswered");
  await page.keyboard.press("Enter");
  await page.locator("article.waiting").waitFor();
  await page.waitForTimeout(200);
  await page.reload();
  await page.unroute("**/v1/chat/completions");
  await done(page, 1);
  assert.equal(await page.locator("article.user .text").innerText(), "Unanswered");
  await action(page, "Unanswered", "Delete");
  await page.locator("#chats a").filter({ hasText: "Two Pelicans" }).click();
  await done(page, 4);
});

step("conversations are found, renamed and deleted, and deleting is undone", async (page) => {
  const search = page.getByLabel("Search conversations");
  await search.fill("pelic");
  assert.deepEqual(await titles(page), ["Two Pelicans"]);
  await search.fill("A BOAT");
  assert.deepEqual(await titles(page), ["Two Pelicans"]);
  assert.equal(await page.locator("#chats mark").innerText(), "a boat");
  assert.equal(await page.locator("#found").innerText(), "1 conversation has it.");
  await search.fill("zebra");
  assert.deepEqual(await titles(page), []);
  await search.fill("");
  await action(page, "Something else", "Rename");
  await page.getByLabel("Title").fill("<b>Other</b>");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#chats").innerText.includes("<b>Other</b>"));
  await search.fill("other</B>");
  assert.deepEqual(await titles(page), ["<b>Other</b>"]);
  await search.fill("");
  await page.reload();
  await done(page, 4);
  assert.deepEqual(await titles(page), ["Two Pelicans", "<b>Other</b>"]);
  await action(page, "Two Pelicans", "Delete");
  await page.waitForFunction(() => !document.querySelector("article"));
  assert.deepEqual(await titles(page), ["<b>Other</b>"]);
  await page.getByRole("button", { name: "Undo" }).click();
  await done(page, 4);
  await page.reload();
  await done(page, 4);
  assert.deepEqual(await page.locator("article img").evaluateAll((images) => Promise.all(images.map(async (image) => (await image.decode().catch(() => {}), image.naturalWidth)))), [64, 40]);
  await action(page, "<b>Other</b>", "Delete");
  await page.locator("#notice").waitFor();
  await page.reload();
  await done(page, 4);
  assert.deepEqual(await titles(page), ["Two Pelicans"]);
});

step("an export is imported as it was, and a bad file changes nothing", async (page) => {
  await page.getByRole("button", { name: "New chat" }).first().click();
  await ask(page, "Second");
  const one = await downloaded(page, () => action(page, "Second", "Export"));
  assert.match(one.name, /^Second-\d{4}-\d\d-\d\d\.json$/);
  assert.deepEqual(JSON.parse(one.text).conversations.map(({ turns }) => turns[0].text), ["Second"]);
  const all = await downloaded(page, () => page.getByRole("button", { name: "Export all" }).click());
  assert.equal(JSON.parse(all.text).conversations.length, 2);
  assert.match(await importFile(page, all.text), /^0 conversations are imported, 2 were here already\.$/);
  for (const title of ["Second", "Two Pelicans"]) {
    await action(page, title, "Delete");
    await page.locator("#notice").filter({ hasText: title }).waitFor();
  }
  assert.deepEqual(await titles(page), []);
  const bad = (change) => {
    const file = JSON.parse(all.text);
    change(file, file.conversations[1].turns[0]);
    return JSON.stringify(file);
  };
  for (const [text, why] of [
    ["nonsense", "It is no JSON."],
    ["[]", "It is no export of this page."],
    ["null", "It is no export of this page."],
    [bad((file) => (file.version = 2)), "It is of version 2, and this page reads version 1."],
    [bad((_, turn) => (turn.role = "system")), "Conversation 2, message 1, has no role."],
    [bad((_, turn) => (turn.text = 1)), "Conversation 2, message 1, has no text."],
    [bad((_, turn) => (turn.calls = [{}])), "Conversation 2, message 1, has wrong calls."],
    [bad((_, turn) => (turn.pictures = ["https://example.org/a.png"])), "Conversation 2, message 1, has a picture that can't be read."],
    [bad((_, turn) => (turn.pictures = ["data:image/png;base64,AAAA"])), "Conversation 2, message 1, has a picture that can't be read."],
    [bad((file) => (file.conversations[1].id = "../x")), "Conversation 2 has no id."],
    [bad((file) => (file.conversations[1].turns = [])), "Conversation 2 has no messages."],
    [bad((file) => (file.conversations[1].id = file.conversations[0].id)), "Two conversations have one id."],
  ]) {
    assert.equal(await importFile(page, text), `file.json is not imported, and nothing has changed. ${why}`);
    assert.deepEqual(await titles(page), []);
  }
  assert.match(await importFile(page, all.text), /^2 conversations are imported\.$/);
  assert.deepEqual(await titles(page), ["Second", "Two Pelicans"]);
  const again = await downloaded(page, () => page.getByRole("button", { name: "Export all" }).click());
  assert.deepEqual(JSON.parse(again.text), JSON.parse(all.text));
});

step("without a database a sentence says that nothing is kept", async (page) => {
  const other = await page.context().newPage();
  await files(other);
  await other.addInitScript(() => (IDBFactory.prototype.open = () => { throw new DOMException("refused", "SecurityError"); }));
  await other.goto(ADDRESS);
  await other.locator("body.ready").waitFor();
  await other.getByText("lost when the tab is closed").waitFor();
  await ask(other, "For now");
  assert.deepEqual(await titles(other), ["For now"]);
  await other.getByRole("button", { name: "New chat" }).first().click();
  await other.locator("#chats a").click();
  await done(other, 1);
  await other.close({ runBeforeUnload: false });
  assert.equal(await page.locator("#unkept").isVisible(), false);
});

step("two tabs have the same list", async (page) => {
  const other = await page.context().newPage();
  await files(other);
  await other.goto(ADDRESS);
  await other.locator("body.ready").waitFor();
  assert.deepEqual(await titles(other), ["Second", "Two Pelicans"]);
  await page.locator("#chats a").filter({ hasText: "Second" }).click();
  await done(page, 1);
  await other.locator("#chats a").filter({ hasText: "Second" }).click();
  await done(other, 1);
  await ask(other, "From there");
  await done(page, 2);
  await other.close();
});

step("a key is asked for, kept as chosen, and in no export", async (page, state) => {
  await end(state.server);
  state.server = await serve("--api-key", "s3cret-key");
  await page.reload();
  const dialog = page.locator("#key-dialog");
  await dialog.waitFor();
  await accessible(page, "key");
  await page.locator("#key").fill("wrong");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#key-reason").innerText === "The server refuses this key.");
  await page.locator("#key").fill("s3cret-key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.title.includes("tiny"));
  await ask(page, "With a key");
  assert.equal(await page.locator(".error:not([hidden])").count(), 0);
  assert.deepEqual(await page.evaluate(() => [sessionStorage.key, localStorage.key].length && [sessionStorage.getItem("key"), localStorage.getItem("key")]), ["s3cret-key", null]);
  await page.reload();
  await page.waitForFunction(() => document.title.includes("tiny"));
  assert.equal(await dialog.isVisible(), false);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByRole("button", { name: "API key" }).click();
  await page.locator("#remember-key").check();
  await page.getByRole("button", { name: "Use this key" }).click();
  // a dialog tells a moment later that it was closed
  await page.waitForFunction(() => localStorage.getItem("key") !== null);
  await page.keyboard.press("Escape");
  assert.deepEqual(await page.evaluate(() => [sessionStorage.getItem("key"), localStorage.getItem("key")]), [null, "s3cret-key"]);
  const all = await downloaded(page, () => page.getByRole("button", { name: "Export all" }).click());
  assert.ok(!all.text.includes("s3cret-key"));
  // one that is given up is told
  await page.evaluate(() => localStorage.removeItem("key"));
  await page.reload();
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  await page.locator("#text").fill("Without");
  await page.keyboard.press("Enter");
  await dialog.waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.locator(".error:not([hidden])").waitFor();
  await end(state.server);
  state.server = await serve();
  await answers(page).last().getByRole("button", { name: "Try again" }).click();
  await done(page, await answers(page).count());
  assert.equal(await page.locator(".error:not([hidden])").count(), 0);
});

step("a thought is folded, and calls are shown", async (page) => {
  await page.getByRole("button", { name: "New chat" }).first().click();
  const call = (name, given) => ({ tool_calls: [{ index: 0, id: "call_0", type: "function", function: { name, arguments: given } }] });
  await mock(page, [{ reasoning_content: "Hm, *so*" }, call("weather", ""), { tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] }, { tool_calls: [{ index: 0, function: { arguments: '"Paris"}' } }] }], "tool_calls");
  await setting(page, "tools", '[{"type":"function","function":{"name":"weather"}}]');
  const asked = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "What is the weather?");
  assert.equal((await asked).postDataJSON().tools[0].function.name, "weather");
  assert.equal(await page.locator("details.thought em").isVisible(), false);
  await page.getByText("Thought").click();
  assert.equal(await page.locator("details.thought em").isVisible(), true);
  assert.equal(await page.locator(".call b").innerText(), "weather");
  assert.equal(await page.locator(".call code").innerText(), '{\n  "city": "Paris"\n}');
  const next = page.waitForRequest("**/v1/chat/completions");
  await mock(page, piecewise("Fine."));
  await ask(page, "And?");
  assert.deepEqual((await next).postDataJSON().messages[1].tool_calls[0].function, { name: "weather", arguments: '{"city":"Paris"}' });
  await setting(page, "tools", "");
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

The root \\(x = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}\\) and

\\[
\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}, \\qquad \\sum_{n=1}^{\\infty} \\frac{1}{n^2} = \\frac{\\pi^2}{6}
\\]

$$A = \\begin{pmatrix} a_{11} & \\cdots & a_{1n} \\\\ \\vdots & \\ddots & \\vdots \\\\ a_{m1} & \\cdots & a_{mn} \\end{pmatrix}, \\quad f(x) = \\begin{cases} x & \\text{if } x > 0 \\\\ 0 & \\text{otherwise} \\end{cases}$$

$$\\begin{aligned} (a+b)^2 &= a^2 + 2ab + b^2 \\\\ &\\geq \\left(\\frac{a}{2}\\right)^2 \\end{aligned}$$

\`\`\`python
def area(r: float) -> float:
    """Of a circle."""
    return 3.14159 * r ** 2  # about
\`\`\`

<img src=x onerror="window.broken=1"> [bad](javascript:window.broken=1) ![far](https://example.org/x.png)
`;

step("markdown becomes elements, and markup stays text", async (page) => {
  await page.getByRole("button", { name: "New chat" }).first().click();
  await mock(page, piecewise(SAMPLE));
  await page.locator("#files").setInputFiles([await png(page, 320, 200, "#b33")]);
  await page.waitForFunction(() => document.querySelectorAll("#pictures li").length === 1);
  await page.locator("#text").fill("What does the picture show?\nIn two lines.");
  await page.keyboard.press("Enter");
  await done(page, 1);
  const shown = answers(page).last().locator(".text");
  for (const [selector, count] of [["h4", 1], ["strong", 1], ["em", 1], ["ol > li", 2], ["ul > li", 2], ["blockquote", 1], ["table", 1], ["td", 4], ["pre code", 2], ["img", 0], ["script", 0], ["math", 4], ["math[display=block]", 3], ["mfrac", 5], ["mtable", 3], [".math mtr", 7], [".keyword", 3], [".string", 2], [".number", 4], [".comment", 2]]) {
    assert.equal(await shown.locator(selector).count(), count, selector);
  }
  assert.deepEqual(await shown.locator("a").evaluateAll((links) => links.map((link) => link.getAttribute("href"))), ["https://example.org/a_(b)", "https://example.org/x.png"]);
  assert.deepEqual(await shown.locator("th, td").evaluateAll((cells) => cells.map((cell) => getComputedStyle(cell).textAlign)), ["left", "right", "left", "right", "left", "right"]);
  assert.ok((await shown.innerText()).includes('<img src=x onerror="window.broken=1">'));
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.equal(await page.locator("pre code").first().innerText().then((text) => text.split("\n")[1].startsWith("    println")), true);
});

step("formulas have the shape of formulas", async (page) => {
  const boxes = await page.locator("mfrac").first().evaluate((fraction) => [...fraction.children].map((child) => child.getBoundingClientRect().toJSON()));
  assert.ok(boxes[0].bottom <= boxes[1].top + 1, "the numerator is above the denominator");
  const cells = await page.locator(".math mtable").first().locator("mtr").evaluateAll((rows) => rows.map((row) => row.getBoundingClientRect().top));
  assert.ok(cells[0] < cells[1] && cells[1] < cells[2]);
  // with a font for mathematics, if there is one, and without
  const other = await page.context().newPage();
  await files(other);
  await other.goto(ADDRESS);
  await other.locator("#chats a").first().waitFor();
  await other.evaluate(() => document.styleSheets[0].insertRule("math { font-family: sans-serif !important; }", document.styleSheets[0].cssRules.length));
  await other.locator("#chats a").first().click();
  await done(other, 1);
  assert.equal(await other.evaluate(() => document.documentElement.className), "plain-math");
  for (const where of [page, other]) {
    const [mark, table] = await where.locator(".math mtable").first().evaluate((table) => [table.previousSibling, table].map((box) => box.getBoundingClientRect().toJSON()));
    assert.ok(mark.height > 0.8 * table.height, `brackets of ${mark.height} pixels around ${table.height}`);
    assert.ok(Math.abs(mark.top + mark.bottom - table.top - table.bottom) < 16, "they stand beside it");
  }
  if (folder) await other.locator(".math").nth(1).screenshot({ path: join(folder, "plain-math.png") });
  await other.close();
});

step("what is done with a message is seen when it is pointed at or focused, and always on a touch screen", async (page) => {
  const opacity = (where = page) => answers(where).last().locator(".tools").evaluate((tools) => getComputedStyle(tools).opacity);
  await page.mouse.move(5, 5);
  await page.locator("#text").focus();
  assert.equal(await opacity(), "0");
  await answers(page).last().hover();
  assert.equal(await opacity(), "1");
  await page.mouse.move(5, 5);
  assert.equal(await opacity(), "0");
  await answers(page).last().getByRole("button", { name: "Copy", exact: true }).focus();
  assert.equal(await opacity(), "1");
  await page.locator("#text").focus();
  const other = await page.context().newPage();
  await files(other);
  const session = await page.context().newCDPSession(other);
  await other.setViewportSize({ width: 375, height: 740 });
  await session.send("Emulation.setTouchEmulationEnabled", { enabled: true });
  await other.goto(page.url());
  await done(other, 1);
  assert.ok(await other.evaluate(() => matchMedia("(hover: none)").matches));
  assert.equal(await opacity(other), "1");
  if (folder) await other.screenshot({ path: join(folder, "touch.png") });
  await other.close();
});

step("on a phone the list is a drawer", async (page) => {
  await page.setViewportSize({ width: 375, height: 740 });
  const isClosed = () => page.waitForFunction(() => getComputedStyle(document.querySelector("#sidebar")).visibility === "hidden");
  await isClosed();
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.waitForFunction(() => document.querySelector("#sidebar").getBoundingClientRect().left === 0);
  assert.equal(await page.evaluate(() => document.activeElement.id), "close-menu");
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    if (colorScheme === "light") await page.locator("#chats .more").first().click();
    if (folder) await page.screenshot({ path: join(folder, `phone-${colorScheme}-list.png`) });
    await accessible(page, `drawer, ${colorScheme}`);
  }
  await page.keyboard.press("Escape");
  await isClosed();
  assert.equal(await page.evaluate(() => document.activeElement.id), "menu");
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.locator("#chats a").filter({ hasText: "Two Pelicans" }).click();
  await done(page, 4);
  await isClosed();
  await page.goBack();
  await done(page, 1);
});

step("it is readable on a phone and a desk, by day and by night", async (page) => {
  for (const [size, width, height] of [["desktop", 1200, 900], ["phone", 375, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(200);
      for (const [part, top] of [["end", 1e6], ["begin", 0]]) {
        await page.locator("main").evaluate((main, top) => (main.scrollTop = top), top);
        if (folder) await page.screenshot({ path: join(folder, `${size}-${colorScheme}-${part}.png`) });
      }
      const wide = await page.evaluate(() => ["html", "main", "#chats"].map((name) => document.querySelector(name)).filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.tagName));
      assert.deepEqual(wide, [], `${size}: too wide`);
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
  await page.locator(".skip").focus();
  const reached = [];
  for (let press = 0; press < 60; press += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => {
      const active = document.activeElement;
      return active.id || active.ariaLabel || active.textContent.slice(0, 20) || active.tagName;
    });
    if (reached.at(-1) === name) break;
    reached.push(name);
  }
  for (const name of ["new", "search", "Two Pelicans", "Rename, export or delete Two Pelicans", "export", "import", "open-settings", "Edit", "Copy code", "Copy", "Regenerate", "files", "text", "send"]) {
    assert.ok(reached.includes(name), `${name} in ${reached}`);
  }
});

/** Takes the page's files from PAGE, with the program's content policy. */
async function files(page) {
  if (!process.env.PAGE) return;
  const policy = (await fetch(ADDRESS)).headers.get("content-security-policy");
  await page.route((url) => /^\/([a-z]+\.[a-z]+)?$/.test(url.pathname), (route) => {
    const path = join(process.env.PAGE, new URL(route.request().url()).pathname.slice(1) || "index.html");
    const contentType = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" }[path.split(".").at(-1)];
    route.fulfill({ path, contentType, headers: { "content-security-policy": policy } });
  });
}

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
  page.setDefaultTimeout(Number(process.env.PATIENCE ?? 30_000));
  page.on("dialog", (dialog) => dialog.accept());
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(ADDRESS) && !/^(data|blob):/.test(request.url())) complaints.push(`asks ${request.url()}`);
  });
  page.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) complaints.push(message.text());
  });
  await files(page);
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
