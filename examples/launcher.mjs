// A small library for launchers: list, filter, live updates, join. It runs in browsers and in Node.js.
//
//     node examples/launcher.mjs http://localhost:8080 game=iceball not_empty=1

export class Master {
  constructor(url) {
    this.api = `${url.replace(/\/$/, "")}/api/v1`;
  }

  // All servers that match, page by page. The filters are those of /api/v1/servers.
  async *list(filter = {}) {
    for (let after = ""; ; ) {
      const answer = await fetch(`${this.api}/servers?${new URLSearchParams({ ...filter, after })}`);
      const page = await answer.json();
      if (!answer.ok) throw new Error(`${page.parameter}: ${page.error}`);
      yield* page.servers;
      after = page.next;
      if (!after) return;
    }
  }

  // Calls `change("+" | "*" | "-", server)` for every server that comes, changes or goes. A lost connection is resumed.
  async follow(filter, change) {
    const known = new Map();
    for (let last = ""; ; ) {
      try {
        const headers = last ? { "Last-Event-ID": last } : {};
        const answer = await fetch(`${this.api}/events?${new URLSearchParams(filter)}`, { headers });
        if (answer.status === 400) throw new Error((await answer.json()).error, { cause: "filter" });
        for await (const event of events(answer.body)) {
          last = event.id;
          if (event.data) apply(known, event, change);
        }
      } catch (error) {
        if (error.cause === "filter") throw error;
      }
      await new Promise((again) => setTimeout(again, 2000));
    }
  }
}

// How to join a server: a link that the game handles, a command, or the address to enter in the game.
export function join(server) {
  return server.join?.link ?? server.join?.command ?? server.endpoint;
}

function apply(known, { event, data }, change) {
  const put = (server) => {
    const before = known.get(server.endpoint);
    const now = { ...before, ...server };
    for (const name of Object.keys(now)) if (now[name] === null) delete now[name];
    known.set(server.endpoint, now);
    change(before ? "*" : "+", now);
  };
  const remove = ({ endpoint }) => {
    const server = known.get(endpoint);
    if (known.delete(endpoint)) change("-", server);
  };
  const { servers = [], removed = [], added = [], changed = [] } = JSON.parse(data);
  if (event === "snapshot") {
    const listed = new Set(servers.map((server) => server.endpoint));
    [...known.values()].filter((server) => !listed.has(server.endpoint)).forEach(remove);
  }
  removed.forEach(remove);
  [...servers, ...added, ...changed].forEach(put);
}

async function* events(body) {
  let text = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    const whole = (text + piece).split("\n\n");
    text = whole.pop();
    for (const lines of whole) {
      const pairs = lines.split("\n").map((line) => line.match(/^(event|id|data): ?(.*)$/)?.slice(1));
      const event = Object.fromEntries(pairs.filter(Boolean));
      if (event.event) yield event;
    }
  }
}

if (globalThis.process?.argv[1] === (await import("node:url").catch(() => null))?.fileURLToPath(import.meta.url)) {
  const [url, ...pairs] = process.argv.slice(2);
  const [master, filter] = [new Master(url), Object.fromEntries(pairs.map((pair) => pair.split("=")))];
  const show = (mark, it) => console.log(mark, it.name ?? it.endpoint, `${it.players_current}/${it.players_max}`, join(it));
  for await (const server of master.list(filter)) show("=", server);
  await master.follow(filter, show);
}
