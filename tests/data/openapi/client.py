"""A launcher in Python that uses a client which was made from the OpenAPI document: see tests/e2e/web/openapi.rs."""

import sys

from rallypoint_client import Client
from rallypoint_client.api.games import list_games
from rallypoint_client.api.servers import announce_server, check_server, get_server, list_servers
from rallypoint_client.models import Announcement, ListServersSort, Server, ServerVerifiedBy, Wrong

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)

listed = list_servers.sync(client=client, game="iceball", not_empty=True, sort=ListServersSort.NAME, limit=10)
names = [server.name for server in listed.servers]
assert names == ["Alpha", "gamma"], names
first = listed.servers[0]
assert (first.endpoint, first.players_current, first.verified_by) == ("127.0.0.1:2", 64, ServerVerifiedBy.COOKIE), first
assert first.join.link == "iceball://127.0.0.1:2" and first.proven_at.year > 2000, first

one = get_server.sync("iceball", first.endpoint, client=client)
assert isinstance(one, Server) and one.name == "Alpha", one
assert isinstance(get_server.sync("iceball", "127.0.0.1:9", client=client), Wrong)

announced = announce_server.sync(client=client, body=Announcement(port=7777, game="mygame", name="Mine", players_max=4))
assert announced.listed and announced.stated and announced.endpoint == "127.0.0.1:7777", announced
assert get_server.sync("mygame", announced.endpoint, client=client).stated
wrong = announce_server.sync(client=client, body=Announcement(port=7777))
assert isinstance(wrong, Wrong) and wrong.parameter == "game", wrong

assert check_server.sync(client=client, game="iceball", address=first.endpoint).listed
assert {game.game for game in list_games.sync(client=client).games} == {"iceball", "mygame"}
print("works")
