//! Points of a series, their means, and their compact encoding.

use std::io::{Read, Write};
use std::ops::RangeInclusive;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// Upper bound on an unpacked chunk: a larger one is invalid.
const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// A count at one time, or the mean over the step that begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Seconds since 1970.
    pub at_s: u64,
    /// Players, in tenths; None if the game does not report them.
    pub players_x10: Option<u32>,
    /// Listed servers, in hundredths; for a single server, the percentage of the time that it was listed.
    pub count_x100: u32,
    /// The least and the most players in the step, in tenths; the same as the players where they are not known.
    pub least_x10: Option<u32>,
    pub most_x10: Option<u32>,
}

impl Point {
    /// One count, or a mean of which nothing else is known.
    pub fn new(at_s: u64, players_x10: Option<u32>, count_x100: u32) -> Point {
        Point { at_s, players_x10, count_x100, least_x10: players_x10, most_x10: players_x10 }
    }

    pub fn least(&self) -> Option<f64> {
        self.least_x10.map(|players| f64::from(players) / 10.0)
    }

    pub fn most(&self) -> Option<f64> {
        self.most_x10.map(|players| f64::from(players) / 10.0)
    }

    pub fn players(&self) -> Option<f64> {
        self.players_x10.map(|players| f64::from(players) / 10.0)
    }

    pub fn count(&self) -> f64 {
        f64::from(self.count_x100) / 100.0
    }
}

/// Means over steps. `times` are the times of all counts, so that an absence lowers the mean. Points and times are sorted.
pub fn means(points: &[Point], times: &[u64], step_s: u64) -> Vec<Point> {
    let step_of = |at_s: u64| at_s - at_s % step_s;
    let mut out = Vec::new();
    for points in points.chunk_by(|a, b| step_of(a.at_s) == step_of(b.at_s)) {
        let at_s = points.first().map_or(0, |point| step_of(point.at_s));
        let counted = times.iter().filter(|time| step_of(**time) == at_s).count().max(points.len()) as u64;
        let known: Vec<u64> = points.iter().filter_map(|point| point.players_x10).map(u64::from).collect();
        let players_x10 = mean(known.iter().sum(), known.len() as u64);
        let count_x100 = mean(points.iter().map(|point| u64::from(point.count_x100)).sum(), counted).unwrap_or(0);
        let least_x10 = points.iter().filter_map(|point| point.least_x10).min();
        let most_x10 = points.iter().filter_map(|point| point.most_x10).max();
        out.push(Point { at_s, players_x10, count_x100, least_x10, most_x10 });
    }
    out
}

/// The mean, rounded to the nearest integer; None without values.
fn mean(sum: u64, number: u64) -> Option<u32> {
    (number > 0).then(|| u32::try_from((sum + number / 2) / number).unwrap_or(u32::MAX))
}

/// Packs the points of a chunk that begins at `start_s`: first all times, then all players, then all counts, because columns
/// compress better. Where a mean has a range, it follows: how far the least and the most are from it. Older files do not
/// have that, and older programs do not read it.
pub fn pack(start_s: u64, points: &[Point]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(points.len() * 4 + 4);
    put(&mut plain, points.len() as u64);
    let mut before_s = start_s;
    for point in points {
        put(&mut plain, point.at_s.saturating_sub(before_s));
        before_s = point.at_s;
    }
    for point in points {
        put(&mut plain, point.players_x10.map_or(0, |players| u64::from(players) + 1));
    }
    for point in points {
        put(&mut plain, point.count_x100.into());
    }
    let apart = |a: Option<u32>, b: Option<u32>| u64::from(a.unwrap_or(0).saturating_sub(b.unwrap_or(0)));
    if points.iter().any(|point| point.least_x10 != point.most_x10) {
        for point in points {
            put(&mut plain, apart(point.players_x10, point.least_x10));
        }
        for point in points {
            put(&mut plain, apart(point.most_x10, point.players_x10));
        }
    }
    deflate(&plain)
}

pub fn unpack(start_s: u64, data: &[u8]) -> Option<Vec<Point>> {
    let plain = inflate(data)?;
    let mut rest = &plain[..];
    let number = usize::try_from(take(&mut rest)?).ok().filter(|number| *number <= plain.len())?;
    let mut points = Vec::with_capacity(number);
    let mut at_s = start_s;
    for _ in 0..number {
        at_s = at_s.checked_add(take(&mut rest)?)?;
        points.push(Point::new(at_s, None, 0));
    }
    for point in &mut points {
        point.players_x10 = players_from(take(&mut rest)?)?;
        (point.least_x10, point.most_x10) = (point.players_x10, point.players_x10);
    }
    for point in &mut points {
        point.count_x100 = u32::try_from(take(&mut rest)?).ok()?;
    }
    if !rest.is_empty() {
        for point in &mut points {
            let below = u32::try_from(take(&mut rest)?).ok()?;
            point.least_x10 = point.players_x10.map(|players| players.saturating_sub(below));
        }
        for point in &mut points {
            let above = u32::try_from(take(&mut rest)?).ok()?;
            point.most_x10 = point.players_x10.map(|players| players.saturating_add(above));
        }
    }
    Some(points)
}

/// One count of one series: (series, players in tenths, servers in hundredths). Sorted by series.
pub type Counted = (u32, Option<u32>, u32);

pub fn pack_sample(counted: &[Counted]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(counted.len() * 4);
    let mut before = 0;
    for (series, players_x10, count_x100) in counted {
        put(&mut plain, u64::from(series - before));
        before = *series;
        put(&mut plain, players_x10.map_or(0, |players| u64::from(players) + 1));
        put(&mut plain, (*count_x100).into());
    }
    deflate(&plain)
}

/// Calls `each` for every series in the range. Stops at damaged data.
pub fn unpack_sample(data: &[u8], range: &RangeInclusive<u32>, mut each: impl FnMut(Counted)) {
    let Some(plain) = inflate(data) else { return };
    let mut rest = &plain[..];
    let mut series = 0u32;
    let mut next = || {
        series = series.checked_add(u32::try_from(take(&mut rest)?).ok()?)?;
        let players_x10 = players_from(take(&mut rest)?)?;
        Some((series, players_x10, u32::try_from(take(&mut rest)?).ok()?))
    };
    while let Some(counted) = next() {
        if counted.0 > *range.end() {
            return;
        }
        if range.contains(&counted.0) {
            each(counted);
        }
    }
}

/// 0 stands for unknown.
fn players_from(stored: u64) -> Option<Option<u32>> {
    match stored.checked_sub(1) {
        None => Some(None),
        Some(players) => Some(Some(u32::try_from(players).ok()?)),
    }
}

/// A varint: seven bits per byte, lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default()
}

fn inflate(data: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let size = DeflateDecoder::new(data).take(CHUNK_BYTES_MAX).read_to_end(&mut plain).ok()?;
    ((size as u64) < CHUNK_BYTES_MAX).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(at_s: u64, players: Option<u32>, count_x100: u32) -> Point {
        Point::new(at_s, players.map(|players| players * 10), count_x100)
    }

    #[test]
    fn means_use_known_values_and_an_absence_lowers_the_count() {
        let times: Vec<u64> = (0..10).map(|minute| minute * 60).collect();
        let points = [point(0, Some(3), 100), point(60, Some(4), 100), point(120, None, 100), point(300, Some(8), 100)];
        let expected = [
            Point { least_x10: Some(30), most_x10: Some(40), ..Point::new(0, Some(35), 60) },
            Point::new(300, Some(80), 20),
        ];
        assert_eq!(means(&points, &times, 300), expected);
        assert_eq!(means(&points, &times, 3600)[0].players_x10, Some(50));
        assert_eq!(means(&[], &times, 300), []);
    }

    #[test]
    fn constant_values_take_few_bytes() {
        let day: Vec<_> = (0..288).map(|step| point(step * 300, Some(0), 100)).collect();
        let packed = pack(0, &day);
        assert!(packed.len() < 40, "{}", packed.len());
        assert_eq!(unpack(0, &packed), Some(day));
    }

    proptest! {
        #[test]
        fn points_round_trip(steps in proptest::collection::vec((0..10_000u64, proptest::option::of(500..u32::MAX - 500), any::<u32>(), 0..500u32), 0..50)) {
            let mut at_s = 1_000;
            let points: Vec<_> = steps.into_iter().map(|(step, players_x10, count_x100, spread)| {
                at_s += step;
                let least_x10 = players_x10.map(|players| players - spread);
                let most_x10 = players_x10.map(|players| players + spread / 2);
                Point { at_s, players_x10, count_x100, least_x10, most_x10 }
            }).collect();
            prop_assert_eq!(unpack(1_000, &pack(1_000, &points)), Some(points));
        }

        #[test]
        fn samples_round_trip(counted in proptest::collection::btree_map(1..u32::MAX, (proptest::option::of(0..u32::MAX), any::<u32>()), 0..50)) {
            let counted: Vec<Counted> = counted.into_iter().map(|(series, (players, count))| (series, players, count)).collect();
            let mut back = Vec::new();
            unpack_sample(&pack_sample(&counted), &(0..=u32::MAX), |counted| back.push(counted));
            prop_assert_eq!(back, counted);
        }

        #[test]
        fn random_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
            unpack(0, &bytes);
            unpack(0, &deflate(&bytes));
            unpack_sample(&deflate(&bytes), &(0..=u32::MAX), |_| {});
        }
    }
}
