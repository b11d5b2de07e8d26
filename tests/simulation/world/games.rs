//! The game servers of a world: they come, change, fall silent, quit and move.

use super::*;

impl World {
    /// A new game server that comes within this time.
    pub(super) fn add_game(&mut self, is_liar: bool, within_ms: u64) {
        let card = self.rng.pick(CARDS);
        let address = self.free_address(is_liar);
        let node = self.rng.below(self.machines.len() as u64) as usize;
        let number = self.numbers;
        self.numbers += 1;
        let mut game = Game {
            card,
            address,
            facts: (card.pretend)(number),
            number,
            state: State::Gone,
            is_liar,
            node,
            generation: 0,
            announcer: None,
            due_ms: u64::MAX,
            token: None,
            proof_ms: None,
            announced_ms: None,
            gap_ms: 0,
            reached_ms: None,
            up_ms: 0,
            changed_ms: 0,
            quit_ms: None,
            ended_ms: self.ms,
            lost_ms: None,
        };
        game.generation = 1;
        let at = self.games.len();
        self.games.push(game);
        self.active.push(at);
        self.by_address.insert(address.socket(), at);
        self.remember_facts(at);
        self.plan_in(within_ms, Event::Turn { game: at, generation: 1 });
    }

    /// Honest servers share addresses and networks within the limits; liars have their own address, and no limits.
    fn free_address(&mut self, is_liar: bool) -> Address {
        self.ports += 1;
        let per_ip = u64::from(self.plan.servers_per_ip_max / 2).max(1);
        let (ip, port) = match is_liar {
            true => (
                Ipv4Addr::new(198, 51, 100, self.rng.between(1, if self.plan.is_greedy { 1 } else { 3 }) as u8),
                10_000 + self.ports % 50_000,
            ),
            false => {
                let host = self.ports / per_ip;
                // A few addresses to a network.
                (
                    Ipv4Addr::new(100, (host / 512) as u8, (host / 2 % 256) as u8, 1 + (host % 2) as u8),
                    1_024 + self.ports % 60_000,
                )
            }
        };
        Address::new(ip.into(), port as u16).unwrap()
    }

    fn remember_facts(&mut self, at: usize) {
        let game = &self.games[at];
        let said = Said { game: Some(at), in_the_name_of: None, until_ms: u64::MAX };
        self.said.insert((game.card.name, game.facts.name.to_string()), said);
    }

    pub(super) fn change_facts(&mut self, at: usize) {
        let card = self.games[at].card;
        let mut number = self.numbers;
        // A server stays a server of its game.
        while (card.pretend)(number).game != self.games[at].facts.game {
            number += 1;
        }
        self.numbers = number + 1;
        let before = (card.name, self.games[at].facts.name.to_string());
        if let Some(said) = self.said.get_mut(&before) {
            said.until_ms = self.ms;
        }
        let game = &mut self.games[at];
        (game.number, game.facts, game.changed_ms) = (number, (card.pretend)(number), self.ms);
        self.remember_facts(at);
    }

    /// The next turn of a life: it comes, falls silent, comes back, quits, moves to another port, or dies.
    pub(super) fn turn(&mut self, at: usize) {
        self.games[at].generation += 1;
        let generation = self.games[at].generation;
        match self.games[at].state {
            State::Gone | State::Silent => {
                self.come_up(at, generation);
                self.plan_in(self.plan.churn_ms, Event::Turn { game: at, generation });
            }
            State::Up => {
                let what = self.rng.below(4);
                let is_liar = self.games[at].is_liar;
                if what == 1 {
                    self.quit(at);
                }
                let game = &mut self.games[at];
                game.state = if what == 0 { State::Silent } else { State::Gone };
                game.ended_ms = self.ms;
                game.announcer = None;
                match what {
                    0 => {
                        let silence_ms = *self.rng.pick(&[5_000, 60_000, 1_200_000]);
                        self.plan_in(silence_ms, Event::Turn { game: at, generation });
                    }
                    _ => {
                        self.by_address.remove(&self.games[at].address.socket());
                        self.add_game(is_liar, 60_000);
                    }
                }
            }
        }
    }

    fn come_up(&mut self, at: usize, generation: u64) {
        let ms = self.ms;
        let game = &mut self.games[at];
        game.state = State::Up;
        (game.up_ms, game.changed_ms) = (ms, ms);
        game.due_ms = ms + SOON_MS;
        if let AnnounceMethod::Datagrams { start, .. } = &game.card.announce {
            game.announcer = Some(start(ms, &game.offer()).unwrap());
        }
        self.choose_node(at);
        if self.machines[self.games[at].node].node.is_none() {
            self.games[at].due_ms = u64::MAX; // `disturb` sets it when the node starts
        }
        // A query that was begun while it was away may still take it off the list; its next announcement puts it there again.
        let (address, is_queried) = (self.games[at].address, self.games[at].is_queried());
        let mut nodes = self.machines.iter().filter_map(|machine| machine.node.as_ref());
        if is_queried && nodes.any(|node| node.hub.address_state(address).is_some()) {
            let every_ms = self.games[at].card.announce_every_ms;
            self.games[at].due_ms = self.games[at].due_ms.saturating_add(every_ms + SOON_MS);
        }
        self.plan_at(ms, Event::Announce { game: at, generation });
        self.plan_in(self.plan.facts_every_ms, Event::Facts { game: at, generation });
    }

    /// A node has started, or its clock was set: a handshake may have failed, so the next announcement counts.
    pub(super) fn disturb(&mut self, at: usize, node: usize, is_start: bool) {
        let ms = self.ms;
        // While all nodes are down it has none to turn to.
        let is_lost = is_start && self.machines[self.games[at].node].node.is_none();
        let game = &mut self.games[at];
        if game.state == State::Up && (game.node == node || is_lost) && (is_start || ms < game.due_ms) {
            game.due_ms = ms + game.card.announce_every_ms + SOON_MS;
        }
    }

    /// If its node is down, it finds another of the cluster.
    fn choose_node(&mut self, at: usize) {
        if self.machines[self.games[at].node].node.is_none() {
            let running: Vec<usize> =
                (0..self.machines.len()).filter(|&node| self.machines[node].node.is_some()).collect();
            if !running.is_empty() {
                self.games[at].node = *self.rng.pick(&running);
            }
        }
    }

    /// Announces a game server as its protocol does.
    pub(super) fn announce(&mut self, at: usize) {
        let (ms, generation) = (self.ms, self.games[at].generation);
        self.choose_node(at);
        let every_ms = self.games[at].card.announce_every_ms;
        let to_ip = self.machines[self.games[at].node].ip;
        let from = self.games[at].address.socket();
        let card = self.games[at].card;
        self.games[at].quit_ms = None;
        if self.machines[self.games[at].node].node.is_some() {
            self.games[at].reached_ms = Some(ms);
        }
        let mut next_ms = ms + every_ms;
        match &card.announce {
            AnnounceMethod::Datagrams { .. } => {
                let game = &mut self.games[at];
                let offer = game.offer();
                let Some(announcer) = &mut game.announcer else { return };
                let mut announcement = None;
                while let Some(step) = announcer.step(ms) {
                    match step {
                        Step::Prepare => announcer.ready(ms),
                        Step::Announce => announcement = Some(announcer.announcement(&offer)),
                        Step::Finish(_) => {}
                        Step::Believe(complaint) => panic!("an honest server is refused: {complaint:?}"),
                    }
                }
                next_ms = announcer.due_ms().max(ms + 1);
                if let Some(bytes) = announcement {
                    game.announces(ms);
                    self.send(from, SocketAddr::new(to_ip, card.master_port.unwrap_or(1)), bytes);
                }
            }
            AnnounceMethod::OwnPort { heartbeat, .. } => {
                let bytes = heartbeat(&self.games[at].facts);
                self.games[at].announces(ms);
                self.send(from, SocketAddr::new(to_ip, card.master_port.unwrap_or(1)), bytes);
            }
            AnnounceMethod::Stream { rules, .. } => {
                let message = rules.message(&self.games[at].offer());
                self.games[at].announces(ms);
                self.converse(at, message);
            }
            AnnounceMethod::Http(http) => {
                let (offer, path) = (self.games[at].offer(), http.path);
                self.games[at].announces(ms);
                let node = self.games[at].node;
                let path_there = path("", &offer);
                if let (Some(node), Some(post)) = (&mut self.machines[node].node, http.post) {
                    let headers = [("content-type", post.content_type.to_string())];
                    if node.post(card, from.ip(), &path_there, &headers, &(post.body)(&offer)) {
                        self.counts.connections += 1;
                        self.soon(self.games[at].node);
                    }
                } else if let Some(node) = &mut self.machines[node].node
                    && let Some(RouteAnswer::Announce { heartbeat, .. }) = node.get(card, from.ip(), &path_there)
                {
                    node.announce(heartbeat);
                    self.counts.connections += 1;
                    self.soon(self.games[at].node);
                }
            }
            AnnounceMethod::Challenged(rules) => self.register(at, rules),
            AnnounceMethod::None => {
                let (address, node) = (self.games[at].address, self.games[at].node);
                self.games[at].announces(ms);
                let keys = HeartbeatKeys::of(card.name, address);
                if let Some(running) = &mut self.machines[node].node {
                    running.announce(Heartbeat::new(address, None, card.name, keys).unwrap());
                    self.counts.connections += 1;
                    self.soon(node);
                }
            }
        }
        self.plan_at(next_ms, Event::Announce { game: at, generation });
    }

    /// Registers a game server with the newest token that it has. If that does not count, another comes to its port.
    fn register(&mut self, at: usize, rules: &ChallengedAnnounce) {
        let (ms, game) = (self.ms, &mut self.games[at]);
        let (offer, id, serial) = (game.offer(), at as u128 + 1, game.number as u32);
        let headers = (rules.headers)(&Registration { offer: &offer, id, serial, token: game.token.as_deref() });
        let (card, from, body) = (game.card, game.address.ip(), (rules.post.body)(&offer));
        game.announces(ms);
        if game.token.is_some() {
            game.proof_ms = Some(ms);
        }
        let node = game.node;
        if let Some(running) = &mut self.machines[node].node
            && running.post(card, from, &(rules.path)(""), &headers, &body)
        {
            self.counts.connections += 1;
            self.soon(node);
        }
    }

    /// Sends a message over a connection and waits for its end.
    fn converse(&mut self, at: usize, message: Vec<u8>) {
        let (game, random) = (&self.games[at], self.rng.next() as u32);
        let peer = SocketAddr::new(game.address.ip(), 1_024 + (random % 60_000) as u16);
        let Some(node) = &mut self.machines[game.node].node else { return };
        let Some(mut stream) = node.connect(game.card, peer, random) else { return };
        node.tasks.spawn(async move {
            let _ = stream.write_all(&message).await;
            let mut answer = Vec::new();
            let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
        });
        self.counts.connections += 1;
        self.soon(self.games[at].node);
    }

    fn quit(&mut self, at: usize) {
        let AnnounceMethod::Stream { rules, .. } = &self.games[at].card.announce else { return };
        let Some(message) = rules.goodbye(&self.games[at].offer()) else { return };
        self.converse(at, message);
        if self.machines[self.games[at].node].node.is_some() {
            self.games[at].quit_ms = Some(self.ms);
        }
    }

    /// A datagram arrives at a game server: a master's reply, or a question.
    pub(super) fn hear(&mut self, at: usize, from: SocketAddr, bytes: &[u8]) {
        let ms = self.ms;
        if self.games[at].state != State::Up {
            return;
        }
        if self.games[at].is_liar && self.lie(at, from) {
            return;
        }
        if let AnnounceMethod::Challenged(rules) = &self.games[at].card.announce
            && let Some(token) = (rules.token)(at as u128 + 1, bytes)
        {
            self.games[at].token = Some(token);
            return self.register(at, rules);
        }
        let game = &mut self.games[at];
        let mut answers = Vec::new();
        if let Some(announcer) = &mut game.announcer {
            let mut reply = Vec::new();
            announcer.hear(ms, bytes, &mut reply);
            answers.extend(Some(reply).filter(|reply| !reply.is_empty()));
        } else if let Some(answer) = game.card.answer {
            answers = answer(&game.facts, game.address, bytes);
        }
        if !answers.is_empty() {
            game.proof_ms = Some(ms);
        }
        let own = game.address.socket();
        answers.into_iter().for_each(|bytes| self.send(own, from, bytes));
    }

    /// A liar has new facts each time, or answers nonsense, which is true.
    fn lie(&mut self, at: usize, from: SocketAddr) -> bool {
        match self.rng.below(4) {
            0 => {
                let length = self.rng.below(200);
                let nonsense = self.rng.bytes(length);
                self.send(self.games[at].address.socket(), from, nonsense);
                true
            }
            1 => true,
            _ => {
                self.change_facts(at);
                false
            }
        }
    }
}
