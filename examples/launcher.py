"""A small library for launchers: list, filter, live updates, join. It needs nothing but Python.

    python3 examples/launcher.py http://localhost:8080 game=iceball not_empty=1
"""

import json
import sys
import time
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen


class Master:
    def __init__(self, url):
        self.api = url.rstrip("/") + "/api/v1"

    def get(self, path, filter, headers={}):
        try:
            return urlopen(Request(f"{self.api}/{path}?{urlencode(filter)}", headers=headers), timeout=30)
        except HTTPError as error:
            if error.code == 400:
                wrong = json.load(error)
                raise ValueError(f"{wrong['parameter']}: {wrong['error']}") from None
            raise

    def list(self, **filter):
        """All servers that match, page by page. The filters are those of /api/v1/servers."""
        after = ""
        while after is not None:
            with self.get("servers", {**filter, "after": after}) as answer:
                page = json.load(answer)
            yield from page["servers"]
            after = page.get("next")

    def follow(self, **filter):
        """Yields ("+", server), ("*", server) or ("-", server) for every server that comes, changes or goes."""
        known, last = {}, None
        while True:
            try:
                headers = {"Last-Event-ID": last} if last else {}
                with self.get("events", filter, headers) as answer:
                    for event in events(answer):
                        last = event["id"]
                        yield from apply(known, event)
            except OSError:
                pass  # the connection is lost: resume it
            time.sleep(2)


def join(server):
    """How to join a server: a link that the game handles, a command, or the address to enter in the game."""
    ways = server.get("join", {})
    return ways.get("link") or ways.get("command") or server["endpoint"]


def apply(known, event):
    data = json.loads(event["data"])
    gone = [server["endpoint"] for server in data.get("removed", [])]
    if event["event"] == "snapshot":
        gone += known.keys() - {server["endpoint"] for server in data["servers"]}
    for endpoint in gone:
        if endpoint in known:
            yield "-", known.pop(endpoint)
    for server in data.get("servers", []) + data.get("added", []) + data.get("changed", []):
        before = known.get(server["endpoint"])
        now = {name: value for name, value in {**(before or {}), **server}.items() if value is not None}
        known[server["endpoint"]] = now
        yield "*" if before else "+", now


def events(lines):
    event = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name in ("event", "id", "data"):
            event[name] = value.removeprefix(" ")
        elif not name and not value:
            if "event" in event:
                yield event
            event = {}


def show(mark, server):
    players = f"{server.get('players_current')}/{server.get('players_max')}"
    print(mark, server.get("name", server["endpoint"]), players, join(server), flush=True)


if __name__ == "__main__":
    master, filter = Master(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:])
    for server in master.list(**filter):
        show("=", server)
    for mark, server in master.follow(**filter):
        show(mark, server)
