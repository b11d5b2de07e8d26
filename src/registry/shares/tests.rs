//! Shares against a model that searches everything.

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn entries(shares: &Shares, of: &str) -> Vec<u32> {
    Prefix::all(ip(of), shares.exempt()).iter().map(|prefix| shares.held(prefix).entries).collect()
}

/// Shares of entries of 320 bytes each, in slots from 0 on.
fn shares_of<'a>(ips: impl IntoIterator<Item = &'a str>) -> Shares {
    let mut shares = Shares::default();
    (0..).zip(ips).for_each(|(slot, address)| shares.add(slot, ip(address), 320));
    shares
}

#[test]
fn an_entry_counts_for_every_network_around_it() {
    let ips = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8:0:100::1", "2001:db8:0:101::1", "2001:db8:0:200::1"];
    let mut shares = shares_of(ips);
    assert_eq!(entries(&shares, "192.0.2.1"), [2, 3]);
    assert_eq!(entries(&shares, "2001:db8:0:100::9"), [1, 2, 3]);
    assert_eq!(shares.bytes(), 6 * 320);
    let bytes = |shares: &Shares, at: usize| {
        shares.held(&Prefix::owners(ip("192.0.2.1"), shares.exempt())[at]).units as usize * UNIT
    };
    assert_eq!((bytes(&shares, 0), bytes(&shares, 3)), (3 * 320, 2 * 320), "from the /16 to the address");
    shares.weigh(0, ip("192.0.2.1"), 1_000);
    assert_eq!((bytes(&shares, 0), bytes(&shares, 3)), (2 * 320 + 1_024, 320 + 1_024), "in steps of 32 bytes");
    (0..).zip(ips).for_each(|(slot, address)| shares.remove(slot, ip(address)));
    assert!(shares.is_empty());
}

#[test]
fn limits_hold_at_every_level() {
    let shares = shares_of(["192.0.2.1"]);
    let full = |shares: &Shares, of: &str| shares.fits(ip(of), 1).map_err(|(refusal, full)| (refusal, full.bits()));
    assert_eq!(full(&shares, "192.0.2.1"), Err((Refusal::FullForIp, 32)));
    let hosts: Vec<String> = (1..=8).map(|last| format!("192.0.2.{last}")).collect();
    let shares = shares_of(hosts.iter().map(String::as_str));
    assert_eq!(full(&shares, "192.0.2.9"), Err((Refusal::FullForNetwork, 24)), "8 in a /24");
    assert_eq!(full(&shares, "192.0.3.1"), Ok(()));
    let subnets: Vec<String> = (0..4).map(|subnet| format!("2001:db8::{subnet}:0:0:0:1")).collect();
    let shares = shares_of(subnets.iter().map(String::as_str));
    assert_eq!(full(&shares, "2001:db8:0:5::1"), Err((Refusal::FullForNetwork, 56)), "4 in a /56");
    let subnets: Vec<String> = (0..16).map(|subnet| format!("2001:db8:0:{subnet}00::1")).collect();
    let shares = shares_of(subnets.iter().map(String::as_str));
    assert_eq!(full(&shares, "2001:db8:0:ff00::1"), Err((Refusal::FullForNetwork, 48)), "16 in a /48");
    assert_eq!(full(&shares, "2001:db8:1::1"), Ok(()));
}

#[test]
fn one_proven_address_proves_its_whole_ipv6_64() {
    let mut shares = Shares::default();
    for address in ["2001:db8::1", "192.0.2.1"] {
        shares.prove(ip(address), true);
        shares.prove(ip(address), true);
        shares.prove(ip(address), false);
    }
    assert!(shares.is_proven(ip("2001:db8::2")) && !shares.is_proven(ip("2001:db8:0:1::1")));
    assert!(shares.is_proven(ip("192.0.2.1")) && !shares.is_proven(ip("192.0.2.2")));
    assert_eq!(entries(&shares, "192.0.2.1"), [0, 0], "a proof is no entry");
    shares.reset(Networks::default());
    assert!(shares.is_proven(ip("192.0.2.1")));
    shares.prove(ip("2001:db8::1"), false);
    shares.prove(ip("192.0.2.1"), false);
    assert!(shares.is_empty());
}

#[test]
fn the_tables_of_a_million_addresses_are_small() {
    assert_eq!((size_of::<(u32, Owner<u16>)>(), size_of::<(u32, Held)>(), size_of::<Member>()), (16, 16, 16));
}

/// A whole provider's network is one owner, however it spreads its entries.
#[test]
fn a_provider_that_takes_an_address_of_each_of_its_networks_is_the_largest_owner() {
    let hosting: Vec<String> = (1..=40).map(|host| format!("192.0.2.{host}")).collect();
    let spread: Vec<String> = (0..200u32).map(|number| format!("2001:db8:{number:x}::1")).collect();
    let shares = shares_of(hosting.iter().chain(&spread).map(String::as_str));
    for scarce in [Scarce::Places, Scarce::Bytes] {
        let gone = shares.gives_way_to(ip("198.51.100.1"), 320, None, scarce).unwrap();
        assert!(gone >= 40, "{scarce:?}: {gone} is of the hosting network");
        assert_eq!(shares.gives_way_to(ip("2001:db8:ff::1"), 320, None, scarce), None, "nor for itself");
    }
}

/// One entry of the model.
#[derive(Clone, Debug)]
struct Entry {
    ip: IpAddr,
    bytes: usize,
    /// When it came.
    order: usize,
}

/// What a network holds, by a full search, and when its newest came.
fn held(entries: &[Option<Entry>], network: Prefix, scarce: Scarce) -> u32 {
    let exempt = Networks::default();
    let inside = entries.iter().flatten().filter(|entry| Prefix::owners(entry.ip, &exempt).contains(&network));
    inside.map(|entry| if scarce == Scarce::Places { 1 } else { units(entry.bytes) }).sum()
}

/// Whether `gone` is an entry that may give way to a newcomer, and whether anybody has to.
fn is_right(entries: &[Option<Entry>], newcomer: IpAddr, bytes: usize, scarce: Scarce, gone: Option<u32>) -> bool {
    let exempt = Networks::default();
    let more = if scarce == Scarce::Places { 1 } else { units(bytes) };
    let of = |ip: IpAddr| Prefix::owners(ip, &exempt);
    let heaviest_at = |level: usize, around: Option<Prefix>| {
        let all = entries.iter().flatten().filter_map(|entry| {
            let owners = of(entry.ip);
            let inside = around.is_none_or(|around| owners.get(level.wrapping_sub(1)) == Some(&around));
            owners.get(level).copied().filter(|_| inside)
        });
        all.map(|network| held(entries, network, scarce)).max().unwrap_or(0)
    };
    let Some(gone) = gone else {
        // Nobody gives way where no network is heavier than the newcomer's own, at any level.
        return of(newcomer).iter().enumerate().all(|(level, own)| {
            let around = level.checked_sub(1).map(|wider| of(newcomer)[wider]);
            heaviest_at(level, around) <= held(entries, *own, scarce) + more
        });
    };
    let Some(entry) = &entries[gone as usize] else { return false };
    let newest = entries.iter().flatten().filter(|other| of(other.ip).last() == of(entry.ip).last());
    let is_newest = newest.map(|other| other.order).max() == Some(entry.order);
    let (levels, own) = (of(entry.ip), of(newcomer));
    let parted = levels.iter().zip(&own).take_while(|(one, other)| one == other).count();
    // Around both, no network is heavier than their own. Where they part, the one that goes is the heaviest, and heavier than the
    // newcomer's with the newcomer.
    (0..levels.len()).all(|level| {
        let around = level.checked_sub(1).map(|wider| levels[wider]);
        let (this, heaviest) = (held(entries, levels[level], scarce), heaviest_at(level, around));
        let with_newcomer = own.get(level).map_or(0, |own| held(entries, *own, scarce) + more);
        match level.cmp(&parted) {
            std::cmp::Ordering::Less => heaviest <= with_newcomer,
            std::cmp::Ordering::Equal => this == heaviest && this > with_newcomer,
            std::cmp::Ordering::Greater => this == heaviest,
        }
    }) && is_newest
}

proptest! {
    #[test]
    fn the_newest_of_the_heaviest_gives_way(
        steps in proptest::collection::vec((0..40usize, 0..8u8, 0..8u8, 1..4usize), 1..120),
    ) {
        let (mut shares, mut entries) = (Shares::default(), vec![None::<Entry>; 40]);
        for (order, (slot, network, host, size)) in steps.into_iter().enumerate() {
            let ip = match network {
                // Some share a /24, some a /20, some a /16.
                0..5 => IpAddr::from([192, network & 1, (network & 2) << 4 | network & 4, host]),
                _ => format!("2001:db8:{:x}:{host:x}00::1", u32::from(network) << 7).parse().unwrap(),
            };
            let bytes = size * 320;
            for scarce in [Scarce::Places, Scarce::Bytes] {
                let gone = shares.gives_way_to(ip, bytes, None, scarce);
                prop_assert!(is_right(&entries, ip, bytes, scarce, gone), "{scarce:?} {ip} {gone:?}");
            }
            match entries[slot].take() {
                Some(entry) if size == 3 => {
                    shares.weigh(slot as u32, entry.ip, bytes);
                    entries[slot] = Some(Entry { bytes, ..entry });
                }
                Some(entry) => shares.remove(slot as u32, entry.ip),
                None => {
                    shares.add(slot as u32, ip, bytes);
                    entries[slot] = Some(Entry { ip, bytes, order });
                }
            }
            let bytes: usize = entries.iter().flatten().map(|entry| entry.bytes).sum();
            prop_assert_eq!(shares.bytes(), bytes);
        }
        for (slot, entry) in (0..).zip(&entries) {
            entry.iter().for_each(|entry| shares.remove(slot, entry.ip));
        }
        prop_assert!(shares.is_empty());
    }
}

#[test]
fn an_exempt_address_makes_its_64_an_owner_of_its_own() {
    let exempt = Networks::new(&["2001:db8::5/128".parse().unwrap()]);
    let mut shares = Shares::default();
    shares.reset(exempt);
    let ips: Vec<IpAddr> = ["2001:db8::5", "2001:db8::6", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap()).into();
    for (slot, ip) in (0..).zip(&ips) {
        shares.add(slot, *ip, 100);
    }
    shares.weigh(0, ips[0], 900);
    for scarce in [Scarce::Places, Scarce::Bytes] {
        assert_eq!(shares.gives_way(scarce), Some(1), "the newest of the /64 that holds the most");
    }
    for (slot, ip) in (0..).zip(&ips) {
        shares.remove(slot, *ip);
    }
    assert!(shares.is_empty());
}
