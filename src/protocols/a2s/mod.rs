//! A2S, Valve's query, which servers of many games answer: Half-Life, Counter-Strike, Team Fortress 2, Rust, ARK, Garry's Mod.
//! No master here needs it, so it has no card: only the tool asks it.

pub mod query;
pub mod wire;

use super::Dialect;

pub const DIALECT: Dialect = Dialect {
    name: "a2s",
    title: "any game that answers Valve's query",
    game_port: 27015,
    qstat_types: &["A2S", "HL2S", "HLA2S"],
    query: &query::InfoQuery,
    decoders: &[("answer", |bytes| wire::Answer::parse(bytes).is_ok())],
    samples: || {
        let texts = "Arena\0de_dust2\0cstrike\0Counter-Strike\0";
        let end = b"\x0a\x00\x03\x20\x01dl\x00\x011.1.2.7/Stdio\0\x80\x87\x69";
        vec![[b"\xff\xff\xff\xffI\x30", texts.as_bytes(), &end[..]].concat()]
    },
};
