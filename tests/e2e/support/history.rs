//! A data folder with a week of history.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rallypoint::model::{Address, Facts, Game as GameName, Proof, Server as Entry};
use rallypoint::registry::view::View;
use rallypoint::store::history::{Recorder, Settings};
use rallypoint::store::sqlite;

use crate::support::*;

const HALF_HOUR_S: u64 = 1_800;

const STEPS: u64 = 7 * 48;

/// A data folder with a week of history of these servers: game, address and approximate number of players.
pub fn folder_with_a_week(name: &str, servers: &[(&'static str, SocketAddr, u16)]) -> Folder {
    let folder = Folder::new(name);
    let mut connection = sqlite::open(&folder.path().join(sqlite::FILE)).unwrap();
    connection.pragma_update(None, "synchronous", "OFF").unwrap();
    let (mut recorder, settings) = (Recorder::default(), Settings { every_s: HALF_HOUR_S, bytes_max: 1 << 30 });
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let transaction = sqlite::begin(&mut connection).unwrap();
    for step in 0..STEPS {
        let now_ms = (now_s - (STEPS - step) * HALF_HOUR_S) * 1_000;
        // More in the evenings, with some variation.
        let share = |at: usize| 50 + ((step as i64 % 48 - 24).unsigned_abs() * 2 + (step * (at as u64 + 3)) % 7) as u32;
        let entry = |(at, (game, place, players)): (usize, &(&'static str, SocketAddr, u16))| {
            let playing = (u32::from(*players) * share(at) / 100) as u16;
            let facts = Facts { players_current: Some(playing), ..Facts::default() };
            let address = Address::new(place.ip(), place.port()).unwrap();
            Arc::new(Entry::new(address, GameName::Own(game), Proof::Cookie, now_ms, &facts))
        };
        let view = View::new(step, now_ms, servers.iter().enumerate().map(entry).collect());
        recorder.count(&transaction, &view, now_ms, settings).unwrap();
        recorder.thin(&transaction, now_ms, settings).unwrap();
        while recorder.has_more() {
            recorder.thin(&transaction, now_ms, settings).unwrap();
        }
    }
    transaction.commit().unwrap();
    folder
}

pub fn data_dir(folder: &Folder) -> String {
    format!("data_dir={}", folder.path().display())
}
