//! Which games a protocol carries, and the one place where names become games.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use hashbrown::HashTable;

use super::{CARDS, Card, Query, card, dialect};
use crate::model::{Carried, Facts, GAME_BYTES_MAX, Game, MASTER, Server};
use crate::registry::view::View;
use crate::text;

/// Which games a protocol carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Games {
    /// Only its own.
    One,
    /// Servers of any gamename announce themselves through it; its query is understood only by its own game. Its masters
    /// list each other under the name [`MASTER`].
    Any,
    /// Many games, all of which answer the protocol's query. The answer says which game it is. The card's own name stands for
    /// a server that has not said it yet.
    Family,
}

/// The game of this name in a protocol. None where the protocol has no such game: the name is another protocol's own, empty,
/// too long or not clean.
pub fn game(protocol: &str, name: &str) -> Option<Game> {
    let speaks = card(protocol)?;
    if name == speaks.name {
        return Some(Game::Own(speaks.name));
    }
    let is_name = !name.is_empty() && name.len() <= GAME_BYTES_MAX && text::clean(name.as_bytes()) == name;
    (is_name && speaks.games != Games::One && card(name).is_none()).then(|| Game::Carried(shared(speaks, name)))
}

/// The game of this name if the protocol is not known: a protocol's own, or one that is carried by the protocol
/// for any game.
pub fn game_named(name: &str) -> Option<Game> {
    match card(name) {
        Some(card) => Some(Game::Own(card.name)),
        None => game(carrier()?.name, name),
    }
}

/// The protocol that carries games without a protocol of their own.
fn carrier() -> Option<&'static Card> {
    CARDS.iter().find(|card| card.games == Games::Any)
}

/// The card of a game's protocol.
pub fn card_of(game: &Game) -> Option<&'static Card> {
    card(game.protocol())
}

/// The card that knows servers of this game: how they are queried, and what they can say. None for a game that its protocol
/// only carries.
pub fn own_card(game: &Game) -> Option<&'static Card> {
    card_of(game).filter(|card| matches!(game, Game::Own(_)) || card.games == Games::Family)
}

/// Whether a server of a family has yet to say which of its games it is.
pub fn is_unnamed(game: &Game) -> bool {
    matches!(game, Game::Own(name) if card(name).is_some_and(|card| card.games == Games::Family))
}

/// The names that a server of this game is found by: the game's own, and that of its family, which stands for all of its games.
pub fn names_of(game: &Game) -> impl Iterator<Item = &str> {
    let family = card_of(game).filter(|card| card.games == Games::Family && card.name != game.name());
    iter::once(game.name()).chain(family.map(|card| card.name))
}

/// The servers that a name stands for.
pub fn servers_of<'v>(view: &'v View, name: &str) -> impl Iterator<Item = &'v Arc<Server>> {
    let is_family = card(name).is_some_and(|card| card.games == Games::Family);
    let of_family = is_family.then(|| view.of_protocol(name));
    let of_game = (!is_family).then(|| view.of_game(name));
    of_family.into_iter().flatten().chain(of_game.into_iter().flatten())
}

/// How servers of a game are queried, where they can be. The name of a dialect stands for any game that answers it.
pub fn query_of(game: &Game) -> Option<&'static dyn Query> {
    match game {
        Game::Own(name) if let Some(dialect) = dialect(name) => Some(dialect.query),
        _ => own_card(game).and_then(|card| card.query),
    }
}

/// How often a server of this game announces itself.
pub fn announce_every_ms(game: &str) -> u64 {
    card(game).or_else(carrier).map_or(u64::MAX, |card| card.announce_every_ms)
}

/// Cuts what a server says to what its game allows: the numbers of players, and all that it says of them and of its rules.
pub fn bound_facts(game: &Game, facts: &mut Facts<'_>) {
    let card = own_card(game);
    let most = card.map_or(u16::MAX, |card| card.players_most);
    for count in [&mut facts.players_current, &mut facts.players_max] {
        *count = count.map(|count| count.min(most));
    }
    let bytes_max = card.map_or(UNKNOWN_DETAILS_BYTES_MAX, |card| card.details_bytes_max);
    if let Some(details) = &mut facts.details
        && !details.is_within(most.into(), bytes_max)
    {
        *details = Arc::new(details.within(most.into(), bytes_max));
    }
}

/// The bound on what is kept of players and rules where the game has no card.
const UNKNOWN_DETAILS_BYTES_MAX: usize = 8 << 10;

/// Names that are shared. One more goes unshared, which costs memory and nothing else.
const SHARED_MAX: usize = 1024;

/// Each name once, however many servers have it: with a million servers, copies would be the bulk of a name's memory, and
/// a datagram that says a known name needs no allocation. Names that are no longer used make room for new ones.
static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Shared {
    names: HashTable<Arc<Carried>>,
    hasher: RandomState,
}

fn shared(card: &'static Card, name: &str) -> Arc<Carried> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).get(card, name)
}

impl Shared {
    fn get(&mut self, card: &'static Card, name: &str) -> Arc<Carried> {
        let hash = self.hasher.hash_one((card.name, name));
        let is_it = |known: &Arc<Carried>| *known.name == *name && known.protocol == card.name;
        if let Some(known) = self.names.find(hash, is_it) {
            return known.clone();
        }
        let is_master = card.games == Games::Any && name == MASTER;
        let new = Arc::new(Carried { protocol: card.name, name: name.into(), is_master });
        if self.names.len() >= SHARED_MAX {
            self.names.retain(|known| Arc::strong_count(known) > 1);
        }
        if self.names.len() < SHARED_MAX {
            let hasher = &self.hasher;
            self.names.insert_unique(hash, new.clone(), |known| hasher.hash_one((known.protocol, &*known.name)));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Details, Player, Proof};

    fn any() -> &'static Card {
        carrier().unwrap()
    }

    #[test]
    fn a_game_announces_itself_as_often_as_its_card_says() {
        for card in CARDS {
            assert_eq!(announce_every_ms(card.name), card.announce_every_ms, "{}", card.name);
        }
        assert_eq!(announce_every_ms("tanks"), any().announce_every_ms, "a game without a card");
    }

    #[test]
    fn names_that_are_no_longer_used_make_room_for_new_ones() {
        let mut shared = Shared::default();
        let used: Vec<_> = (0..SHARED_MAX).map(|number| shared.get(any(), &format!("game {number}"))).collect();
        assert_eq!(shared.names.len(), SHARED_MAX);
        drop(used);
        let first = shared.get(any(), "tanks");
        assert!(Arc::ptr_eq(&first, &shared.get(any(), "tanks")), "it is shared");
        assert_eq!(shared.names.len(), 1, "the others are forgotten");
    }

    #[test]
    fn names_become_games_in_one_place() {
        for card in CARDS {
            assert_eq!(game(card.name, card.name), Some(Game::Own(card.name)));
            assert_eq!(game_named(card.name), Some(Game::Own(card.name)));
            let other = game(card.name, "tanks");
            assert_eq!(other.is_some(), card.games != Games::One, "{}", card.name);
            if let Some(other) = other {
                assert_eq!(
                    (other.protocol(), other.name(), card_of(&other).unwrap().name),
                    (card.name, "tanks", card.name)
                );
                assert!(!other.is_master());
                let query = card.query.filter(|_| card.games == Games::Family);
                assert_eq!(query_of(&other).is_some(), query.is_some(), "{}", card.name);
            }
            for another in CARDS.iter().filter(|another| another.name != card.name) {
                assert_eq!(game(card.name, another.name), None, "{} is not {}'s", another.name, card.name);
            }
            let master = game(card.name, MASTER);
            assert_eq!(master.is_some_and(|game| game.is_master()), card.games == Games::Any, "{}", card.name);
        }
        assert_eq!(game_named("tanks"), game(any().name, "tanks"));
        assert_eq!(game("no protocol", "tanks"), None);
        for bad in ["", "a\nb", "\u{1b}", &"x".repeat(GAME_BYTES_MAX + 1)] {
            assert_eq!(game(any().name, bad), None, "{bad:?}");
        }
        assert!(game(any().name, &"x".repeat(GAME_BYTES_MAX)).is_some());
    }

    #[test]
    fn the_name_of_a_family_stands_for_all_of_its_games() {
        let games: Vec<Game> =
            CARDS.iter().flat_map(|card| [game(card.name, card.name), game(card.name, "tanks")]).flatten().collect();
        let servers = games.iter().zip(1..).map(|(game, port)| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            Arc::new(Server::new(address, game.clone(), Proof::Query, 0, &Facts::default()))
        });
        let view = View::new(1, 0, servers.collect());
        for name in CARDS.iter().map(|card| card.name).chain(["tanks", "chess"]) {
            let of_family = |game: &Game| {
                card(name).is_some_and(|card| card.games == Games::Family && card.name == game.protocol())
            };
            let expected = games.iter().filter(|game| game.name() == name || of_family(game)).count();
            assert_eq!(servers_of(&view, name).count(), expected, "{name}");
            assert_eq!(
                games.iter().filter(|game| names_of(game).any(|called| called == name)).count(),
                expected,
                "{name}"
            );
        }
        assert!(games.iter().all(|game| names_of(game).count() <= 2));
    }

    #[test]
    fn names_are_shared_and_their_number_is_bounded() {
        let mut shared = Shared::default();
        let tanks = shared.get(any(), "tanks");
        assert!(Arc::ptr_eq(&tanks, &shared.get(any(), "tanks")));
        for number in 0..3 * SHARED_MAX {
            shared.get(any(), &number.to_string());
        }
        assert!(Arc::ptr_eq(&tanks, &shared.get(any(), "tanks")), "a name in use stays");
        let used: Vec<_> = (0..3 * SHARED_MAX).map(|number| shared.get(any(), &number.to_string())).collect();
        assert!(shared.names.len() <= SHARED_MAX && *used.last().unwrap().name == *(3 * SHARED_MAX - 1).to_string());
    }

    #[test]
    fn what_a_server_says_is_cut_to_what_its_game_allows() {
        let cut = |game: &Game| {
            let mut facts = Facts { players_current: Some(65_535), players_max: Some(65_534), ..Facts::default() };
            bound_facts(game, &mut facts);
            (facts.players_current, facts.players_max)
        };
        for card in CARDS {
            assert_eq!(cut(&Game::Own(card.name)), (Some(card.players_most), Some(card.players_most)));
            for number in 0..100 {
                let facts = (card.pretend)(number);
                assert!(facts.players_max.is_some_and(|most| most <= card.players_most), "{}", card.name);
            }
            let mut unknown = Facts::default();
            bound_facts(&Game::Own(card.name), &mut unknown);
            assert_eq!(unknown, Facts::default());
        }
        let carried = game(any().name, "any other").unwrap();
        assert_eq!(cut(&carried), (Some(65_535), Some(65_534)), "the limit is unknown");
        let long = "x".repeat(100);
        let fat = Details {
            players: (0..300).map(|_| Player { name: long.as_str().into(), ..Player::default() }).collect(),
            rules: (0..300).map(|number| (number.to_string(), &long)).collect(),
        };
        let games = CARDS.iter().map(|card| (Game::Own(card.name), card.details_bytes_max));
        for (game, bytes_max) in games.chain([(carried, UNKNOWN_DETAILS_BYTES_MAX)]) {
            let kept = |details: Details| {
                let mut facts = Facts { details: Some(Arc::new(details)), ..Facts::default() };
                bound_facts(&game, &mut facts);
                facts.details.unwrap()
            };
            let details = kept(fat.clone());
            let text: usize = details.players.iter().map(|player| player.name.len()).sum();
            let text = text + details.rules.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            assert!(text <= bytes_max && text > bytes_max - 2 * 104, "{game:?}: {text} of {bytes_max}");
            assert_eq!(kept(Details::clone(&details)), details, "and no further");
        }
    }
}
