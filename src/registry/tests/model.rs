//! The registry compared with a simple model, over random steps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Announce { ip: u8, port: u16, age_ms: u64, players: u16, other_game: bool },
    Wait { ms: u64 },
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8, 1..4u16, 0..40_000u64, 0..3u16, prop::bool::weighted(0.1)).prop_map(
            |(ip, port, age_ms, players, other_game)| Step::Announce { ip, port, age_ms, players, other_game }),
        2 => (0..70_000u64).prop_map(|ms| Step::Wait { ms }),
        2 => Just(Step::Publish),
    ]
}

/// A server in the model: game, players, proof and end of life.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    game: &'static str,
    players: u16,
    proven_ms: u64,
    ends_ms: u64,
    /// Which step brought it.
    order: usize,
}

/// Two addresses in each of two networks.
fn place(ip: u8, port: u16) -> Address {
    Address::new([192, ip / 2, 0, ip].into(), port).unwrap()
}

/// What the list of the model holds of the networks around a place: a provider's, and an address.
fn held(model: &BTreeMap<Address, Known>, of: Address) -> [usize; 2] {
    let same = |bits: u8| move |known: &&Address| bits_of(**known, bits) == bits_of(of, bits);
    [16, 32].map(|bits| model.keys().filter(same(bits)).count())
}

fn bits_of(of: Address, bits: u8) -> Option<Prefix> {
    Prefix::owners(of.ip(), &Networks::default()).into_iter().find(|prefix| prefix.bits() == bits)
}

/// Whether a server of the model may go for a newcomer: where their networks part, its own is the heavier one.
fn may_give_way(model: &BTreeMap<Address, Known>, known: Address, newcomer: Address) -> bool {
    let parted = [16, 32].iter().position(|bits| bits_of(known, *bits) != bits_of(newcomer, *bits));
    parted.is_some_and(|at| held(model, known)[at] > held(model, newcomer)[at] + 1)
}

/// Removes from the model what the registry evicted for a newcomer, and checks that it was the right one.
fn make_room(
    registry: &Registry,
    model: &mut BTreeMap<Address, Known>,
    newcomer: Address,
) -> Result<(), TestCaseError> {
    let gone: Vec<Address> = model.keys().filter(|known| registry.listed(**known).is_none()).copied().collect();
    prop_assert_eq!(gone.len(), 1);
    prop_assert!(may_give_way(model, gone[0], newcomer));
    let newer = |known: &Address| known.ip() == gone[0].ip() && model[known].order > model[&gone[0]].order;
    prop_assert!(!model.keys().any(newer));
    model.remove(&gone[0]);
    Ok(())
}

proptest! {
    #[test]
    fn behaves_like_the_model(steps in proptest::collection::vec(step(), 1..120)) {
        let mut registry = Registry::new(SETTINGS, at(0));
        let mut publisher = Publisher::default();
        let mut model: BTreeMap<Address, Known> = BTreeMap::new();
        let mut reader: BTreeMap<Address, u16> = BTreeMap::new();
        let mut ms = 50_000;
        for (order, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait { ms: wait } => {
                    // Rounded to a tick, so that the model need not know about ticks.
                    ms += wait.next_multiple_of(wheel::TICK_MS);
                    while registry.expire(at(ms), 3) {}
                    model.retain(|_, known| known.ends_ms > ms);
                }
                Step::Announce { ip, port, age_ms, players, other_game } => {
                    let age_ms = age_ms.next_multiple_of(wheel::TICK_MS);
                    let (place, proven_ms) = (place(ip, port), ms - age_ms);
                    let game = if other_game { "other" } else { "one" };
                    let outcome = registry.apply(&announce_game(place, game, proven_ms, players), at(ms));
                    let on_ip = model.keys().filter(|known| known.ip() == place.ip()).count();
                    let is_full = model.len() >= SETTINGS.servers_max;
                    let somebody_goes = model.keys().any(|known| may_give_way(&model, *known, place));
                    let expected = match model.get(&place) {
                        Some(known) if proven_ms < known.proven_ms => Outcome::Stale,
                        Some(known) if proven_ms == known.proven_ms && (known.game, known.players) == (game, players) => {
                            Outcome::Stale
                        }
                        Some(known) if (known.game, known.players) == (game, players) => Outcome::Refreshed,
                        Some(_) => Outcome::Changed,
                        None if on_ip >= SETTINGS.servers_per_ip_max as usize => Outcome::Refused(Refusal::FullForIp),
                        None if is_full && !somebody_goes => Outcome::Refused(Refusal::Full),
                        None => Outcome::Added,
                    };
                    prop_assert_eq!(outcome, expected);
                    if matches!(outcome, Outcome::Added | Outcome::Changed | Outcome::Refreshed) {
                        if outcome == Outcome::Added && is_full {
                            make_room(&registry, &mut model, place)?;
                        }
                        // Of two in the same millisecond, the second is the newer one.
                        let is_tie = model.get(&place).is_some_and(|known| known.proven_ms == proven_ms);
                        let (ends_ms, proven_ms) = (proven_ms + LIFE_MS, proven_ms + u64::from(is_tie));
                        let order = model.get(&place).map_or(order, |known| known.order);
                        model.insert(place, Known { game, players, proven_ms, ends_ms, order });
                    }
                }
                Step::Publish => {
                    let mut dirty = drained(&mut registry);
                    let Some((view, batch)) = publisher.publish(&mut dirty, at(ms)) else { continue };
                    // A reader that only follows the deltas has the same list as the view.
                    for delta in batch.deltas {
                        match delta {
                            Delta::Added(s) => prop_assert!(reader.insert(s.address, s.players_current.unwrap()).is_none()),
                            Delta::Changed { now: s, .. } | Delta::Proven(s) => prop_assert!(reader.insert(s.address, s.players_current.unwrap()).is_some()),
                            Delta::Removed(s) => prop_assert!(reader.remove(&s.address).is_some()),
                        }
                    }
                    let listed: BTreeMap<_, _> =
                        view.servers.iter().map(|s| (s.address, s.players_current.unwrap())).collect();
                    prop_assert_eq!(&listed, &reader);
                    let known: BTreeMap<_, _> = model.iter().map(|(a, k)| (*a, k.players)).collect();
                    prop_assert_eq!(listed, known);
                }
            }
            prop_assert_eq!(registry.len(), model.len());
        }
    }
}
