// A launcher in TypeScript that uses types which were made from the OpenAPI document: see tests/e2e/web/openapi.rs.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };

type Server = components["schemas"]["Server"];

function same(one: unknown, other: unknown): void {
  const [text, expected] = [JSON.stringify(one), JSON.stringify(other)];
  if (text !== expected) throw new Error(`${text}, not ${expected}`);
}

const client = createClient<paths>({ baseUrl: process.argv[2]! });

const listed = await client.GET("/api/v1/servers", {
  params: { query: { game: "iceball", not_empty: true, sort: "name", fields: "name,players_current,verified_by" } },
});
const servers: Server[] = listed.data!.servers;
same(servers.map((server) => server.name), ["Alpha", "gamma"]);
const proof: "cookie" | "query" | "connection" | "config" | undefined = servers[0]!.verified_by;
same([proof, servers[0]!.players_current, servers[0]!.join], ["cookie", 64, undefined]);

// @ts-expect-error: it is not one of the orders.
await client.GET("/api/v1/servers", { params: { query: { sort: "nonsense" } } });

const path = { game: "iceball", address: servers[0]!.endpoint };
const one = await client.GET("/api/v1/servers/{game}/{address}", { params: { path } });
same(one.data!.join?.link, "iceball://127.0.0.1:2");
const nobody = await client.GET("/api/v1/servers/{game}/{address}", { params: { path: { ...path, address: "127.0.0.1:9" } } });
same([nobody.response.status, typeof nobody.error!.error], [404, "string"]);

const announced = await client.POST("/api/v1/servers", { body: { game: "mygame", port: 7777, name: "Mine", rules: { a: "b" } } });
same([announced.data!.listed, announced.data!.stated, announced.data!.endpoint], [true, true, "127.0.0.1:7777"]);
const wrong = await client.POST("/api/v1/servers", { body: { port: 7777 } });
same([wrong.response.status, wrong.error!.parameter], [400, "game"]);

// The data of events has types, too.
const delta: components["schemas"]["DeltaEvent"] = JSON.parse('{"serial": 1, "changed": []}');
same(delta.changed!.map((server) => server.map), []);
console.log("works");
