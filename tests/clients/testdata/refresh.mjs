// refresh/main.go in JavaScript. The client is the fourth argument.
import { readFile, rename, writeFile } from "node:fs/promises";

const [url, file, endpoint, library] = process.argv.slice(2);
const { Client } = await import(library);
const client = new Client({ url });

const load = async () => JSON.parse(await readFile(file, "utf8"));
const fresh = (tokens) => tokens.Access !== "expired";

async function store(tokens) {
  const next = `${file}.${process.pid}`;
  await writeFile(next, JSON.stringify(tokens));
  await rename(next, file);
}

async function refresh(token) {
  const answer = await fetch(endpoint, { method: "POST", body: token });
  if (!answer.ok) throw new Error("invalid_grant");
  return answer.json();
}

async function accessToken() {
  let tokens = await load();
  if (!fresh(tokens)) {
    await client.withLock("token/github", async () => {
      tokens = await load(); // again: another may have refreshed it while we waited
      if (!fresh(tokens)) {
        tokens = await refresh(tokens.Refresh);
        await store(tokens); // under the lock, for the next one's look
      }
    });
  }
  return tokens.Access;
}

try {
  console.log(await accessToken(), "<nil>");
} catch {
  console.log(" invalid_grant");
}
await client.close();
